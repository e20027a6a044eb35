"""The journals of one life of a process: a file for each hour, to which a frame is appended each minute.

Owns: that what was written is whole. A frame that did not get to its end, on a full disk, is cut off again before the
next. Waits for the disk: it is not for the loop.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from twinbus.model.usage import HOUR_S, Head, whole_bytes, write_frame

if TYPE_CHECKING:
    from pathlib import Path

    from twinbus.model.usage import UsageRow


class Journal:
    """Of one life."""

    def __init__(self, folder: Path, *, namespace: str, process: int, life: str) -> None:
        """Nothing is opened before there is something to write."""
        self._folder = folder
        self._namespace = namespace
        self._process = process
        self._life = life
        self._hour = -1
        self._file = -1
        self._end = 0
        """Where the next frame begins."""

    def append(self, rows: list[UsageRow], minute: int) -> None:
        """Write what a minute came to; when this returns, it is on the disk. OSError, and nothing is written."""
        hour = minute // HOUR_S * HOUR_S
        if hour != self._hour:
            self.close()
            self._open(hour)
        self._write(write_frame(rows))

    def close(self) -> None:
        """Nothing more is written."""
        if self._file >= 0:
            os.close(self._file)
        self._file, self._hour = -1, -1

    def _open(self, hour: int) -> None:
        head = Head(namespace=self._namespace, process=self._process, life=self._life, hour=hour)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._folder / head.journal_name
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            self._end = whole_bytes(path)  # it may be there, from an attempt that failed
            if not self._end:
                self._write(write_frame(head))
        except OSError:
            self.close()
            raise
        self._hour = hour

    def _write(self, frame: bytes) -> None:
        os.ftruncate(self._file, self._end)
        written = 0
        while written < len(frame):
            written += os.pwrite(self._file, frame[written:], self._end + written)
        os.fsync(self._file)
        self._end += written
