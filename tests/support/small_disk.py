"""A real file system that is small enough to be filled by a test."""

from __future__ import annotations

import os
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def small_disk(directory: Path, mebibytes: int) -> Iterator[Path]:
    """A file system of that size, mounted on a directory, which is made if need be."""
    directory.mkdir(exist_ok=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs", directory],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip(f"mounting a small file system is not permitted here: {mounted.stderr.strip()}")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "--lazy", directory], check=True)  # also if a killed process has files open


def fill_disk(directory: Path, *, leave_mebibytes: int) -> Path:
    """Write a file until only so much is left on the disk; the file."""
    file = directory / "filler"
    status = os.statvfs(directory)
    with file.open("wb") as stream:
        stream.write(bytes(status.f_bavail * status.f_frsize - leave_mebibytes * 2**20))
    return file
