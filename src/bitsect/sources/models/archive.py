"""The archive of a .pt2 file: which members it has, and that each is whole."""

from __future__ import annotations

import zipfile
import zlib
from collections import Counter
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

from ...errors import BitsectError

ENCRYPTED = 0x1  # flag of a member
SAVE = "save it again with torch.export.save"
DAMAGED = "its bytes do not fit their checksum: the file is damaged, copy or save it again"


class DamagedError(BitsectError):
    """An archive that is not what torch wrote; the caller says which file."""


def check_archive(source: Path | BytesIO, read: Callable[[str], bytes] | None = None) -> dict[str, int]:
    """The size of each member by its name, after a look at every byte; the archive's own folder is left out.

    torch.save compresses nothing, so no member may be larger than the file, and torch checks no checksums.
    `read` gives a member as torch itself sees it, so that nothing else than what torch reads is checked.
    """
    sizes: dict[str, int] = {}
    with zipfile.ZipFile(source) as archive:
        twice = [name for name, count in Counter(archive.namelist()).items() if count > 1]
        if twice:
            raise DamagedError(f"two members are called {twice[0].partition('/')[2]}: {SAVE}")
        for info in archive.infolist():
            _, _, member = info.filename.partition("/")
            if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & ENCRYPTED:
                raise DamagedError(f"{member} is compressed or encrypted: {SAVE}")
            data = archive.read(info) if read is None else read(member)
            if zlib.crc32(data) != info.CRC or len(data) != info.file_size:
                raise DamagedError(f"{member}: {DAMAGED}")
            sizes[member] = len(data)
    return sizes


def check_checksums(path: Path) -> None:
    """Refuse an archive of any kind if a member is not what was written."""
    with zipfile.ZipFile(path) as archive:
        damaged = archive.testzip()
    if damaged is not None:
        raise DamagedError(f"{damaged}: {DAMAGED}")
