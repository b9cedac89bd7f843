"""The run folder under torn writes, flipped bytes, second processes and `kill -9`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from bitsect.errors import BitsectError, RunError
from bitsect.pipeline.methods import noted_in
from bitsect.runs.disk import write_bytes, write_text
from bitsect.runs.folder import LOCK, VERSION, Arrays, Journal, RunFolder
from bitsect.values import FLOAT, INT4, INT8, Plan

calm = settings(max_examples=20)
HERE = Path(__file__).parent


def same(one: Arrays, other: Arrays) -> bool:
    return one.keys() == other.keys() and all(
        a.dtype == (b := other[name]).dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
        for name, a in one.items()
    )


def records() -> dict[str, Arrays]:
    return {
        "0/float": {"task": np.arange(3.0), "signal": np.array([[1, 2]], dtype=np.int64)},
        "0/1": {},
        "ключ": {"é": np.float32([np.inf, -0.0])},
        "last": {"x": np.arange(6, dtype=np.float16).reshape(2, 3)},
    }


def written(path: Path) -> dict[str, Arrays]:
    journal = Journal(path)
    for key, piece in records().items():
        journal[key] = piece
    return records()


# Journals

DTYPES = st.sampled_from(["f8", "f4", "f2", "i8", "i4", "u1", "?"])


@calm
@given(
    pieces=st.dictionaries(
        st.text(min_size=1, max_size=20),
        st.dictionaries(
            st.text("abc_1", min_size=1, max_size=5),
            DTYPES.flatmap(
                lambda dtype: arrays(
                    dtype, array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
                ).filter(lambda array: not np.isnan(array).any())
            ),
            max_size=3,
        ),
        max_size=5,
    )
)
def test_what_is_kept_comes_back_as_it_was(pieces: dict[str, Arrays], tmp_path_factory: Any) -> None:
    path = tmp_path_factory.mktemp("journal") / "new" / "pairs.journal"
    journal = Journal(path)
    for key, piece in pieces.items():
        journal[key] = piece
        assert same(journal[key], piece)
    for again in (journal, Journal(path)):
        assert list(again) == list(pieces)
        assert len(again) == len(pieces)
        assert all(same(again[key], piece) for key, piece in pieces.items())
        assert "no such key" not in again
        with pytest.raises(KeyError):
            again["no such key"]


def test_views_and_transposes_are_kept_as_what_they_show(tmp_path: Path) -> None:
    base = np.arange(24.0).reshape(4, 6)
    pieces = {
        "a": base.T,
        "b": base[::2, 1::3],
        "c": np.broadcast_to(np.float64(3), (2, 2)),
        "d": np.array(5.0),
    }
    journal = Journal(tmp_path / "a.journal")
    journal["views"] = pieces
    assert same(Journal(journal.path)["views"], {name: np.array(view) for name, view in pieces.items()})


def test_the_last_of_two_records_of_a_key_counts(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "a.journal")
    for number in (1.0, 2.0):
        journal["key"] = {"x": np.array([number])}
    for again in (journal, Journal(journal.path)):
        assert len(again) == 1
        assert again["key"]["x"][0] == 2
    with pytest.raises(TypeError, match="forgets nothing"):
        del journal["key"]


def test_torn_at_every_byte_only_whole_records_remain_and_appending_works(tmp_path: Path) -> None:
    expected = written(tmp_path / "whole.journal")
    whole = (tmp_path / "whole.journal").read_bytes()
    (header, *ends), path = _ends(whole), tmp_path / "torn.journal"
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        journal = Journal(path)
        kept = [key for key, end in zip(expected, ends, strict=True) if end <= length]
        assert list(journal) == kept
        assert path.stat().st_size == max([header, *(end for end in ends if end <= length)])
        journal["more"] = {"x": np.array([length])}
        again = Journal(path)
        assert list(again) == [*kept, "more"]
        assert again["more"]["x"].tolist() == [length]
        assert all(same(again[key], expected[key]) for key in kept)


def test_any_flipped_byte_costs_its_record_and_those_after_it_never_a_crash(tmp_path: Path) -> None:
    expected = written(tmp_path / "whole.journal")
    whole = (tmp_path / "whole.journal").read_bytes()
    (header, *ends), path = _ends(whole), tmp_path / "flipped.journal"
    for place in range(len(whole)):
        for flip in (0x01, 0xFF):
            flipped = whole[:place] + bytes([whole[place] ^ flip]) + whole[place + 1 :]
            path.write_bytes(flipped)
            if place < header:
                with pytest.raises(RunError, match="is of another run, or damaged: move it away"):
                    Journal(path)
                assert path.read_bytes() == flipped
                continue
            journal = Journal(path)
            kept = [key for key, end in zip(expected, ends, strict=True) if end <= place]
            assert list(journal) == kept
    journal["more"] = {"x": np.ones(1)}
    assert list(Journal(path)) == [*kept, "more"]


def test_what_follows_a_cut_is_not_taken_for_records(tmp_path: Path) -> None:
    """Zeros, as a file system leaves them after a crash, and bytes of anything else."""
    expected = written(tmp_path / "a.journal")
    whole = (tmp_path / "a.journal").read_bytes()
    for rest in (b"\0" * 100, b"bsj3" + b"\xff" * 100, os.urandom(50)):
        (tmp_path / "a.journal").write_bytes(whole + rest)
        assert list(Journal(tmp_path / "a.journal")) == list(expected)
        assert (tmp_path / "a.journal").read_bytes() == whole


def _ends(whole: bytes) -> list[int]:
    """Where header and records end, by the words of the format: 16 bytes of head, the last 8 a length."""
    ends, at = [], 0
    while at < len(whole):
        at += 16 + int.from_bytes(whole[at + 8 : at + 16], "little")
        ends.append(at)
    assert ends[-1] == len(whole)
    return ends


OF = {"run": "one", "journal": "evaluated"}


def forged(path: Path, kept: dict[str, Arrays], of: dict[str, str]) -> bytes:
    """The records of `kept` as a journal `of` something holds them, without its header."""
    journal = Journal(path, of)
    start = path.stat().st_size
    for key, piece in kept.items():
        journal[key] = piece
    journal.close()
    return path.read_bytes()[start:]


def test_records_of_another_run_or_journal_are_dropped(tmp_path: Path) -> None:
    kept = {"0": {"score": np.ones(4)}}
    for number, other in enumerate(({"run": "other"}, {"journal": "other"}, {"samples": "other"})):
        path = tmp_path / f"{number}.journal"
        mine = forged(path, kept, OF)
        foreign = forged(tmp_path / f"other-{number}", {"64": {"score": np.zeros(4)}}, OF | other)
        whole = path.read_bytes()
        path.write_bytes(whole + foreign)
        assert list(Journal(path, OF)) == ["0"]
        assert path.read_bytes() == whole
        path.write_bytes(whole[: -len(mine)] + foreign + mine)  # what follows is not trusted either
        assert not Journal(path, OF)


def test_arrays_of_two_keys_exchanged_are_dropped(tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    records = forged(path, {"0": {"score": np.ones(4)}, "6": {"score": np.zeros(4)}}, OF)
    whole, half = path.read_bytes(), len(records) // 2
    one, two, head = records[:half], records[half:], 16 + 3  # a key of one letter after its length
    for check in (lambda record: record[4:8], lambda record: zlib.crc32(record[16:]).to_bytes(4, "little")):
        swapped = [one[:head] + two[head:], two[:head] + one[head:]]
        swapped = [record[:4] + check(record) + record[8:] for record in swapped]
        path.write_bytes(whole[: -len(records)] + b"".join(swapped))
        assert not Journal(path, OF)


def test_what_is_no_number_is_neither_kept_nor_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path / "a.journal")
    broken = {"score": np.array([1.0, np.nan])}
    with pytest.raises(RunError, match=r"'0' is no number \(NaN\)"):
        journal["0"] = broken
    assert not Journal(journal.path)
    with monkeypatch.context() as patch:
        patch.setattr("bitsect.runs.folder._has_nan", lambda arrays: False)
        journal["0"] = broken
    with pytest.raises(RunError, match=r"a\.journal.*'0' holds NaN.*pass fresh=True"):
        Journal(journal.path)["0"]


def test_a_write_that_fails_midway_leaves_a_journal_that_works(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "a.journal")
    journal["before"] = {"x": np.ones(3)}
    file = journal._file

    class Full:
        def write(self, data: bytes) -> int:
            file.write(data[: len(data) // 2])
            file.flush()
            raise OSError(28, "No space left on device")

        def __getattr__(self, name: str) -> Any:
            return getattr(file, name)

    journal._file = Full()  # type: ignore[assignment]
    with pytest.raises(RunError, match=r"cannot be written \(.*No space left on device\)"):
        journal["lost"] = {"x": np.ones(1000)}
    assert "lost" not in journal
    journal._file = file
    journal["after"] = {"x": np.zeros(2)}
    again = Journal(journal.path)
    assert list(again) == ["before", "after"]
    assert again["after"]["x"].tolist() == [0, 0]


# Folders

IDENTITY = {
    "model_fingerprint": "f" * 64,
    "batch_size": 64,
    "data_options": {"samples": 8},
}


def test_a_claimed_folder_is_the_run_of_what_claimed_it(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "deep" / "run")
    assert not RunFolder.is_run(folder.path)
    folder.claim(IDENTITY)
    folder.claim(IDENTITY)
    assert RunFolder.is_run(folder.path)
    folder.journal("pairs")["0"] = {"x": np.ones(1)}
    assert folder.journal("pairs") is folder.journal("pairs")
    folder.close()
    again = RunFolder(tmp_path / "deep" / "run")
    again.claim(IDENTITY)
    assert again.journal("pairs")["0"]["x"] == 1


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model_fingerprint": "e" * 64}, "another network, or other weights of it"),
        ({"batch_size": 32}, "batch size 64, not 32"),
        ({"data_options": {"samples": 9}}, r'data options {"samples": 8}, not {"samples": 9}'),
        ({"threads": 2}, "threads null, not 2"),
    ],
)
def test_another_run_is_refused_with_what_changed_and_both_ways_out(
    tmp_path: Path, changed: dict[str, Any], message: str
) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.claim(IDENTITY)
    way_out = "quantize starts it anew with fresh=True, or makes another with out='FOLDER'"
    with pytest.raises(RunError, match=f"run was made with {message}: {way_out}"):
        folder.claim({**IDENTITY, **changed})
    assert json.loads((tmp_path / "run" / "run.json").read_text())["batch_size"] == 64


def test_a_run_is_removed_alone_and_not_through_links(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept.json").write_text("mine")
    folder = RunFolder(tmp_path / "run")
    folder.claim(IDENTITY)
    folder.journal("pairs")["0"] = {}
    folder.write_plain("plans/99-percent.json", {})
    RunFolder(folder.inside("under-paper"), "of").write_json("ranges.json", {})
    mine = ["my-notes.txt", "journals/notes.txt", "under-construction/plan.json"]
    for name in mine:
        (folder.path / name).parent.mkdir(exist_ok=True)
        (folder.path / name).write_text("mine")
    for name in ("link", "results", "scores-a-int8.json"):
        (folder.path / name).symlink_to(outside)
    folder.clear()
    left = {str(item.relative_to(folder.path)) for item in folder.path.rglob("*") if item.is_file()}
    assert left == {LOCK, *mine}
    assert (folder.path / "link").is_symlink()
    assert (outside / "kept.json").read_text() == "mine"
    folder.claim({**IDENTITY, "batch_size": 1})
    assert not folder.journal("pairs")


def test_run_json_is_the_last_to_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Journals without it could be taken for those of another run."""
    folder = RunFolder(tmp_path / "run")
    folder.claim(IDENTITY)
    folder.journal("pairs")["0"] = {}
    removed: list[str] = []
    unlink = Path.unlink
    monkeypatch.setattr(Path, "unlink", lambda path, **_: (removed.append(path.name), unlink(path))[1])
    folder.clear()
    assert removed == ["pairs.journal", "run.json"]


@pytest.mark.parametrize("other", [{"run": "other"}, {"journal": "single"}, {"samples": "others"}])
def test_a_journal_of_something_else_is_refused_and_left_as_it_is(
    tmp_path: Path, other: dict[str, str]
) -> None:
    of = {"run": "one", "journal": "pairs", "samples": "some"}
    Journal(tmp_path / "a.journal", of)["0"] = {"x": np.ones(1)}
    before = (tmp_path / "a.journal").read_bytes()
    with pytest.raises(RunError, match=r"a\.journal is of another run"):
        Journal(tmp_path / "a.journal", of | other)
    assert (tmp_path / "a.journal").read_bytes() == before
    assert Journal(tmp_path / "a.journal", of)["0"]["x"] == 1


def test_journals_without_their_run_json_are_not_adopted_by_another_run(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.claim(IDENTITY)
    folder.journal("pairs")["0"] = {"x": np.ones(1)}
    folder.close()
    (folder.path / "run.json").unlink()
    other = RunFolder(folder.path)
    with pytest.raises(
        RunError, match=r"pairs\.journal is of another run, whose run.json is gone.*fresh=True"
    ):
        other.claim({**IDENTITY, "batch_size": 1})
    assert not RunFolder.is_run(other.path)
    other.claim(IDENTITY)  # they are its own
    assert other.journal("pairs")["0"]["x"] == 1


def test_a_folder_that_became_another_run_is_not_gone_on_with(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.claim(IDENTITY)
    folder.close()
    other = RunFolder(tmp_path / "run")
    other.clear()
    other.claim({**IDENTITY, "batch_size": 1})
    other.close()
    with pytest.raises(RunError, match=r"run\.json is of another run"):
        RunFolder(tmp_path / "run", folder.run)


# Links


@pytest.mark.parametrize("name", ["journals", "journals/pairs.journal"])
def test_no_journal_is_written_through_a_link(tmp_path: Path, name: str) -> None:
    victim = tmp_path / "victim"
    folder = RunFolder(tmp_path / "run")
    folder.claim(IDENTITY)
    (folder.path / name).parent.mkdir(exist_ok=True)
    if name == "journals":
        victim.mkdir()
    else:
        victim.write_text("mine")
    (folder.path / name).symlink_to(victim)
    with pytest.raises(RunError, match="is a link: a run keeps its files in its own folder; remove it"):
        folder.journal("pairs")
    assert list(victim.iterdir()) == [] if victim.is_dir() else victim.read_text() == "mine"


def test_no_other_file_is_written_or_read_through_a_link(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "victim").write_text("mine")
    folder = RunFolder(tmp_path / "run")
    folder.claim(IDENTITY)
    for name in ("ranges.json", "plan.json", f".result.json.{os.getpid()}.tmp"):
        (folder.path / name).symlink_to(outside / "victim")
    for name in ("plans", "under-paper"):
        (folder.path / name).symlink_to(outside)
    for work in (
        lambda: folder.read_json("ranges.json"),
        lambda: folder.write_json("ranges.json", {}),
        lambda: folder.write_plain("plan.json", {}),
        lambda: folder.write_plain("plans/99-percent.json", {}),
        lambda: folder.write_plain("../plan.json", {}),
        lambda: folder.inside("under-paper"),
    ):
        with pytest.raises(RunError, match="is a link"):
            work()
    folder.write_json("result.json", {})
    folder.close()
    (folder.path / LOCK).unlink()
    (folder.path / LOCK).symlink_to(outside / "lock")
    with pytest.raises(RunError, match=r"\.bitsect\.lock cannot be opened \(a link\)"):
        RunFolder(folder.path)
    assert [item.name for item in outside.iterdir()] == ["victim"]
    assert (outside / "victim").read_text() == "mine"


def test_what_is_no_ordinary_file_is_not_waited_for(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    os.mkfifo(folder.path / "ranges.json")
    with pytest.raises(RunError, match="not a file, but a pipe or a device"):
        folder.read_json("ranges.json")


def test_nothing_is_written_through_a_hard_link(tmp_path: Path) -> None:
    """Another name of a file elsewhere: whoever appends to it, or takes off a line's end, changes that."""
    folder = RunFolder(tmp_path / "run")
    folder.claim(IDENTITY)
    (folder.path / "journals").mkdir()
    victim = tmp_path / "victim"
    for name, work in {
        "plans.jsonl": lambda: folder.note_plan(Plan({"a": INT8})),
        "journals/pairs.journal": lambda: folder.journal("pairs"),
    }.items():
        for text in ("a line without its end", ""):
            victim.write_text(text)
            (folder.path / name).unlink(missing_ok=True)
            (folder.path / name).hardlink_to(victim)
            with pytest.raises(RunError, match=rf"{name} cannot be opened \(a hard link"):
                work()
            assert victim.read_text() == text
    (folder.path / "ranges.json").hardlink_to(victim)
    folder.write_json("ranges.json", {})  # in its place, not through it
    assert victim.read_text() == ""


@pytest.mark.parametrize(
    "name", ["plan.json", "plans/x.json", "run.json", "plans.jsonl", "journals/a.journal"]
)
def test_a_pipe_in_the_place_of_a_file_keeps_nobody_waiting(tmp_path: Path, name: str) -> None:
    folder = RunFolder(tmp_path / "run")
    path = folder.path / name
    path.parent.mkdir(exist_ok=True)
    os.mkfifo(path)
    for work in (
        lambda: folder.read_plan(name),
        lambda: folder.read_json(name),
        lambda: Journal(path),
        folder.noted_plans if name == "plans.jsonl" else lambda: Plan.read(path, []),
    ):
        with pytest.raises(BitsectError, match=r"a pipe or a device|No such device or address"):
            work()


# Damage


def test_a_file_under_another_name_is_refused(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.claim(IDENTITY)
    folder.write_json("ranges.json", {"x": 1})
    (folder.path / "result.json").write_bytes((folder.path / "ranges.json").read_bytes())
    with pytest.raises(RunError, match=r"result\.json is damaged, or was edited: remove it"):
        folder.read_json("result.json")


def test_a_byte_order_mark_changes_nothing(tmp_path: Path) -> None:
    """Editors on Windows put one in front of what they save."""
    folder = RunFolder(tmp_path / "run")
    folder.claim(IDENTITY, method="paper")
    folder.write_plain("plan.json", Plan({"a": INT8}).to_json())
    for path in (folder.path / "run.json", folder.path / "plan.json"):
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert noted_in(folder.path, "method") == "paper"
    assert (
        folder.read_json("run.json") == {"bitsect": "run", "version": VERSION, "method": "paper"} | IDENTITY
    )
    assert folder.read_plan("plan.json") == Plan({"a": INT8}).to_json()


def test_any_flipped_bit_in_a_json_file_is_seen(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.claim(IDENTITY)
    folder.write_json("ranges.json", {"tensors": {"stem": {"8": [1.5, True]}}, "ключ": None})
    path = folder.path / "ranges.json"
    whole = path.read_bytes()
    for place in range(len(whole) - 1):  # the last is a line's end
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        with pytest.raises(RunError, match=r"ranges\.json.* remove it, and the same command makes it again"):
            folder.read_json("ranges.json")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 200_000, "nested too deeply"),
        ("[]", "expected an object, not a list"),
        ("5", "expected an object, not a int"),
        ("", "not JSON"),
        ("\xff", "damaged|cannot be read"),
        ('{"x": NaN, "checksum": "0"}', "NaN is no number in JSON"),
        ('{"x": 1}', "is damaged, or was edited"),
        (" " * (2**26 + 1), "larger than 64 MB"),
    ],
)
def test_json_that_is_none_of_ours_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    folder = RunFolder(tmp_path / "run")
    (folder.path / "ranges.json").write_text(text, encoding="latin-1")
    with pytest.raises(RunError, match=rf"ranges\.json.*({message})"):
        folder.read_json("ranges.json")


def test_json_of_another_run_is_refused(tmp_path: Path) -> None:
    one, other = RunFolder(tmp_path / "one"), RunFolder(tmp_path / "other")
    one.claim(IDENTITY)
    other.claim({**IDENTITY, "batch_size": 1})
    one.write_json("ranges.json", {"x": 1})
    (other.path / "ranges.json").write_bytes((one.path / "ranges.json").read_bytes())
    with pytest.raises(RunError, match=r"ranges\.json is of another run: remove it"):
        other.read_json("ranges.json")


def test_what_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(BitsectError, match=r"/dev/full/x cannot be written"):
        write_text(Path("/dev/full/x"), "text")
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"file/run cannot be a run's folder: Not a directory"):
        RunFolder(tmp_path / "file" / "run")


@pytest.mark.parametrize("name", ["thesis.txt", "run.json", ".hidden"])
def test_a_folder_of_something_else_is_refused_and_left_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text('{"scripts": {"start": "node ."}}')
    with pytest.raises(RunError, match="holds something else than a run: choose an empty or new folder"):
        RunFolder(tmp_path)
    assert [item.name for item in tmp_path.iterdir()] == [name]


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="is a file: a run needs a folder"):
        RunFolder(tmp_path / "file")


def test_a_run_that_was_killed_before_it_was_claimed_can_go_on(tmp_path: Path) -> None:
    """With the lock alone, a half-written run.json beside its name, or a model saved already."""
    path = tmp_path / "run"
    RunFolder(path)
    (path / ".run.json.123.tmp").write_text('{"bitse')
    (path / "model.pt2").write_bytes(b"model")
    folder = RunFolder(path)
    folder.claim(IDENTITY)
    assert sorted(item.name for item in path.iterdir()) == [LOCK, "model.pt2", "run.json"]


def test_a_run_copied_without_its_lock_is_a_run(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.claim(IDENTITY)
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "run.json").write_bytes((tmp_path / "run" / "run.json").read_bytes())
    RunFolder(tmp_path / "copy").claim(IDENTITY)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON.*pass fresh=True"),
        ("[]", "expected an object.*pass fresh=True"),
        ('{"version": 0}', "another version of bitsect, which is not read: pass fresh=True"),
    ],
)
def test_a_run_json_that_is_not_ours_any_more(tmp_path: Path, text: str, message: str) -> None:
    folder = RunFolder(tmp_path / "run")
    (folder.path / "run.json").write_text(text)
    with pytest.raises(RunError, match=message):
        folder.claim(IDENTITY)


def test_json_is_written_whole_and_never_holds_nan(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.write_json("ranges.json", {"ключ": 1.5})
    assert folder.read_json("ranges.json") == {"ключ": 1.5}
    with pytest.raises(ValueError):
        folder.write_json("ranges.json", {"x": float("nan")})
    assert folder.read_json("ranges.json") == {"ключ": 1.5}
    assert folder.read_json("nothing.json") is None
    write_text(tmp_path / "new" / "plan.json", "é")
    write_bytes(tmp_path / "new" / "plan.json", b"again")
    assert [item.read_bytes() for item in (tmp_path / "new").iterdir()] == [b"again"]


# Other processes


def run_python(script: str, *arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path]),
    }
    return subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        **options,
    )


OPEN = """
import sys
import zlib
from pathlib import Path
from bitsect.errors import RunError
from bitsect.runs.folder import RunFolder
try:
    RunFolder(Path(sys.argv[1]))
except RunError as error:
    sys.exit(str(error))
"""


def test_a_second_process_is_refused_while_the_first_is_there(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    refused = run_python(OPEN, folder.path)
    assert refused.returncode == 1
    assert refused.stderr.strip() == (
        f"{folder.path}: another bitsect is working in this run; wait for it, or use another folder"
    )
    with pytest.raises(RunError, match="another bitsect is working"):
        RunFolder(folder.path)
    folder.close()
    assert run_python(OPEN, tmp_path / "run").returncode == 0


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    holding = (
        OPEN.replace("    RunFolder(", "    kept = RunFolder(")
        + "print('open', flush=True)\nimport time; time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", holding, str(tmp_path / "run")], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"open\n"
        with pytest.raises(RunError, match="another bitsect is working"):
            RunFolder(tmp_path / "run")
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    RunFolder(tmp_path / "run")


# It measures in children of its own, so that torch is loaded but once. Each is killed in the middle of a
# seeded write: how busy the machine is changes nothing.
KILLED = """
import os, random, signal, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from tiny import residual_context
from bitsect.measure.pairs import exact_pairs
from bitsect.measure.traces import hessian_traces
from bitsect.measure.work import fill
from bitsect.runs.folder import Journal
from bitsect.values import INT8

context = residual_context(12)
folder, kills = Path(sys.argv[1]), 0

def work(name):
    fill(Journal(folder / name / "pairs.journal"), exact_pairs(context, INT8))
    hessian_traces(context, lambda _: Journal(folder / name / "traces.journal"), probes=4, tolerance=0.0)

def die_in(left, part):
    # Be killed in the write that comes after so many, with this part of it on disk.
    whole = Journal._write

    def write(journal, place, data):
        nonlocal left
        left -= 1
        whole(journal, place, data if left else data[: int(part * len(data))])
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

    Journal._write = write

work("whole")
moments = random.Random(0)
while True:
    left, part = moments.randint(1, 8), moments.choice((0.0, moments.random(), 1.0))
    child = os.fork()
    if child == 0:
        die_in(left, part)
        work("killed")
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status):
        assert os.WEXITSTATUS(status) == 0
        break
    kills += 1
    print(*(len(Journal(path)) for path in (folder / "killed").glob("*.journal")))
"""


def test_killed_in_any_write_and_resumed_it_comes_to_the_same_bytes(tmp_path: Path) -> None:
    done = run_python(KILLED, tmp_path)
    assert done.returncode == 0, done.stderr
    steps = [sum(map(int, line.split())) for line in done.stdout.splitlines()]
    assert len(steps) >= 5
    assert steps == sorted(steps)
    partial = [count for count in steps if 0 < count < 3 * 9 + 3 * 4]
    assert len(set(partial)) >= 2  # some were killed in the middle of their work
    for name, count in (("pairs", 3 * 9), ("traces", 3 * 4)):
        whole, killed = (Journal(tmp_path / way / f"{name}.journal") for way in ("whole", "killed"))
        assert len(whole) == count
        assert whole.keys() == killed.keys()
        assert all(same(piece, killed[key]) for key, piece in whole.items())


def test_a_plan_whose_line_was_cut_short_is_noted_again(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.claim(IDENTITY)
    plans = [Plan({"a": format}) for format in (FLOAT, INT8, INT4)]
    for plan in (*plans, plans[0]):
        folder.note_plan(plan)
    whole = (folder.path / "plans.jsonl").read_bytes()
    assert [json.loads(line)["key"] for line in whole.splitlines()] == [plan.key for plan in plans]
    folder.close()
    for lost in (1, 9):
        (folder.path / "plans.jsonl").write_bytes(whole[:-lost])
        folder = RunFolder(tmp_path / "run")
        folder.note_plan(plans[2])
        folder.close()
        assert (folder.path / "plans.jsonl").read_bytes() == whole
