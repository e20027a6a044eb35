"""Fixtures: archives of files that an earlier version wrote, and a manifest of their expected contents.

    expected = unpack("data-directory", tmp_path)   # its part of the manifest
    server = ServerProcess(tmp_path)                # uses tmp_path / "data"

Owns: the paths of archives and manifest, and how files are packed. `write_fixtures` creates them.
"""

from __future__ import annotations

import gzip
import json
import tarfile
from pathlib import Path
from typing import Any, Final

FOLDER: Final = Path(__file__).parent / "fixtures"
MANIFEST: Final = FOLDER / "manifest.json"


def unpack(name: str, to: Path) -> dict[str, Any]:
    """Unpack an archive, and return its part of the manifest."""
    with tarfile.open(FOLDER / f"{name}.tar.gz") as archive:
        archive.extractall(to, filter="data")
    expected: dict[str, Any] = json.loads(MANIFEST.read_text())["archives"][name]
    return expected


def pack(folder: Path, name: str, source: Path) -> None:
    """Pack the files below `source`, and empty folders, without the names of users.

    Sockets and RocksDB's info logs are left out; the logs contain paths of the machine.
    """
    with (
        gzip.GzipFile(folder / f"{name}.tar.gz", "wb", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        for path in sorted(source.rglob("*")):
            if (path.is_file() or path.is_dir()) and not path.name.startswith("LOG"):
                archive.add(path, str(path.relative_to(source)), recursive=False, filter=_anonymous)


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry
