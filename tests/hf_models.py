"""Small random networks of transformers, saved to folders as users have them, with samples in files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import transformers
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

WORDS = [
    "the",
    "a",
    "cat",
    "dog",
    "bird",
    "fish",
    "sat",
    "ran",
    "sang",
    "swam",
    "on",
    "in",
    "under",
    "over",
    "mat",
    "tree",
    "river",
    "house",
    "red",
    "blue",
    "old",
    "new",
]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
VOCABULARY = {word: number for number, word in enumerate([*SPECIAL, *WORDS, ".", ",", "?"])}
TINY = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
TOKENS = {"vocab_size": len(VOCABULARY), "max_position_embeddings": 64, "pad_token_id": 0}


def tokenizer(*, special: bool = True, longest: int = 64) -> PreTrainedTokenizerFast:
    """Words are tokens; with `special`, a sentence begins and ends as BERT's do."""
    made = Tokenizer(models.WordLevel(VOCABULARY, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    if special:
        made.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]",
            pair="[CLS] $A [SEP] $B:1 [SEP]:1",
            special_tokens=[("[CLS]", VOCABULARY["[CLS]"]), ("[SEP]", VOCABULARY["[SEP]"])],
        )
    names = dict(zip(("pad", "unk", "cls", "sep", "mask"), SPECIAL, strict=True))
    if not special:
        names = {"pad": "[PAD]", "unk": "[UNK]"}
    return PreTrainedTokenizerFast(
        tokenizer_object=made, model_max_length=longest, **{f"{k}_token": v for k, v in names.items()}
    )


def sentences(count: int, seed: int = 0, longest: int = 9) -> list[str]:
    """Sentences of two words up to `longest`."""
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, rng.integers(2, longest + 1))) for _ in range(count)]


def _save(
    model: torch.nn.Module, folder: Path, processor: object | None = None, *, refill: bool = True
) -> Path:
    torch.manual_seed(0)
    for parameter in model.parameters():  # transformers begins with weights that hardly move anything
        if refill and parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.25)
    model.save_pretrained(folder)
    if processor is not None:
        processor.save_pretrained(folder)
    return folder


def _table(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def _classes(folder: Path, count: int, classes: int) -> Path:
    rows = [{"sentence": s, "label": n % classes} for n, s in enumerate(sentences(count))]
    return _table(folder / "data.jsonl", rows)


def _images(folder: Path, count: int, size: int) -> Path:
    rng = np.random.default_rng(0)
    for number in range(count):
        place = folder / "images" / str(number % 2)
        place.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (size + 4 * (number % 2), size, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(place / f"{number}.png")
    return folder / "images"


def _image_processor(kind: str, size: int) -> object:
    made = getattr(transformers, f"{kind}ImageProcessorPil", None) or getattr(
        transformers, f"{kind}ImageProcessor"
    )
    return made(size={"height": size, "width": size}, do_center_crop=False)


def resnet(folder: Path) -> tuple[Path, Path]:
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 8], depths=[1, 1], layer_type="basic", num_labels=2
    )
    model = transformers.ResNetForImageClassification(config)
    return _save(model, folder, _image_processor("ViT", 32)), _images(folder, 12, 40)


def mobilenetv2(folder: Path) -> tuple[Path, Path]:
    config = transformers.MobileNetV2Config(
        depth_multiplier=0.1, min_depth=4, depth_divisible_by=4, num_labels=2, image_size=32
    )
    model = transformers.MobileNetV2ForImageClassification(config)
    return _save(model, folder, _image_processor("ViT", 32)), _images(folder, 12, 40)


def vit(folder: Path) -> tuple[Path, Path]:
    config = transformers.ViTConfig(**TINY, image_size=16, patch_size=8, num_labels=2)
    return _save(
        transformers.ViTForImageClassification(config), folder, _image_processor("ViT", 16)
    ), _images(folder, 12, 20)


def bert_questions(folder: Path) -> tuple[Path, Path]:
    config = transformers.BertConfig(**TINY, **TOKENS)
    model = transformers.BertForQuestionAnswering(config)
    rng, paragraphs = np.random.default_rng(0), []
    for number, context in enumerate(sentences(8, 1, 60)):
        at = int(rng.integers(0, context.count(" ") + 1))
        answer = context.split()[at]
        start = len(" ".join(context.split()[:at])) + (at > 0)
        answers = [{"text": answer, "answer_start": start}]
        question = {"id": f"q{number}", "question": "the cat ?", "answers": answers}
        paragraphs.append({"context": context, "qas": [question]})
    data = folder / "questions.json"
    folder.mkdir(exist_ok=True)
    data.write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    return _save(model, folder, tokenizer(longest=32)), data


def bert_tokens(folder: Path) -> tuple[Path, Path]:
    model = transformers.BertForTokenClassification(transformers.BertConfig(**TINY, **TOKENS, num_labels=3))
    rows = [{"tokens": s.split(), "tags": [len(w) % 3 for w in s.split()]} for s in sentences(12)]
    return _save(model, folder, tokenizer()), _table(folder / "data.jsonl", rows)


def distilbert(folder: Path) -> tuple[Path, Path]:
    config = transformers.DistilBertConfig(
        dim=16, n_layers=1, n_heads=2, hidden_dim=24, vocab_size=len(VOCABULARY), max_position_embeddings=64
    )
    model = transformers.DistilBertForSequenceClassification(config)
    return _save(model, folder, tokenizer()), _classes(folder, 16, 2)


def t5_encoder(folder: Path) -> tuple[Path, Path]:
    config = transformers.T5Config(
        vocab_size=len(VOCABULARY), d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2
    )
    return _save(transformers.T5EncoderModel(config), folder, tokenizer()), _classes(folder, 12, 2)


def _language(folder: Path, model: torch.nn.Module) -> tuple[Path, Path]:
    folder.mkdir(exist_ok=True)
    data = folder / "text.txt"
    data.write_text(" .\n".join(sentences(60, 3)))
    model.save_pretrained(folder)
    tokenizer(special=False).save_pretrained(folder)
    made = transformers.AutoTokenizer.from_pretrained(folder)  # which may be of the network's own class
    ids = torch.tensor(made(data.read_text(), verbose=False)["input_ids"][:128]).reshape(2, 64)
    torch.manual_seed(0)
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    for _ in range(30):  # a network that knows nothing has no likelihood to lose
        optimizer.zero_grad()
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
    return _save(model, folder, refill=False), data


def gpt2(folder: Path) -> tuple[Path, Path]:
    config = transformers.GPT2Config(
        vocab_size=len(VOCABULARY),
        n_embd=16,
        n_layer=1,
        n_head=2,
        n_positions=64,
        bos_token_id=0,
        eos_token_id=0,
    )
    return _language(folder, transformers.GPT2LMHeadModel(config))


def llama(folder: Path) -> tuple[Path, Path]:
    config = transformers.LlamaConfig(**TINY, **TOKENS, num_key_value_heads=1)
    return _language(folder, transformers.LlamaForCausalLM(config))


def qwen(folder: Path) -> tuple[Path, Path]:
    config = transformers.Qwen2Config(**TINY, **TOKENS, num_key_value_heads=1)
    return _language(folder, transformers.Qwen2ForCausalLM(config))


def whisper_encoder(folder: Path) -> tuple[Path, Path]:
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    config = transformers.WhisperConfig(
        d_model=16,
        encoder_layers=1,
        encoder_attention_heads=2,
        encoder_ffn_dim=24,
        max_source_positions=10,
        num_mel_bins=8,
    )
    folder.mkdir(exist_ok=True)
    data = folder / "data.npz"
    rng = np.random.default_rng(0)
    np.savez(data, input_features=rng.normal(size=(8, 8, 20)).astype(np.float32))
    return _save(WhisperEncoder(config), folder), data


def clip(folder: Path) -> tuple[Path, Path]:
    config = transformers.CLIPVisionConfig(**TINY, image_size=16, patch_size=8, projection_dim=12)
    model = transformers.CLIPVisionModelWithProjection(config)
    return _save(model, folder, _image_processor("ViT", 16)), _images(folder, 8, 20)


NETWORKS: dict[str, Callable[[Path], tuple[Path, Path]]] = {
    function.__name__: function
    for function in (
        *(resnet, mobilenetv2, vit, bert_questions, bert_tokens, distilbert, t5_encoder),
        *(gpt2, llama, qwen, whisper_encoder, clip),
    )
}
