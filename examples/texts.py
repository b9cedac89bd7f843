"""A text classifier of transformers: rows of texts in, a plan out; nothing is padded.

python examples/texts.py
"""

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import DistilBertConfig, DistilBertForSequenceClassification, PreTrainedTokenizerFast

import bitsect

# Yours come from `from_pretrained`; these are made up, so that the example needs no download.
known = ["[PAD]", "[UNK]", "good", "bad", "fine", "poor", "film", "book", "a", "the"]
words = {word: number for number, word in enumerate(known)}
made = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
made.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]")
config = DistilBertConfig(vocab_size=len(words), dim=32, n_layers=2, n_heads=2, hidden_dim=64)
model = DistilBertForSequenceClassification(config)

rows = [{"text": text} for text in ["a good film", "the bad book", "fine", "a poor poor book"] * 8]
result = bitsect.quantize(model, rows, processor=tokenizer, target=0.9, method="paper", metric="sqnr")
print(result)
