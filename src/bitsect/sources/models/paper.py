"""The paper's three architectures, without weights: enough to count, to estimate latency and to capture."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ...errors import BitsectError, MissingExtraError

PAPER_NETWORKS = ("resnet50", "mobilenetv2", "bert-large")


def paper_network(name: str, device: str = "meta") -> tuple[nn.Module, Any]:
    """The architecture called `name` and an example input: 224² images, or 384 tokens for BERT.

    On the meta device, where no weight is allocated, unless told otherwise.
    """
    if name not in PAPER_NETWORKS:
        raise BitsectError(f"unknown paper network '{name}': use {', '.join(PAPER_NETWORKS)}")
    try:
        import transformers
    except ImportError:
        raise MissingExtraError("transformers", "hf", f"paper:{name}") from None
    with torch.device(device):
        if name == "bert-large":
            config = transformers.BertConfig(
                hidden_size=1024,
                num_hidden_layers=24,
                num_attention_heads=16,
                intermediate_size=4096,
                attn_implementation="eager",
            )
            tokens = torch.zeros(2, 384, dtype=torch.long)
            example = {"input_ids": tokens, "attention_mask": tokens, "token_type_ids": tokens}
            return transformers.BertForQuestionAnswering(config).eval(), example
        images = {"pixel_values": torch.zeros(2, 3, 224, 224)}
        if name == "resnet50":
            config = transformers.ResNetConfig(num_labels=1000)
            return transformers.ResNetForImageClassification(config).eval(), images
        config = transformers.MobileNetV2Config(num_labels=1000)
        return transformers.MobileNetV2ForImageClassification(config).eval(), images
