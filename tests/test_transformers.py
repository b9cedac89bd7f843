"""Networks of `transformers` in small random configurations, as a user has them, and the paper's three."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from bitsect.network.capture import capture
from bitsect.network.program import Program
from bitsect.sources.models.paper import paper_network
from odd_models import BATCH, batch_of, close, eager, reference, same
from odd_models import one_thread as one_thread

transformers = pytest.importorskip("transformers")

PAPER = {"ResNet-50": "resnet50", "MobileNetV2": "mobilenetv2", "BERT-large": "bert-large"}
SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
TOKENS = {"vocab_size": 50, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
DECODER = {**SMALL, **TOKENS, "num_key_value_heads": 1, "max_position_embeddings": 32}


def lively(model: nn.Module) -> nn.Module:
    """`model` with convolutions that keep the size of what passes through them.

    As transformers draws them, MobileNet's activations shrink to denormal numbers, a hundred times slower.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight)
    return model.eval()


def images(size: int = 32) -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(BATCH, 3, size, size)}


def text(length: int = 12, **more: Tensor) -> dict[str, Tensor]:
    """Token ids, the second sample shorter than the first."""
    mask = torch.ones(BATCH, length, dtype=torch.long)
    mask[1, length // 2 :] = 0
    return {"input_ids": torch.randint(3, 50, (BATCH, length)) * mask, "attention_mask": mask, **more}


def paper_small(name: str) -> tuple[nn.Module, Any]:
    """The paper's architecture with weights and a small input; of BERT-large's 24 equal layers, two."""
    if name != "BERT-large":
        model, _ = paper_network(PAPER[name], device="cpu")
        return model, images()
    whole, _ = paper_network(PAPER[name])
    config = transformers.BertConfig.from_dict({**whole.config.to_dict(), "num_hidden_layers": 2})
    config._attn_implementation = whole.config._attn_implementation
    segments = torch.zeros(BATCH, 16, dtype=torch.long)
    return transformers.BertForQuestionAnswering(config), text(16, token_type_ids=segments)


def make(name: str) -> tuple[nn.Module, Any]:
    match name:
        case "ResNet":
            config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 2])
            return transformers.ResNetForImageClassification(config), images()
        case "MobileNetV2" | "ResNet-50" | "BERT-large":
            return paper_small(name)
        case "ViT":
            config = transformers.ViTConfig(**SMALL, image_size=32, patch_size=8)
            return transformers.ViTForImageClassification(config), images()
        case "Swin":
            config = transformers.SwinConfig(
                image_size=32, patch_size=4, embed_dim=8, depths=[2, 2], num_heads=[2, 2], window_size=4
            )
            return transformers.SwinForImageClassification(config), images()
        case "ConvNeXt":
            config = transformers.ConvNextConfig(hidden_sizes=[8, 16], depths=[1, 2], num_stages=2)
            return transformers.ConvNextForImageClassification(config), images()
        case "BERT":
            config = transformers.BertConfig(**SMALL, **TOKENS)
            segments = torch.zeros(BATCH, 12, dtype=torch.long)
            return transformers.BertForQuestionAnswering(config), text(token_type_ids=segments)
        case "DistilBERT":
            config = transformers.DistilBertConfig(dim=16, n_layers=2, n_heads=2, hidden_dim=32, **TOKENS)
            return transformers.DistilBertForSequenceClassification(config), text()
        case "RoBERTa":
            config = transformers.RobertaConfig(**SMALL, **TOKENS, max_position_embeddings=40)
            return transformers.RobertaForMaskedLM(config), text()
        case "T5 encoder":
            config = transformers.T5Config(
                d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, decoder_start_token_id=0, **TOKENS
            )
            return transformers.T5EncoderModel(config), text()
        case "GPT-2":  # returns its key-value cache, its head is tied to its embedding
            config = transformers.GPT2Config(n_embd=16, n_layer=2, n_head=2, n_positions=32, **TOKENS)
            return transformers.GPT2LMHeadModel(config), text()
        case "Llama":  # returns its cache, has grouped queries and rotary positions
            return transformers.LlamaForCausalLM(transformers.LlamaConfig(**DECODER)), text()
        case _:
            config = transformers.WhisperConfig(
                d_model=16,
                encoder_layers=2,
                encoder_attention_heads=2,
                encoder_ffn_dim=32,
                num_mel_bins=8,
                max_source_positions=12,
                decoder_start_token_id=0,
                **TOKENS,
            )
            encoder = transformers.models.whisper.modeling_whisper.WhisperEncoder
            return encoder(config), {"input_features": torch.randn(BATCH, 8, 24)}


# Layers: convolutions, linears, matmuls of two activations.
NETWORKS = {
    "ResNet": (11, 1, 0),
    "ResNet-50": (53, 1, 0),
    "MobileNetV2": (52, 1, 0),
    "ViT": (1, 2 * 6 + 1, 4),
    "Swin": (1, 4 * 6 + 1 + 1, 8),
    "ConvNeXt": (5, 3 * 2 + 1, 0),
    "BERT": (0, 2 * 6 + 1, 4),
    "BERT-large": (0, 2 * 6 + 1, 4),
    "DistilBERT": (0, 2 * 6 + 2, 4),
    "RoBERTa": (0, 2 * 6 + 2, 4),
    "T5 encoder": (0, 2 * 6, 4),
    "GPT-2": (0, 2 * 4 + 1, 4),
    "Llama": (0, 2 * 7 + 1, 4),
    "Whisper encoder": (2, 2 * 6, 4),
}


@cache
def network(name: str) -> tuple[nn.Module, Any, Program]:
    torch.manual_seed(0)
    model, example = make(name)
    return lively(model), example, capture(model, example)


@pytest.mark.parametrize("name", NETWORKS)
def test_layers_are_found_and_counted(name: str) -> None:
    model, example, program = network(name)
    kinds = [layer.kind for layer in program.layers]
    convolutions = sum(kind.startswith("conv") or kind == "depthwise" for kind in kinds)
    assert (convolutions, kinds.count("linear"), kinds.count("matmul")) == NETWORKS[name]
    assert len(kinds) == sum(NETWORKS[name])
    assert program.fixed_batch is None
    with FlopCounterMode(display=False) as counter:
        reference(model, example)
    macs = sum(layer.macs for layer in program.layers)
    assert counter.get_total_flops() == 2 * BATCH * macs
    assert all("embedding" in item.reason for item in program.skipped)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_float_run_is_the_network_bit_for_bit(name: str) -> None:
    model, example, program = network(name)
    inputs = batch_of(example, 3)
    output = program.run(inputs)
    assert type(output) is type(eager(model, inputs))
    assert same(output, reference(model, inputs))
    assert close(output, eager(model, inputs))
    names = [layer.name for layer in program.layers]
    if name not in PAPER:
        names = [names[0], names[len(names) // 2], names[-1]]
    _, states = program.run_keeping(inputs, names)
    for layer in names:
        assert same(program.run_from(layer, states[layer])[0], output)


def test_names_are_those_of_the_modules() -> None:
    for name in NETWORKS:
        model, _, program = network(name)
        modules = dict(model.named_modules())
        for layer in program.layers:
            owner = layer.name if layer.kind != "matmul" else layer.name.rpartition(".")[0]
            assert owner in modules, layer.name
            assert layer.kind != "matmul" or layer.name.endswith((".qk", ".av"))
    assert network("GPT-2")[2].layers[-1].name == "lm_head"


def test_gpt2_is_quantised_along_its_output_axis() -> None:
    program = network("GPT-2")[2]
    (multiply,) = (m for m in program.multiplies if m.layer == "transformer.h.0.attn.c_attn")
    assert multiply.weight is not None
    assert multiply.weight.layout is not None
    assert multiply.place.signature.operand == (16, 48)
    assert multiply.weight.layout.channels == (1,)


def test_a_cache_that_is_not_wanted_is_not_there() -> None:
    model, example, _ = network("Llama")
    inputs = {**example, "use_cache": False}
    program = capture(model, inputs)
    output = program.run(inputs)
    assert output.past_key_values is None
    assert same(output, reference(model, inputs))


def test_derivatives_reach_every_layer_of_an_attention() -> None:
    _, example, program = network("BERT")
    layers = [layer.name for layer in program.layers]
    derivative = program.differentiate(example, lambda output: output.start_logits.square().mean(), layers)
    generator = torch.Generator().manual_seed(0)
    ones = {
        layer: [torch.randn(v.shape, generator=generator) for v in derivative.variables[layer]]
        for layer in layers
    }
    products = derivative.product(ones)
    assert all(product.abs().max() > 0 for layer in layers for product in products[layer])
