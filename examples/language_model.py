"""A language model with 4-bit weights: running text in, a plan and its perplexity out.

python examples/language_model.py
"""

import math

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import bitsect

torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2
)
model = LlamaForCausalLM(config)
text = torch.arange(4096).remainder(61).reshape(64, 64)  # yours is what a tokenizer makes of a text

optimizer = torch.optim.Adam(model.parameters(), 0.01)
for _ in range(20):
    optimizer.zero_grad()
    model(input_ids=text[:16], labels=text[:16]).loss.backward()
    optimizer.step()

rows = [{"input_ids": row.tolist()} for row in text]
result = bitsect.quantize(
    model, rows, formats="w8a16,w4a16", target=0.95, method="paper", metric="sqnr", draw=16
)
for row in result.rows:
    print(f"{row.name}: perplexity {math.exp(row.evaluation.loss or 0):.3f}")
print(result.plan.counts)
