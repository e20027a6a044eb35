"""How much room the disks of the stores have.

Owns: the decision which stores are too full for new messages. Knows nothing of what follows from it: the server asks
every second, refuses sends to those stores, and lets settlements go on (deleting needs room too).
"""

from __future__ import annotations

import logging
import os
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

_ENOUGH_AGAIN: Final = 1.1
"""A store that was too full takes messages again with 10 % more than the minimum: at the edge it would flutter."""

logger = logging.getLogger(__name__)


def free_bytes(path: Path) -> int:
    """What a process without privileges can still write to the disk that `path` is on."""
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


def sync_time_s(directory: Path) -> float:
    """How long it takes now to have a few bytes on that disk. OSError if it does not work at all."""
    probe = directory / "twinbus.probe"
    began_s = time.monotonic()
    descriptor = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, b"probe")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
        probe.unlink()
    return time.monotonic() - began_s


class DiskWatch:
    """Tells which stores are too full."""

    def __init__(
        self, directories: Mapping[int, Path], min_free_bytes: int, free: Callable[[Path], int] = free_bytes
    ) -> None:
        """The directories of some stores, by the stores' numbers."""
        self._directories = directories
        self._min_free_bytes = min_free_bytes
        self._free = free
        self._full: frozenset[int] = frozenset()

    def check(self) -> frozenset[int]:
        """The numbers of the stores that are too full now. A change since the last time is logged, in one line."""
        full = frozenset(number for number in self._directories if self._is_full(number))
        least = f"{self._min_free_bytes / 2**20:,.0f} MiB"
        if full - self._full:
            logger.error(
                "less than %s (--min-free) left for %s: sends are refused until there is more; settling goes on",
                least,
                self._named(full - self._full),
            )
        if self._full - full:
            logger.info("more than %s left again for %s: sends are taken", least, self._named(self._full - full))
        self._full = full
        return full

    def _is_full(self, number: int) -> bool:
        try:
            free = self._free(self._directories[number])
        except OSError:
            return True  # a disk that is not there takes nothing
        enough = self._min_free_bytes * (_ENOUGH_AGAIN if number in self._full else 1)
        return free < enough

    def _named(self, numbers: Iterable[int]) -> str:
        return ", ".join(f"store {number} ({self._directories[number]})" for number in sorted(numbers))
