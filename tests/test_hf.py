"""Networks of transformers, from a folder to a written model; texts and images as files hold them."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import bitsect
from bitsect.cli import main
from bitsect.errors import BitsectError
from bitsect.measure.evaluator import Evaluator
from bitsect.rounding.ranges import calibrate
from bitsect.runs.opening import open_run
from bitsect.sources.models.hf import ModelPlace, load_hf, preparation_of
from bitsect.sources.tasks.task import task_named
from bitsect.values import Plan, Settings

transformers = pytest.importorskip("transformers")
from hf_models import NETWORKS, distilbert, sentences, tokenizer  # noqa: E402

TASKS = {
    "bert_questions": "question-answering",
    "bert_tokens": "token-classification",
    "t5_encoder": "features",
    "whisper_encoder": "features",
    "clip": "features",
    "gpt2": "language-modelling",
    "llama": "language-modelling",
    "qwen": "language-modelling",
}


FORMATS = {"llama": "w8a16", "qwen": "w4a16g128"}  # int8 for all others


@pytest.mark.parametrize("name", NETWORKS)
def test_from_a_folder_to_a_file_that_runs(name: str, tmp_path: Path) -> None:
    model, data = NETWORKS[name](tmp_path / name)
    format = FORMATS.get(name, "int8")
    result = bitsect.quantize(
        f"hf:{model}",
        str(data),
        target=0.3,
        metric="sqnr",
        formats=format,
        destination="bits",
        placement="onnxruntime",
        confidence=None if data.suffix == ".txt" else 0.95,  # so short a text is one block
        threads=1,
        batch_size=4,
        out=tmp_path / "run",
    )
    assert result.run.task.name == TASKS.get(name, "classification")
    assert result.plan.counts[format] > 0
    assert 0 < result.float_accuracy <= 1
    delivery = result.export(tmp_path / "model.onnx")
    assert delivery.proof.holds
    assert delivery.proof.runtime_accuracy == pytest.approx(result.accuracy, abs=0.01)
    if format != "int8":
        assert delivery.proof.kernels is not None
        assert delivery.proof.kernels["MatMulNBits"] == result.plan.counts[format] == 8
    evaluated = bitsect.evaluate(str(tmp_path / "run"))  # the folder works alone: it finds the network again
    assert evaluated.plan.evaluation.accuracy == pytest.approx(result.accuracy)


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return distilbert(tmp_path_factory.mktemp("distilbert"))


def test_the_float_network_is_that_of_transformers(texts: tuple[Path, Path]) -> None:
    """Sentence by sentence, without any padding, as slowly as can be."""
    folder, data = texts
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokens = transformers.AutoTokenizer.from_pretrained(folder)
    right = 0
    for line in data.read_text().splitlines():
        row = json.loads(line)
        encoded = tokens(row["sentence"], return_tensors="pt")
        inputs = {name: encoded[name] for name in ("input_ids", "attention_mask")}
        right += int(model(**inputs).logits.argmax()) == row["label"]
    with open_run(f"hf:{folder}", str(data), Settings(threads=1, batch_size=3)) as run:
        evaluation = run.evaluator(None)(Plan.uniform(run.layers))
    assert evaluation.correct == right


def test_padding_sets_no_range_no_score_and_no_loss(texts: tuple[Path, Path], tmp_path: Path) -> None:
    """One long sentence among short ones changes nothing of what is known of the short ones."""
    folder, _ = texts
    short = [{"sentence": text, "label": 0} for text in sentences(9, seed=5, longest=6)]
    long = {"sentence": " ".join(["cat"] * 40), "label": 1}
    found = []
    for name, rows in (("short", short), ("both", [*short, long])):
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        with open_run(f"hf:{folder}", str(path), Settings(threads=1, batch_size=4)) as run:
            assert run.program.any_length
            order = [run.samples.name(index).partition("line ")[2] for index in range(len(run.samples))]
            kept = torch.tensor([index for index, line in enumerate(order) if line != "10"])
            kept = kept[torch.argsort(torch.tensor([int(order[index]) for index in kept]))]
            few = run.samples.select(kept)
            for batch in few.batches(4):
                assert bool(batch.inputs["attention_mask"].all())
            ranges = calibrate(run.program, few, run.settings)
            judged = Evaluator(run.program, None, few, task_named("classification"), batch_size=1)
            judged(Plan.uniform(run.layers))
            losses = [judged.done[f"{Plan.uniform(run.layers).key}/{start}"]["loss"] for start in range(9)]
            found.append((ranges.table, np.concatenate(losses)))
    for name, widths in found[0][0].items():
        others = found[1][0][name]
        for bits, known in widths.items():
            assert known.amax == pytest.approx(others[bits].amax, rel=1e-5)
    assert np.allclose(found[0][1], found[1][1], rtol=1e-5)


def test_batches_hold_one_length_each_and_every_sample_once(texts: tuple[Path, Path]) -> None:
    folder, data = texts
    with open_run(f"hf:{folder}", str(data), Settings(threads=1)) as run:
        lengths = run.samples.source.lengths
        parts = run.samples.parts(3)
    assert lengths is not None
    assert all(len(lengths[part].unique()) == 1 and len(part) <= 3 for part in parts)
    assert sorted(torch.cat(parts).tolist()) == list(range(len(lengths)))


def test_python_takes_a_network_with_rows_a_dataset_or_a_collator(texts: tuple[Path, Path]) -> None:
    folder, data = texts
    datasets = pytest.importorskip("datasets")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    tokens = transformers.AutoTokenizer.from_pretrained(folder)
    rows = [json.loads(line) for line in data.read_text().splitlines()]
    dataset = datasets.Dataset.from_list(rows)
    tokenized = dataset.map(lambda row: {**tokens(row["sentence"]), "labels": row["label"]})
    collate = transformers.DataCollatorWithPadding(tokens)
    columns = ["input_ids", "attention_mask", "labels"]
    loader = torch.utils.data.DataLoader(
        tokenized.select_columns(columns), batch_size=5, collate_fn=lambda part: dict(collate(part))
    )
    options = {"target": 0.3, "metric": "sqnr", "formats": "int8", "threads": 1, "destination": "bits"}
    expected = bitsect.quantize(f"hf:{folder}", str(data), **options)
    for given in (rows, dataset, tokenized, loader):
        processor = tokens if given in (rows, dataset) else None
        result = bitsect.quantize(model, given, processor=processor, **options)
        assert result.float_accuracy == expected.float_accuracy
        assert result.run.program.any_length


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ("hf:", "expected hf:FOLDER"),
        ("hf:./nowhere", "no such folder"),
        ("hf:{tmp}", "holds no config.json"),
        ("hf:someone/that-does-not-exist", "neither a folder here nor found on the Hugging Face hub"),
    ],
)
def test_names_that_are_no_network(
    spec: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(BitsectError, match=why):
        load_hf(spec.format(tmp=tmp_path))


def test_what_could_run_code_needs_trust(texts: tuple[Path, Path], tmp_path: Path) -> None:
    folder, _ = texts
    weights = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    pickled = tmp_path / "pickled"
    pickled.mkdir()
    weights.config.save_pretrained(pickled)
    torch.save(weights.state_dict(), pickled / "pytorch_model.bin")
    with pytest.raises(BitsectError, match="no readable weights in safetensors"):
        load_hf(f"hf:{pickled}")
    own = json.loads((pickled / "config.json").read_text()) | {"auto_map": {"AutoModel": "mine.Model"}}
    (pickled / "config.json").write_text(json.dumps(own))
    with pytest.raises(BitsectError, match="runs code of its author"):
        load_hf(f"hf:{pickled}")


def test_half_precision_runs_in_float32(texts: tuple[Path, Path], tmp_path: Path) -> None:
    folder, _ = texts
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float16)
    model.save_pretrained(tmp_path / "half")
    loaded, _ = load_hf(f"hf:{tmp_path / 'half'}")
    assert {parameter.dtype for parameter in loaded.parameters()} == {torch.float32}


def test_tasks_follow_the_class_and_its_configuration(tmp_path: Path) -> None:
    config = transformers.BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, vocab_size=9)
    for change, task in (
        ({"num_labels": 1}, "regression"),
        ({"num_labels": 3, "problem_type": "multi_label_classification"}, "multi-label"),
        ({"num_labels": 3}, "classification"),
    ):
        each = transformers.BertConfig(**{**config.to_dict(), **change})
        each.architectures = ["BertForSequenceClassification"]
        each.save_pretrained(tmp_path)
        assert preparation_of(f"hf:{tmp_path}").task == task
    assert ModelPlace.of("hf:someone/model@v2").revision == "v2"


# Bad data: the file and the line are named.


def _bad(path: Path, content: bytes | str) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


GOOD = "sentence\tlabel\n" + "".join(f"the cat sat\t{number % 2}\n" for number in range(50))


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("a.tsv", "words\ttopic\nthe cat\t1\n", r"a\.tsv: which column is the text\? It has words, topic"),
        ("a.tsv", GOOD.encode() + b"caf\xe9\t1\n", r"a\.tsv: line 52: byte 0xe9 is no UTF-8"),
        (
            "a.tsv",
            GOOD + " ".join(["cat"] * 99) + "\t1\n",
            r"a\.tsv: line 52 has 101 tokens, the network takes 64",
        ),
        ("a.tsv", "", r"a\.tsv: holds no samples"),
        ("a.tsv", "sentence\tlabel\n", r"a\.tsv: holds no samples"),
        ("a.tsv", GOOD + "the cat\n" + "the dog\t1\n", r"a\.tsv: line 52: 1 columns, where the header has 2"),
        ("a.tsv", GOOD + "the cat\tgreen\n", r"a\.tsv: line 52: label 'green' is no class"),
        ("a.tsv", GOOD + "the cat\t7\n", r"a\.tsv: line 52 has label 7, but the network has 2 classes"),
        ("a.jsonl", '{"text": "a", "label": 1}\n{"text": "a"\n', r"a\.jsonl: line 2: not JSON"),
        ("a.jsonl", '{"text": "a", "label": 1}\n{"text": "a"}\n', r"a\.jsonl: line 2 has no 'label'"),
        (
            "a.jsonl",
            '{"text": "a", "label": 1}\n{"text": 5, "label": 1}\n',
            r"line 2: 'text', the text, is a int",
        ),
        ("a.jsonl", '{"text": "a", "label": 1}\n[1]\n', r"a\.jsonl: line 2: a list, not an object"),
        (
            "a.json",
            '{"data": [{"paragraphs": [{"qas": []}, 3]}]}',
            r"a\.json: article 0: not as SQuAD has it",
        ),
        ("a.json", '{"data": [', r"a\.json: line 1: not JSON"),
        ("a.csv", 'sentence,label\n"the cat,1\n', r"a\.csv: line 2: "),
    ],
)
def test_bad_data_is_named_by_file_and_line(
    name: str, content: str, why: str, texts: tuple[Path, Path], tmp_path: Path
) -> None:
    path = _bad(tmp_path / name, content)
    with (
        pytest.raises(BitsectError, match=why),
        open_run(f"hf:{texts[0]}", str(path), Settings(threads=1)) as run,
    ):
        run.evaluator(None)(Plan.uniform(run.layers))


def test_the_command_ends_with_one_line_and_exit_code_1(
    texts: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = _bad(tmp_path / "bad.tsv", GOOD + "the cat\tgreen\n")
    asked = ["bitsect", "evaluate", f"hf:{texts[0]}", "--data", str(path)]
    monkeypatch.setattr(sys, "argv", asked)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert "bad.tsv: line 52: label 'green' is no class" in said.err.replace("\n", " ")
    assert "Traceback" not in said.err


def test_one_broken_row_of_ten_thousand_is_named(texts: tuple[Path, Path], tmp_path: Path) -> None:
    lines = ["the cat sat\t1"] * 10_000
    lines[7_654] = "the cat"
    path = _bad(tmp_path / "large.tsv", "\n".join(["sentence\tlabel", *lines]))
    with pytest.raises(BitsectError, match=r"large\.tsv: line 7656: 1 columns"):
        open_run(f"hf:{texts[0]}", str(path))


def test_texts_are_cut_only_where_that_is_asked_for(texts: tuple[Path, Path], tmp_path: Path) -> None:
    path = _bad(tmp_path / "long.tsv", GOOD + " ".join(["cat"] * 99) + "\t1\n")
    with open_run(f"hf:{texts[0]}", str(path), Settings(threads=1, max_length=12)) as run:
        assert int(run.samples.source.lengths.max()) == 12


def test_another_column_and_a_wrong_one(texts: tuple[Path, Path], tmp_path: Path) -> None:
    path = _bad(tmp_path / "own.csv", "words,topic\nthe cat,1\na dog,0\n")
    settings = Settings(threads=1, columns="text=words,label=topic")
    with open_run(f"hf:{texts[0]}", str(path), settings) as run:
        assert run.samples.labels is not None
        assert sorted(run.samples.labels.tolist()) == [0, 1]
    with pytest.raises(BitsectError, match="has no column 'lyrics' for the text, only words, topic"):
        open_run(f"hf:{texts[0]}", str(path), Settings(columns="text=lyrics"))
    with pytest.raises(BitsectError, match="expected ROLE=NAME"):
        open_run(f"hf:{texts[0]}", str(path), Settings(columns="words"))


def test_the_wrong_task_is_refused_in_one_line(texts: tuple[Path, Path]) -> None:
    for task, why in (
        ("token-classification", "which column is the tokens"),
        ("question-answering", "which column is the question"),
        ("segmentation", "no single float"),
        ("multi-label", "is no list of classes"),
    ):
        with (
            pytest.raises(BitsectError, match=why),
            open_run(f"hf:{texts[0]}", str(texts[1]), Settings(task=task, threads=1)) as run,
        ):
            run.evaluator(None)(Plan.uniform(run.layers))


def test_a_tokenizer_that_is_missing_is_said(tmp_path: Path, texts: tuple[Path, Path]) -> None:
    folder, data = texts
    alone = tmp_path / "alone"
    transformers.AutoModelForSequenceClassification.from_pretrained(folder).save_pretrained(alone)
    with pytest.raises(BitsectError, match="texts need the tokenizer of the network"):
        open_run(f"hf:{alone}", str(data))
    tokenizer().save_pretrained(tmp_path / "tokens")
    (tmp_path / "tokens" / "config.json").write_text((folder / "config.json").read_text())
    with open_run(f"hf:{alone}", str(data), Settings(processor=f"hf:{tmp_path / 'tokens'}")) as run:
        assert len(run.samples) == 16


def test_draws_of_texts_are_read_as_the_run_reads_them(texts: tuple[Path, Path], tmp_path: Path) -> None:
    """Other seeds and another method's rounding need the tokenizer of the network too."""
    folder, data = texts
    options = {"draw": 8, "threads": 1, "batch_size": 4, "method": "paper", "metric": "random"}
    bitsect.sensitivity(f"hf:{folder}", str(data), out=tmp_path / "run", **options)
    found = bitsect.compare(
        tmp_path / "run",
        methods="paper,bitsect",
        metrics="random",
        targets="50%",
        draws=2,
        test_data=str(data),
    )
    assert {(trial.setup.method, trial.draw) for trial in found.trials} == {
        (method, draw) for method in ("paper", "bitsect") for draw in (0, 1)
    }
    assert all(trial.test_accuracy is not None for trial in found.trials)
