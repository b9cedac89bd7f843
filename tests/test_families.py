"""Samples that may be wrong together: found in tables, texts and folders, split whole, counted as one."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import bitsect
import hf_models
from bitsect.errors import BitsectError, DataError, OptionError
from bitsect.solve.confidence import split
from bitsect.sources.data.families import PIECES
from bitsect.sources.data.load import load_samples
from bitsect.sources.preparation import Reading


def test_whole_families_are_on_one_side() -> None:
    families = np.random.default_rng(0).integers(0, 60, 900)
    searched, held = split(900, 3, families)
    assert sorted([*searched, *held]) == list(range(900))
    assert not set(families[searched]) & set(families[held])
    assert abs(len(searched) - 256) <= 15
    assert (split(900, 4, families)[0][:50] != searched[:50]).any()
    assert len(split(8, 0, [5] * 8)[1]) == 0  # one family cannot be parted


@pytest.fixture
def films(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for film in range(12):
        folder = tmp_path / "films" / str(film % 2)
        folder.mkdir(parents=True, exist_ok=True)
        for frame in range(5):
            pixels = rng.integers(0, 255, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"film{film}-frame{frame}.png")
    return tmp_path / "films"


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.head = torch.nn.Conv2d(3, 4, 3), torch.nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.conv(x).relu().mean((2, 3)))  # type: ignore[no-any-return]


def test_frames_of_a_film_are_one_piece_of_evidence(films: Path) -> None:
    samples = load_samples(str(films), seed=0, reading=Reading(group_by=r"film(\d+)-"))
    assert samples.families is not None
    assert len(set(samples.families.tolist())) == 12
    for index in range(len(samples)):
        same = [k for k in range(len(samples)) if samples.families[k] == samples.families[index]]
        assert len(same) == 5
        assert len({Path(samples.name(k)).name.split("-")[0] for k in same}) == 1
    result = bitsect.quantize(
        Net(), str(films), target=0.9, destination="bits", keep="*=int8", group_by=r"film(\d+)-"
    )
    assert result.promise is not None
    assert result.promise.samples == 30  # six films of five frames
    assert not result.promise.proven  # of six films little is
    assert any("6 groups of held-out samples" in note for note in result.notes)


def test_what_cannot_be_grouped_is_refused(films: Path) -> None:
    options = {"target": 0.5, "destination": "bits", "formats": "int8"}
    for pattern, why in (("(", "no regular expression"), ("clip", "not found in its path")):
        with pytest.raises((OptionError, DataError), match=why):
            bitsect.quantize(Net(), str(films), group_by=pattern, **options)
    with pytest.raises(DataError, match="one group of samples"):
        bitsect.quantize(Net(), str(films), group_by="film", **options)
    tensors = torch.randn(20, 3, 8, 8), torch.zeros(20, dtype=torch.int64)
    with pytest.raises(DataError, match="no columns to group by 'film'"):
        bitsect.quantize(Net(), tensors, group_by="film", **options)


def test_questions_about_one_article_are_a_family(tmp_path: Path) -> None:
    def question(number: int) -> dict[str, object]:
        return {"id": str(number), "question": "what ?", "answers": [{"text": "a", "answer_start": 0}]}

    articles = [
        {"title": f"title {k}", "paragraphs": [{"context": "a b", "qas": [question(k), question(k + 50)]}]}
        for k in range(3)
    ]
    path = tmp_path / "squad.json"
    path.write_text(json.dumps({"data": articles}))
    from bitsect.sources.data.records import read_records
    from bitsect.sources.room import ANY

    rows = read_records(path, "squad.json", ANY).rows
    assert [row["title"] for row in rows] == [f"title {k}" for k in (0, 0, 1, 1, 2, 2)]


def test_a_table_is_grouped_by_a_column_that_it_has(tmp_path: Path) -> None:
    folder, data = hf_models.distilbert(tmp_path / "model")
    rows = [json.loads(line) for line in data.read_text().splitlines()]
    path = tmp_path / "grouped.jsonl"
    path.write_text("".join(json.dumps({**row, "writer": k % 7}) + "\n" for k, row in enumerate(rows)))
    asked = {"target": 0.5, "destination": "bits", "formats": "int8"}
    with pytest.raises(BitsectError, match=re.escape("has no column 'author' to group by, only")):
        bitsect.quantize(f"hf:{folder}", str(path), group_by="author", **asked)
    result = bitsect.quantize(f"hf:{folder}", str(path), group_by="writer", **asked)
    held = result.run.held_out
    assert held is not None
    assert held.families is not None
    assert result.run.samples.families is not None
    assert not set(held.families.tolist()) & set(result.run.samples.families.tolist())


# Language models


def test_pieces_of_one_text_are_split_by_blocks_and_a_target_may_be_one_of_perplexity(tmp_path: Path) -> None:
    folder, data = hf_models.gpt2(tmp_path / "model")
    asked = {"destination": "bits", "formats": "int8", "max_length": 8}
    result = bitsect.quantize(f"hf:{folder}", str(data), max_perplexity="1.5x", out=tmp_path / "run", **asked)
    assert str(result.target) == "perplexity 1.5x"
    assert result.promise is not None
    assert result.promise.seen.startswith("perplexity ")
    assert "x, at most" in result.promise.seen
    held = result.run.held_out
    assert held is not None
    assert held.families is not None
    assert (torch.bincount(held.families)[held.families.unique()] == PIECES).sum() >= len(
        held.families.unique()
    ) - 1
    again = bitsect.quantize(tmp_path / "run")  # as it was asked
    assert again.target == result.target
    with pytest.raises(OptionError, match="for the task language-modelling"):
        bitsect.quantize(
            Net(), torch.randn(40, 3, 8, 8), max_perplexity="1.01x", destination="bits", formats="int8"
        )
    with pytest.raises(BitsectError, match="multiple above 1"):
        bitsect.quantize(f"hf:{folder}", str(data), max_perplexity="0.9x", **asked)
    with pytest.raises(OptionError, match="pass one of"):
        bitsect.quantize(f"hf:{folder}", str(data), max_perplexity="1.1x", target="99%", **asked)
    shared = bitsect.quantize(f"hf:{folder}", str(data), target="90%", **asked)
    assert any("lets its perplexity rise by" in note for note in shared.notes)
