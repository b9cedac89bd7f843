"""Saved torch.export programs, opened only after a look at everything that loading would execute."""

from __future__ import annotations

import logging
from pathlib import Path

import torch
from torch.export import ExportedProgram
from torch.export.pt2_archive import PT2ArchiveReader

from ...errors import BitsectError
from ...files import first_line, parse_json, reading
from .archive import SAVE, DamagedError, check_archive, check_checksums
from .vetting import UnsafeError, check_payloads, check_pickle, check_program

WEIGHTS, CONSTANTS, EXAMPLES, EXTRA = "data/weights/", "data/constants/", "data/sample_inputs/", "extra/"
BOOKKEEPING = ("archive_format", "archive_version", "byteorder", "version", ".data/", ".format_version")
NOT_AN_ARCHIVE = "not a .pt2 archive, an old one, or cut short; write it with torch.export.save"


def load_pt2(path: Path, *, trust: bool = False) -> ExportedProgram:
    """The program in `path`; a file that could run its author's code is refused unless `trust`."""
    if not path.is_file():
        raise BitsectError(f"{path}: no such file")
    try:
        with reading(path, what="saved program", way_out=SAVE):
            check_checksums(path) if trust else _check_file(path)
    except UnsafeError as error:
        raise BitsectError(
            f"{path}: {error}; loading it can run its author's code: pass [trust=True] if you know them"
        ) from None
    except DamagedError as error:
        raise BitsectError(f"{path}: {error}") from None
    log = logging.getLogger("torch.export")
    level, log.level = log.level, logging.CRITICAL
    try:
        return torch.export.load(path) if trust else _load(path)
    except Exception as error:
        raise BitsectError(
            f"{path}: torch.export cannot load it: {first_line(error)}; save it again with this torch"
        ) from error
    finally:
        log.level = level


def _load(path: Path) -> ExportedProgram:
    # Not torch.export.load: where this fails, that one goes on to a format that is all pickle.
    from torch.export.pt2_archive._package import load_pt2 as load_archive

    return next(iter(load_archive(str(path)).exported_programs.values()))


def _check_file(path: Path) -> None:
    """Refuse `path` if it is damaged, or if loading it could do anything else than make a program."""
    try:
        archive = PT2ArchiveReader(str(path))
    except (RuntimeError, AssertionError, UnicodeDecodeError):
        raise DamagedError(NOT_AN_ARCHIVE) from None
    sizes = check_archive(path, archive.read_bytes)
    if set(sizes) != set(archive.get_file_names()):
        raise DamagedError(NOT_AN_ARCHIVE)
    programs = [name for name in sizes if name.startswith("models/")]
    if len(programs) != 1:
        raise DamagedError(f"it holds {len(programs)} programs, not one")
    for name in sizes:
        _check_member(archive, name, sizes)


def _check_member(archive: PT2ArchiveReader, name: str, sizes: dict[str, int]) -> None:
    if name.startswith("models/"):
        check_program(parse_json(archive.read_bytes(name)))
    elif name.startswith((WEIGHTS, CONSTANTS)) and name.endswith("_config.json"):
        check_payloads(parse_json(archive.read_bytes(name)), name.rpartition("/")[0] + "/", sizes)
    elif name.startswith((WEIGHTS, CONSTANTS, EXAMPLES)) and name.endswith(".pt"):
        check_pickle(archive.read_bytes(name), name)
    elif name.startswith("data/aotinductor/"):
        raise UnsafeError(f"compiled code in {name}")
    elif not name.startswith((WEIGHTS, CONSTANTS, EXTRA, *BOOKKEEPING)):
        raise UnsafeError(f"it holds {name}, which is no part of a saved program")
