"""Saved torch.export programs, opened only after a look at what loading would unpickle."""

from __future__ import annotations

import io
import json
import logging
import pickle
import zipfile
from pathlib import Path

import torch
from torch.export import ExportedProgram

from ..errors import BitsectError


def load_pt2(path: Path, *, trust: bool = False) -> ExportedProgram:
    """The program in `path`; entries that would run pickled code are refused unless `trust`."""
    if not path.is_file():
        raise BitsectError(f"{path}: no such file")
    try:
        with zipfile.ZipFile(path) as archive:
            unsafe = _unsafe_entry(archive)
    except zipfile.BadZipFile:
        raise BitsectError(
            f"{path}: not a .pt2 archive, or cut short; write it with torch.export.save"
        ) from None
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError, AttributeError) as error:
        raise BitsectError(f"{path}: its archive config cannot be read ({error}); save it again") from None
    if unsafe is not None and not trust:
        raise BitsectError(
            f"{path}: {unsafe}; loading it can run its author's code: pass --trust if you know them"
        )
    log = logging.getLogger("torch.export")
    level, log.level = log.level, logging.ERROR
    try:
        return torch.export.load(path)
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise BitsectError(
            f"{path}: torch.export cannot load it: {reason}; save it again with this torch"
        ) from error
    finally:
        log.level = level


def _unsafe_entry(archive: zipfile.ZipFile) -> str | None:
    """What in the archive would be unpickled or executed, in words; None if nothing."""
    names = archive.namelist()
    if len(names) != len(set(names)):
        return "two entries share a name"
    if not any(name.endswith("/archive_format") for name in names):
        return "an old format whose tensors are pickled"
    for name in names:
        if "/data/aotinductor/" in name:
            return f"compiled code in {name}"
        if name.endswith("_config.json") and ("/data/weights/" in name or "/data/constants/" in name):
            for entry, payload in json.loads(archive.read(name))["config"].items():
                if payload["use_pickle"]:
                    return f"'{entry}' is pickled"
        if "/data/sample_inputs/" in name:
            try:
                torch.load(io.BytesIO(archive.read(name)), weights_only=True)
            except (pickle.UnpicklingError, RuntimeError, EOFError):
                return "its sample inputs are pickled objects"
    return None
