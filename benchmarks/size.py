"""What large networks take: time and memory of capture, calibration and scores.

`python benchmarks/size.py bert-large|decoder-1b --folder DIR [--samples N] [--tokens N] [--pairs] [--export]`
`python benchmarks/size.py depth [--json]`

The networks have the shapes of BERT-large (for SQuAD) and of a decoder of 1.1 billion weights, with random
ones; they are written to DIR once, as `save_pretrained` does in bfloat16, and read from there as `hf:DIR`.
Every stage is what `quantize` does: the float network judged, ranges, the damage of each layer alone, and
with `--pairs` the linear estimate of all pairs of layers. `--export` writes a file with all layers in the
format instead, beside one in float, and runs both; `decoder-0.6b` is half as deep. `peak_gb` is the largest
resident size of the process up to the end of a stage. `depth` captures encoders of several depths: seconds
by layer say whether time stays linear.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import bitsect
from bitsect.network.capture import capture
from bitsect.runs.opening import open_run
from bitsect.values import Format, Plan, Scoring, Settings

WORDS = 30522  # that the tokenizers know
DEPTHS = (6, 12, 24, 48, 96)


def bert_large() -> nn.Module:
    from transformers import BertConfig, BertForQuestionAnswering

    config = BertConfig(
        hidden_size=1024,
        num_hidden_layers=24,
        num_attention_heads=16,
        intermediate_size=4096,
        vocab_size=WORDS,
    )
    return BertForQuestionAnswering(config)


def decoder(blocks: int = 22) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=2048,
        intermediate_size=5632,
        num_hidden_layers=blocks,
        num_attention_heads=32,
        num_key_value_heads=4,
        max_position_embeddings=2048,
        vocab_size=32000,
        dtype=torch.bfloat16,
    )
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    model = model.to(torch.bfloat16).to_empty(device="cpu")
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data.normal_(0, 0.02, generator=generator)
        else:
            parameter.data.fill_(1)
    return model


NETWORKS = {"bert-large": bert_large, "decoder-1b": decoder, "decoder-0.6b": lambda: decoder(11)}
FORMATS = {"bert-large": "int8", "decoder-1b": "w4a16g128", "decoder-0.6b": "w4a16g128"}


def written(name: str, folder: Path) -> Path:
    """The folder that holds the network with a tokenizer of made-up words; made if it is not there."""
    if not (folder / "tokenizer.json").exists():
        from tokenizers import Tokenizer, models, pre_tokenizers
        from transformers import PreTrainedTokenizerFast

        torch.manual_seed(0)
        NETWORKS[name]().to(torch.bfloat16).save_pretrained(folder)
        words = {f"w{number}": number for number in range(WORDS)}
        tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="w0", pad_token="w0").save_pretrained(
            folder
        )
    return folder


def texts_for(name: str, folder: Path, count: int, tokens: int) -> Path:
    """A file of random words: running text, or questions of eight words with contexts for the rest."""
    rows = torch.randint(1, WORDS, (count, tokens), generator=torch.Generator().manual_seed(0)).tolist()
    texts = [[f"w{number}" for number in row] for row in rows]
    if name != "bert-large":
        path = folder / "text.txt"
        path.write_text("\n".join(" ".join(words) for words in texts))
        return path
    paragraphs = []
    for number, words in enumerate(texts):
        answers = [{"text": words[8], "answer_start": 0}]
        question = {"id": str(number), "question": " ".join(words[:8]), "answers": answers}
        paragraphs.append({"context": " ".join(words[8:]), "qas": [question]})
    path = folder / "questions.json"
    path.write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    return path


def peak_gb() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1e9 if sys.platform == "darwin" else 1e6)


class Stages:
    """What every stage took."""

    def __init__(self) -> None:
        self.took: dict[str, dict[str, float]] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        start = time.perf_counter(), time.process_time()
        yield
        wall, cpu = time.perf_counter() - start[0], time.process_time() - start[1]
        self.took[name] = {
            "seconds": round(wall, 1),
            "cpu_seconds": round(cpu, 1),
            "peak_gb": round(peak_gb(), 2),
        }
        print(
            f"{name:12} {wall:8.1f} s  {cpu:8.1f} CPU s  peak {peak_gb():6.2f} GB",
            file=sys.stderr,
            flush=True,
        )


def measured(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    stages = Stages()
    folder = written(name, arguments.folder)
    data = texts_for(name, folder, arguments.samples, arguments.tokens)
    format = Format.parse(arguments.format or FORMATS[name])
    settings = Settings(threads=arguments.threads, max_length=arguments.tokens)
    with stages("open"):
        run = open_run(f"hf:{folder}", str(data), settings, out=folder / "run", fresh=True)
    with run:
        count, weights = len(run.layers), sum(layer.weights for layer in run.layers)
        with stages("float"):
            run.evaluator(None)(Plan.uniform(run.layers))
        with stages("calibrate"):
            run.calibrate([format])
        if not arguments.export:
            with stages("damage"):
                run.damage([(layer.name, format) for layer in run.layers if format.rounds(layer)])
        if arguments.pairs:
            with stages("linear pairs"):
                run.score(Scoring(metric="interlayer", pairs="linear", loss="kl"), format)
        rows = run.batch_size
    sizes = {}
    if arguments.export:
        del run  # with its copies of the weights
        with stages("export"):
            made = bitsect.export(folder / "run", folder / "model.onnx", format=str(format), force=True)
        sizes = {
            "file_bytes": made.written.size_bytes,
            "kernels": made.proof.kernels,
            "proven": made.proof.holds,
        }
    return {
        "network": name,
        "layers": count,
        "weights": weights,
        "format": str(format),
        "samples": arguments.samples,
        "tokens": arguments.tokens,
        "batch_size": rows,
        "threads": arguments.threads,
        "stages": stages.took,
        **sizes,
    }


def depths() -> dict[str, Any]:
    """CPU seconds to capture encoders of several depths, each eight layers a block."""
    from transformers import BertConfig, BertModel

    found = {}
    for depth in (2, *DEPTHS):  # the first warms up
        config = BertConfig(
            hidden_size=32,
            num_hidden_layers=depth,
            num_attention_heads=2,
            intermediate_size=64,
            vocab_size=50,
        )
        model = BertModel(config, add_pooling_layer=False).eval()
        model.set_attn_implementation("eager")
        ids = torch.ones(2, 16, dtype=torch.long)
        start = time.process_time()
        program = capture(model, {"input_ids": ids, "attention_mask": ids}, sequences=True)
        took = time.process_time() - start
        layers = len(program.layers)
        found[layers] = {"cpu_seconds": round(took, 2), "ms_per_layer": round(1000 * took / layers, 1)}
        print(
            f"{layers:4} layers {took:7.2f} CPU s  {1000 * took / layers:6.1f} ms each",
            file=sys.stderr,
            flush=True,
        )
    return {"capture": found}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("network", choices=(*NETWORKS, "depth"))
    parser.add_argument("--folder", type=Path, help="where the network is, or is written to")
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--format")
    parser.add_argument("--pairs", action="store_true", help="estimate the losses of all pairs of layers too")
    parser.add_argument("--export", action="store_true", help="instead of scores, write and prove a file")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.network == "depth":
        report = depths()
    elif arguments.folder is None:
        parser.error("--folder says where the network is written to")
    else:
        report = measured(arguments.network, arguments)
    if arguments.json:
        print(json.dumps(report))


if __name__ == "__main__":
    main()
