"""A real file system that is small enough for a test to fill it."""

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
    """Mount a file system of `mebibytes` MiB on a directory, which is created if it does not exist."""
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
        subprocess.run(["umount", "--lazy", directory], check=True)  # lazy: a killed process may still have files open


def fill_disk(directory: Path, *, leave_mebibytes: int) -> Path:
    """Write a file that leaves only `leave_mebibytes` MiB free on the disk; return the file."""
    file = directory / "filler"
    status = os.statvfs(directory)
    with file.open("wb") as stream:
        stream.write(bytes(status.f_bavail * status.f_frsize - leave_mebibytes * 2**20))
    return file
