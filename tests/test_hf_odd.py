"""What nobody prepared: odd checkpoints, tables and batches are read rightly, or refused in one line."""

import csv
import json
import os
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bitsect
from bitsect.errors import BitsectError, DataError
from bitsect.runs.opening import open_run
from bitsect.sources.data import Samples, load_samples
from bitsect.sources.models.hf import load_hf, preparation_of, preparation_of_object
from bitsect.sources.preparation import Reading
from bitsect.values import Plan, Settings

transformers = pytest.importorskip("transformers")
from hf_models import TINY, TOKENS, VOCABULARY, distilbert, gpt2, tokenizer, vit  # noqa: E402


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return distilbert(tmp_path_factory.mktemp("distilbert"))[0]


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "copy"))


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "data.jsonl").read_text().splitlines()]


def read(folder: Path, data: object, **options: Any) -> Samples:
    """The samples as the network in `folder` reads them, in their order."""
    preparation = preparation_of(f"hf:{folder}")
    return load_samples(data, reading=Reading(preparation, preparation.task or "", **options))


def same(one: Samples, other: Samples) -> bool:
    assert torch.equal(one.source.lengths, other.source.lengths)
    assert torch.equal(one.labels, other.labels)
    return all(
        torch.equal(one.inputs(slice(row, row + 1))[name], value)
        for row in range(len(one))
        for name, value in other.inputs(slice(row, row + 1)).items()
    )


# Checkpoints.


def change_config(folder: Path, **entries: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))


def without_head(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    kept = {name: weight for name, weight in weights.items() if not name.startswith("classifier")}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})


def cut_short(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (without_head, r"holds no weights for 'classifier\.bias' and 1 more, which were never trained"),
        (cut_short, "no readable weights in safetensors"),
        (
            lambda folder: change_config(folder, hidden_dim=48),
            r"ffn\.lin1\.bias' is \(24,\) in the file and \(48,\) by config\.json",
        ),
        (lambda folder: change_config(folder, architectures=None), "does not say of which class"),
        (lambda folder: change_config(folder, architectures=["Nonesuch"]), "knows no 'Nonesuch'"),
        (lambda folder: change_config(folder, model_type="nonesuch"), "no readable configuration"),
        (lambda folder: change_config(folder, dim="wide"), "no readable configuration"),
    ],
)
def test_a_damaged_checkpoint_is_refused(damage: Callable[[Path], None], why: str, copy: Path) -> None:
    damage(copy)
    with pytest.raises(BitsectError, match=why):
        load_hf(f"hf:{copy}")


def test_shards_and_bfloat16_are_the_same_network(folder: Path, tmp_path: Path) -> None:
    whole, _ = load_hf(f"hf:{folder}")
    place = tmp_path / "at@home"  # an @ that begins no revision
    whole.save_pretrained(place, max_shard_size="3KB")
    shards = sorted(place.glob("*.safetensors"))
    assert len(shards) > 1
    parts, _ = load_hf(f"hf:{place}")
    for name, value in whole.state_dict().items():
        assert torch.equal(parts.state_dict()[name], value)
    shards[1].unlink()
    with pytest.raises(BitsectError, match=shards[1].name):
        load_hf(f"hf:{place}")
    whole.to(torch.bfloat16).save_pretrained(tmp_path / "half")
    half, _ = load_hf(f"hf:{tmp_path / 'half'}")
    assert {value.dtype for value in half.parameters()} == {torch.float32}


OWN_CODE = """
import torch
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput

class MyConfig(PretrainedConfig):
    model_type = "mine"

class MyModel(PreTrainedModel):
    config_class = MyConfig

    def __init__(self, config):
        super().__init__(config)
        self.words, self.head = torch.nn.Embedding(40, 8), torch.nn.Linear(8, 2)
        self.post_init()

    def forward(self, input_ids, attention_mask=None):
        return SequenceClassifierOutput(logits=self.head(self.words(input_ids).mean(1)))
"""


def test_the_class_of_an_author_needs_trust_and_says_its_task(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    own: dict[str, Any] = {"__name__": "modeling_mine"}
    exec(OWN_CODE, own)
    place = tmp_path / "own"
    own["MyModel"](own["MyConfig"]()).save_pretrained(place)
    (place / "modeling_mine.py").write_text(OWN_CODE)
    tokenizer().save_pretrained(place)
    auto = {"AutoConfig": "MyConfig", "AutoModelForSequenceClassification": "MyModel"}
    change_config(place, auto_map={name: f"modeling_mine.{each}" for name, each in auto.items()})
    with pytest.raises(BitsectError, match="runs code of its author"):
        load_hf(f"hf:{place}")
    with open_run(f"hf:{place}", rows_of(folder), Settings(threads=1), trust=True) as run:
        assert run.task.name == "classification"
        assert [layer.name for layer in run.layers] == ["head"]


def test_what_writes_texts_of_its_own_is_said(folder: Path, tmp_path: Path) -> None:
    config = transformers.T5Config(
        vocab_size=len(VOCABULARY), d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2
    )
    transformers.T5ForConditionalGeneration(config).save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    with pytest.raises(DataError, match="T5ForConditionalGeneration goes on with a text that no file holds"):
        read(tmp_path, rows_of(folder))


def test_networks_of_images_take_no_texts_and_the_other_way_round(folder: Path, tmp_path: Path) -> None:
    network, images = vit(tmp_path)
    with pytest.raises(DataError, match="takes pixel_values, which a file of texts does not hold"):
        read(network, rows_of(folder))
    with pytest.raises(DataError, match=r"is a folder, of images; hf:.* takes texts"):
        read(folder, str(images))


def test_a_folder_that_is_no_run_may_be_a_network(folder: Path) -> None:
    with pytest.raises(BitsectError, match=f"give hf:{folder}"):
        open_run(str(folder))


# Tokens.


def test_padding_is_taken_off_however_it_comes(folder: Path, tmp_path: Path) -> None:
    """Filled up to one length on either side: in a batch, in a loader, in rows and in a file."""
    rows, padded = rows_of(folder), {}
    for side in ("left", "right"):
        tokens = tokenizer()
        tokens.padding_side = side
        texts = [row["sentence"] for row in rows]
        padded[side] = dict(tokens(texts, padding="max_length", max_length=20, return_tensors="np"))
    labels = np.array([row["label"] for row in rows])
    plain = read(folder, rows)
    for encoded in padded.values():
        batch = {**{name: torch.from_numpy(value) for name, value in encoded.items()}, "labels": labels}
        halves = [{name: value[part] for name, value in batch.items()} for part in (slice(8), slice(8, 16))]
        lists = [
            {**{name: value[row].tolist() for name, value in encoded.items()}, "label": row_["label"]}
            for row, row_ in enumerate(rows)
        ]
        np.savez(tmp_path / "padded.npz", **encoded, labels=labels)
        for data in (batch, halves, lists, str(tmp_path / "padded.npz")):
            assert same(read(folder, data), plain)


def test_padding_at_one_length_changes_no_range(folder: Path) -> None:
    rows, tokens = rows_of(folder), tokenizer()
    encoded = dict(
        tokens([row["sentence"] for row in rows], padding="max_length", max_length=20, return_tensors="pt")
    )
    batch = {**encoded, "labels": torch.tensor([row["label"] for row in rows])}
    found = []
    for data in (rows, batch):
        with open_run(f"hf:{folder}", data, Settings(threads=1, batch_size=4)) as run:
            found.append(run.ranges().table)
    assert found[0] == found[1]


def test_tokens_that_the_network_does_not_know(folder: Path, tmp_path: Path) -> None:
    foreign = {"input_ids": [2, len(VOCABULARY), 3], "attention_mask": [1, 1, 1], "labels": 1}
    with pytest.raises(DataError, match="row 0 has the token 30, the network knows 0 to 29"):
        read(folder, [foreign])
    long = {"input_ids": [2] * 65, "attention_mask": [1] * 65, "labels": 1}
    with pytest.raises(DataError, match="row 0 has 65 tokens, the network takes 64"):
        read(folder, [long])
    model, _ = load_hf(f"hf:{folder}")
    preparation = preparation_of_object(model, None)
    assert preparation is not None
    with pytest.raises(DataError, match="sample 0 has the token 99"):
        load_samples({"input_ids": torch.full((2, 3), 99)}, reading=Reading(preparation))


def test_positions_that_begin_after_padding_are_fewer(tmp_path: Path) -> None:
    config = transformers.RobertaConfig(
        **TINY, vocab_size=len(VOCABULARY), max_position_embeddings=20, pad_token_id=1
    )
    config.architectures = ["RobertaForSequenceClassification"]
    config.save_pretrained(tmp_path)
    tokenizer(longest=10**30).save_pretrained(tmp_path)
    assert preparation_of(f"hf:{tmp_path}").longest == 18
    with pytest.raises(DataError, match="row 0 has 19 tokens, the network takes 18"):
        read(tmp_path, [{"text": "cat " * 17, "label": 0}])


# Tables.


def test_quotes_lines_and_marks_inside_a_text(folder: Path, tmp_path: Path) -> None:
    texts = ['the "cat", sat\non the mat', "a dog\r\nran", "old\u2028bird\x85 and\x0bnew"]
    path = tmp_path / "TABLE.CSV"
    with path.open("w", newline="", encoding="utf-8-sig") as file:
        writer = csv.writer(file)
        writer.writerow(["sentence", "label", "comment"])
        writer.writerows([text, number % 2, "-"] for number, text in enumerate(texts))
    expected = read(folder, [{"sentence": text, "label": n % 2} for n, text in enumerate(texts)])
    assert same(read(folder, str(path)), expected)
    with path.open("a", newline="") as file:
        file.write("the cat,green,-\n")
    with pytest.raises(DataError, match="line 7: label 'green' is no class"):
        read(folder, str(path))


def test_a_text_as_long_as_a_book(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "long.csv"
    path.write_text(f"text,label\n{'cat ' * 50_000},1\n")
    assert int(read(folder, str(path), max_length=16).source.lengths[0]) == 16
    assert csv.field_size_limit() == 131_072


@pytest.mark.parametrize("data", [["the cat"], [("the cat", 1)]])
def test_texts_that_are_no_rows(data: object, folder: Path) -> None:
    with pytest.raises(DataError, match="give texts as a list of dictionaries"):
        read(folder, data)


def test_an_answer_is_found_where_its_place_is_wrong() -> None:
    config = transformers.BertConfig(**TINY, **TOKENS)
    model = transformers.BertForQuestionAnswering(config)
    preparation = preparation_of_object(model, tokenizer())
    assert preparation is not None
    labels = []
    for start in (2, 999, 0):
        row = {
            "question": "the cat ?",
            "context": "a dog sat",
            "answers": {"text": ["dog"], "answer_start": [start]},
        }
        samples = load_samples([row], reading=Reading(preparation, "question-answering"))
        assert samples.labels is not None
        labels.append(samples.labels[0, :4].tolist())
    assert labels[0] == labels[1] == labels[2] == [6, 0, 6, 0]


# Language models, with rounded weights alone.


def test_two_weight_only_formats_in_one_file(tmp_path: Path) -> None:
    """GPT-2 holds its weights transposed; its files run, and both formats end in kernels for few bits."""
    model, data = gpt2(tmp_path / "model")
    result = bitsect.quantize(
        f"hf:{model}",
        str(data),
        target=0.5,
        metric="sqnr",
        formats="w8a16,w4a16g128",
        keep=["first=w8a16", "last=w4a16g128"],
        confidence=None,
        destination="bits",
        threads=1,
        batch_size=4,
    )
    counts = result.plan.counts
    assert counts["float"] == 2  # the products of two activations, which have no weights
    assert counts["w8a16"] >= 1
    assert counts["w4a16g128"] >= 1
    delivery = result.export(tmp_path / "model.onnx")
    assert delivery.proof.holds
    assert delivery.proof.kernels is not None
    assert delivery.proof.kernels["MatMulNBits"] == counts["w8a16"] + counts["w4a16g128"] == 5
    assert delivery.proof.runtime_accuracy == pytest.approx(result.accuracy, abs=1e-4)


def test_a_language_model_is_judged_without_padding(tmp_path: Path) -> None:
    """Perplexity text by text, as slowly as can be."""
    folder, _ = gpt2(tmp_path / "model")
    texts = ["the cat sat", "a dog ran under the old tree", "fish swam"]
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    tokens = transformers.AutoTokenizer.from_pretrained(folder)
    slow = []
    for text in texts:
        ids = tokens(text, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            slow.append(float(model(input_ids=ids, labels=ids).loss))
    rows = [{"text": text} for text in texts]
    with open_run(f"hf:{folder}", rows, Settings(threads=1)) as run:
        evaluation = run.evaluator(None)(Plan.uniform(run.layers))
    assert evaluation.loss == pytest.approx(np.mean(slow), rel=1e-5)


@pytest.mark.parametrize(
    ("claims", "said"),
    [
        ({"n_layers": 10_000_000}, "n_layers 10000000, and its weight files hold 512 tensors"),
        ({"n_layers": 600.0}, "n_layers 600, and its weight files hold 512 tensors"),
        ({"num_labels": 100_000_000}, "num_labels 100000000, and its weight files hold 100,000 numbers"),
        ({"dim": 10**9}, "dim 1000000000, and"),
        ({"vocab_size": 10**30}, "vocab_size 1e\\+30, and"),
        ({"sub": {"deep": [{"hidden_size": 10**8}]}}, "hidden_size 100000000, and"),
        ({"dim": 50_000, "n_heads": 2}, "the network of config.json has [0-9,]+ weights, and its files hold"),
        ({"max_position_embeddings": 10**7}, "the network of config.json has [0-9,]+ weights"),
    ],
)
def test_a_configuration_that_claims_more_than_its_weights_is_refused_before_it_is_built(
    claims: dict[str, Any], said: str, copy: Path
) -> None:
    config = json.loads((copy / "config.json").read_text())
    config.pop("id2label", None)
    config.pop("label2id", None)
    (copy / "config.json").write_text(json.dumps({**config, **claims}))
    began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(BitsectError, match=said) as caught:
        load_hf(f"hf:{copy}")
    assert "\n" not in str(caught.value)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - began < 200_000  # kB


def test_a_tokenizer_that_gives_up_is_told(copy: Path, tmp_path: Path) -> None:
    """A pattern that takes longer with every letter, which its library gives up on."""
    made = json.loads((copy / "tokenizer.json").read_text())
    pattern = {"type": "Split", "pattern": {"Regex": r"(a+)+$|(\w+\s?)+z"}, "behavior": "Isolated"}
    (copy / "tokenizer.json").write_text(json.dumps({**made, "pre_tokenizer": {**pattern, "invert": False}}))
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"sentence": "a" * 60 + " b", "label": 0}) + "\n")
    with pytest.raises(BitsectError, match="its tokenizer gives up on a text of"):
        bitsect.evaluate(f"hf:{copy}", str(rows))


@pytest.mark.parametrize("name", ["../outside.safetensors", "/tmp/outside.safetensors", "a/../../b", ".."])
def test_weights_outside_of_their_folder_are_refused(copy: Path, name: str) -> None:
    (copy / "model.safetensors").rename(copy.parent / "outside.safetensors")
    index = {"metadata": {}, "weight_map": {"bert.embeddings": name}}
    (copy / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(BitsectError, match=f"'{name}' is no file of its folder"):
        load_hf(f"hf:{copy}")


def test_weights_that_are_no_file_are_refused(copy: Path) -> None:
    (copy / "model.safetensors").unlink()
    os.mkfifo(copy / "model.safetensors")
    with pytest.raises(BitsectError, match=r"model.safetensors: no file, and weights are read from files"):
        load_hf(f"hf:{copy}")


def test_a_configuration_without_weights_has_limits_too(copy: Path) -> None:
    """As that of a tokenizer's folder, whose network is not loaded."""
    config = json.loads((copy / "config.json").read_text())
    (copy / "model.safetensors").unlink()
    assert preparation_of(f"hf:{copy}").task is not None
    (copy / "config.json").write_text(json.dumps({**config, "num_labels": 10**8}))
    with pytest.raises(BitsectError, match="num_labels 100000000, and no network has more than 10,000,000"):
        preparation_of(f"hf:{copy}")
