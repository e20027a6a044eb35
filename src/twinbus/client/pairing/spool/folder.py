"""The folder of a spool: one owner at a time, readable by nobody else, and as durable as its disk.

Owns: the lock, the names, and how files are made and removed so that they stay so after a power cut. Knows nothing of
what is in them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from typing import TYPE_CHECKING, Final

from twinbus.client.pairing.errors import SpoolFailed

if TYPE_CHECKING:
    from pathlib import Path

FILE_MODE: Final = 0o600
FOLDER_MODE: Final = 0o700
SEGMENT_SUFFIX: Final = ".spool"
DONE_SUFFIX: Final = ".done"
_TEMPORARY_SUFFIX: Final = ".new"
_NUMBERED_FILE: Final = re.compile(r"(\d{8,})(?:-\d+)?\.\w+")


class SpoolFolder:
    """Locked from its making until `close`. SpoolFailed says who has it, or why it cannot be used."""

    def __init__(self, path: Path) -> None:
        """Make it if it is not there."""
        self.path = path
        self.damaged = path / "damaged"
        """Pieces of files that are no records."""
        self.refused = path / "refused"
        """Messages that were refused when they were sent, one in a file, each with a text that says why."""
        for folder in (path, self.damaged, self.refused):
            create_folder(folder)
        self._lock = self._acquire_lock()
        for left in path.rglob(f".*{_TEMPORARY_SUFFIX}"):  # of a process that was cut off
            left.unlink()

    def close(self) -> None:
        """Somebody else may have it."""
        os.close(self._lock)

    def segment_path(self, number: int) -> Path:
        """A file of records."""
        return self.path / f"{number:08d}{SEGMENT_SUFFIX}"

    def done_path(self, number: int) -> Path:
        """The file that says which of them have gone."""
        return self.path / f"{number:08d}{DONE_SUFFIX}"

    def segment_numbers(self) -> list[int]:
        """The segments that are there, oldest first. Files put here by hand become the youngest of them."""
        numbered, strange = [], []
        for file in self.path.glob(f"*{SEGMENT_SUFFIX}"):
            if re.fullmatch(r"\d{8,}", file.stem):
                numbered.append(int(file.stem))
            else:
                strange.append(file)
        for number, file in enumerate(sorted(strange), start=self.free_number() if strange else 1):
            file.rename(self.segment_path(number))
            numbered.append(number)
        if strange:
            sync_folder(self.path)
        for marks in self.path.glob(f"*{DONE_SUFFIX}"):  # the crash was between the removal of the two
            if marks.stem.isdigit() and int(marks.stem) not in numbered:
                marks.unlink()
        return sorted(numbered)

    def free_number(self) -> int:
        """One that no file has, also none that was set aside: their names come from it."""
        names = [file.name for folder in (self.path, self.damaged, self.refused) for file in folder.iterdir()]
        taken = [int(match[1]) for name in names if (match := _NUMBERED_FILE.fullmatch(name))]
        return max(taken, default=0) + 1

    def _acquire_lock(self) -> int:
        file = self.path / "lock"
        lock = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(lock, 0)
            os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        except OSError as error:
            owner = os.pread(lock, 20, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(lock)
            if not isinstance(error, BlockingIOError):
                raise
            raise SpoolFailed(
                f"{self.path} is the spool of process {owner}: each process of an application needs a spool_dir of its"
                " own"
            ) from None
        return lock


def create_folder(path: Path) -> None:
    """A folder for its owner alone; one that is there is left as it is. It stays after a power cut."""
    if path.is_dir():
        return
    create_folder(path.parent)
    path.mkdir(mode=FOLDER_MODE, exist_ok=True)
    sync_folder(path.parent)


def create_file(path: Path) -> int:
    """A new file, open for writing; it, too, stays. Its descriptor."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE)
    try:
        sync_folder(path.parent)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def write_file_atomically(path: Path, content: bytes) -> None:
    """Put a file in place whole, on disk when this returns."""
    new = path.with_name(f".{path.name}{_TEMPORARY_SUFFIX}")
    try:
        new.unlink(missing_ok=True)
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        new.replace(path)
        sync_folder(path.parent)
    except OSError:
        with contextlib.suppress(OSError):
            new.unlink(missing_ok=True)
        raise


def write_at(descriptor: int, content: bytes, offset: int) -> None:
    """All of it, or OSError."""
    rest = memoryview(content)
    while rest:
        written = os.pwrite(descriptor, rest, offset)
        rest, offset = rest[written:], offset + written


def sync_folder(path: Path) -> None:
    """What was made, renamed or removed there stays so after a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
