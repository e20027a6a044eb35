"""The usage journals of one run of a process: a file for each hour, and a second file for the current minute.

A frame is appended to the journal every minute, and synced. Within the minute, a frame with the changes is appended to
the partial minute (`.partial`) about once a second, without a sync, because the kernel keeps this data if the process
is killed. A partial minute records the length of the journal that it continues, so the next minute in the journal
invalidates the partial minute (`model.usage`). Therefore no row counts twice, whenever the process exits, and the
partial minute never contains more than one minute's changes.

Owns: the integrity of the files. A frame that is incomplete because the disk was full is truncated before the next
frame is written. Methods block on the disk, so they must not run on the event loop.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from twinbus.model.usage import HOUR_S, JournalHead, PartialMinuteHead, complete_bytes, partial_minute_path, write_frame

if TYPE_CHECKING:
    from pathlib import Path

    from twinbus.model.usage import UsageRow


class UsageJournal:
    """The journals of one run of a process."""

    def __init__(self, folder: Path, *, namespace: str, process: int, life: str) -> None:
        """Create a journal that opens its files at the first write."""
        self._folder = folder
        self._namespace = namespace
        self._process = process
        self._life = life
        self._hour = -1
        self._minute_file = _FrameFile()
        self._partial_file = _FrameFile()
        self._partial_path: Path | None = None

    def append(self, rows: list[UsageRow], minute: int) -> None:
        """Write and sync the rows for a minute. If an OSError is raised, nothing is written."""
        self._open_hour(minute)
        self._minute_file.append(write_frame(rows), sync=True)
        self._partial_file.rewind()

    def append_partial(self, rows: list[UsageRow], minute: int) -> None:
        """Append the changes of an unfinished minute, so that they survive if the process is killed.

        If the write fails, discard the partial minute and raise OSError.
        """
        self._open_hour(minute)
        frame = write_frame(rows)
        if not self._partial_file.length:
            frame = write_frame(PartialMinuteHead(after=self._minute_file.length)) + frame
        try:
            self._partial_file.append(frame, sync=False)
        except OSError:
            self._partial_file.rewind()
            raise

    def close(self) -> None:
        """Close the files."""
        self._minute_file.close()
        self._partial_file.close()
        self._hour = -1

    def remove_partial(self) -> None:
        """Delete the partial minute, because the journal contains all rows."""
        self._partial_file.close()
        if self._partial_path is not None:
            self._partial_path.unlink(missing_ok=True)
            self._partial_path = None

    def _open_hour(self, minute: int) -> None:
        hour = minute // HOUR_S * HOUR_S
        if hour != self._hour:
            self.close()
            self.remove_partial()
            self._open_files(hour)

    def _open_files(self, hour: int) -> None:
        head = JournalHead(namespace=self._namespace, process=self._process, life=self._life, hour=hour)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._folder / head.journal_name
        try:
            self._minute_file.open(path)
            self._minute_file.length = complete_bytes(path)  # an earlier attempt may have created the file
            if not self._minute_file.length:
                self._minute_file.append(write_frame(head), sync=True)
            self._partial_path = partial_minute_path(path)
            self._partial_file.open(self._partial_path)
        except OSError:
            self.close()
            raise
        self._hour = hour


class _FrameFile:
    """A file to which frames are appended."""

    def __init__(self) -> None:
        self.length = 0
        """The position of the next frame."""
        self._descriptor = -1

    def open(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self.length = 0

    def append(self, frame: bytes, *, sync: bool) -> None:
        os.ftruncate(self._descriptor, self.length)
        written = 0
        while written < len(frame):
            written += os.pwrite(self._descriptor, frame[written:], self.length + written)
        if sync:
            os.fsync(self._descriptor)
        self.length += written

    def rewind(self) -> None:
        """Start over, so that the next `append` truncates the file."""
        self.length = 0

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1
