"""The folder of a spool: locked by one owner, accessible only to its user, and durable after a power cut.

Owns: the lock, the file names, and the creation and removal of files so that both survive a power cut. Knows nothing of
the contents of files.
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
    """A spool folder that is locked until `close`.

    Raise SpoolFailed if another process owns the folder, or if the folder cannot be used.
    """

    def __init__(self, path: Path) -> None:
        """Create the folder if necessary, lock it, and delete the temporary files of a crashed process."""
        self.path = path
        self.damaged = path / "damaged"
        """The folder for parts of files that are not valid records."""
        self.refused = path / "refused"
        """The folder for refused messages: one file per message, each with a text file that has the reason."""
        for folder in (path, self.damaged, self.refused):
            create_folder(folder)
        self._lock = self._acquire_lock()
        for leftover in path.rglob(f".*{_TEMPORARY_SUFFIX}"):  # left by a process that crashed
            leftover.unlink()

    def close(self) -> None:
        """Release the lock, so that another process can use the folder."""
        os.close(self._lock)

    def segment_path(self, number: int) -> Path:
        """Return the path of a segment, which is a file of records."""
        return self.path / f"{number:08d}{SEGMENT_SUFFIX}"

    def done_path(self, number: int) -> Path:
        """Return the path of the file that marks the removed records of a segment."""
        return self.path / f"{number:08d}{DONE_SUFFIX}"

    def segment_numbers(self) -> list[int]:
        """Return the numbers of the segments, oldest first. Files added by hand become the newest segments."""
        numbered, unnumbered = [], []
        for file in self.path.glob(f"*{SEGMENT_SUFFIX}"):
            if re.fullmatch(r"\d{8,}", file.stem):
                numbered.append(int(file.stem))
            else:
                unnumbered.append(file)
        for number, file in enumerate(sorted(unnumbered), start=self.free_number() if unnumbered else 1):
            file.rename(self.segment_path(number))
            numbered.append(number)
        if unnumbered:
            sync_folder(self.path)
        for done_file in self.path.glob(f"*{DONE_SUFFIX}"):  # left by a crash after its segment was deleted
            if done_file.stem.isdigit() and int(done_file.stem) not in numbered:
                done_file.unlink()
        return sorted(numbered)

    def free_number(self) -> int:
        """Return a number that no file name contains, including the names of damaged and refused files."""
        names = [file.name for folder in (self.path, self.damaged, self.refused) for file in folder.iterdir()]
        used = [int(match[1]) for name in names if (match := _NUMBERED_FILE.fullmatch(name))]
        return max(used, default=0) + 1

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
    """Create a folder for its user only, durably; an existing folder is not changed."""
    if path.is_dir():
        return
    create_folder(path.parent)
    path.mkdir(mode=FOLDER_MODE, exist_ok=True)
    sync_folder(path.parent)


def create_file(path: Path) -> int:
    """Create a file durably, and return its descriptor for writing."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE)
    try:
        sync_folder(path.parent)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def write_file_atomically(path: Path, content: bytes) -> None:
    """Write a file atomically and durably."""
    temporary = path.with_name(f".{path.name}{_TEMPORARY_SUFFIX}")
    try:
        temporary.unlink(missing_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        temporary.replace(path)
        sync_folder(path.parent)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def write_at(descriptor: int, content: bytes, offset: int) -> None:
    """Write all bytes at `offset`, or raise OSError."""
    remaining = memoryview(content)
    while remaining:
        written = os.pwrite(descriptor, remaining, offset)
        remaining, offset = remaining[written:], offset + written


def sync_folder(path: Path) -> None:
    """Make the creation, renaming and removal of files in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
