"""The journals of one life of a process: a file for each hour, and beside it the minute that is not over yet.

A frame is appended to the journal each minute, and synced. Within the minute, a frame with the changes is appended to
the partial minute (`.partial`) about once a second, without a sync: it is for a process that is killed, and the kernel
keeps it then. The next minute in the journal makes it void, since it names the length of the journal that it continues
(`model.usage`): no row counts twice, whatever ends the process at whatever point. So the partial minute never has more
than the changes of one minute.

Owns: that what was written is whole. A frame that did not get to its end, on a full disk, is cut off again before the
next. Waits for the disk: it is not for the loop.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from twinbus.model.usage import HOUR_S, JournalHead, PartialMinuteHead, complete_bytes, partial_minute_path, write_frame

if TYPE_CHECKING:
    from pathlib import Path

    from twinbus.model.usage import UsageRow


class UsageJournal:
    """Of one life."""

    def __init__(self, folder: Path, *, namespace: str, process: int, life: str) -> None:
        """Nothing is opened before there is something to write."""
        self._folder = folder
        self._namespace = namespace
        self._process = process
        self._life = life
        self._hour = -1
        self._minute_file = _FrameFile()
        self._partial_file = _FrameFile()
        self._partial_path: Path | None = None

    def append(self, rows: list[UsageRow], minute: int) -> None:
        """Write what a minute came to; when this returns, it is on the disk. OSError, and nothing is written."""
        self._open_hour(minute)
        self._minute_file.append(write_frame(rows), sync=True)
        self._partial_file.rewind()

    def append_partial(self, rows: list[UsageRow], minute: int) -> None:
        """Write what was added within a minute; a kill does not lose it. OSError: nothing of the minute is kept."""
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
        """Nothing more is written."""
        self._minute_file.close()
        self._partial_file.close()
        self._hour = -1

    def remove_partial(self) -> None:
        """The journal has everything."""
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
            self._minute_file.length = complete_bytes(path)  # it may be there, from an attempt that failed
            if not self._minute_file.length:
                self._minute_file.append(write_frame(head), sync=True)
            self._partial_path = partial_minute_path(path)
            self._partial_file.open(self._partial_path)
        except OSError:
            self.close()
            raise
        self._hour = hour


class _FrameFile:
    """A file that frames are appended to."""

    def __init__(self) -> None:
        self.length = 0
        """Where the next frame begins."""
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
        """Begin anew with the next frame, which cuts off what is there."""
        self.length = 0

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1
