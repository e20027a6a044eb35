"""Free space on the disks of the stores.

Owns: the decision which stores are too full for new messages, and the reason that clients and `/health` get for it. The
server checks every second, refuses sends to those stores, and lets settlements go on (deleting needs space too).
"""

from __future__ import annotations

import errno
import logging
import os
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

_RECOVERY_FACTOR: Final = 1.1
"""A store that was too full takes messages again with 10 % more than the minimum: at the edge it would flutter."""

OUT_OF_SPACE_REASON: Final = (
    "its disk is full (no space left on the device): free space on that disk, and the store opens again by itself"
)
"""The reason while a store is closed because a write found no space."""
_NO_SPACE_TEXTS: Final = tuple(os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT))

logger = logging.getLogger(__name__)


def low_space_reason(min_free_bytes: int) -> str:
    """The reason below `--min-free`. It names no directory: clients without a key can read it in `/health`."""
    return (
        f"its disk is full (less than {min_free_bytes / 2**20:,.0f} MiB free, the limit of --min-free): free space on "
        "that disk, or restart the server with a lower --min-free. Stored messages can be received and settled"
    )


def is_out_of_space(failure: str) -> bool:
    """Whether a store failed because its disk, or the user's quota on it, has no space left."""
    return any(text in failure for text in _NO_SPACE_TEXTS)


def free_bytes(path: Path) -> int:
    """What a process without privileges can still write to the disk that `path` is on."""
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


def measure_sync_s(directory: Path) -> float:
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


class DiskSpaceMonitor:
    """Tells which stores are too full."""

    def __init__(
        self, directories: Mapping[int, Path], min_free_bytes: int, read_free_bytes: Callable[[Path], int] = free_bytes
    ) -> None:
        """The directories of some stores, by the stores' numbers."""
        self._directories = directories
        self._min_free_bytes = min_free_bytes
        self._read_free_bytes = read_free_bytes
        self._full_stores: frozenset[int] = frozenset()
        self._unreadable_reasons: dict[int, str] = {}

    def check(self) -> frozenset[int]:
        """The numbers of the stores that are too full now. A change since the last time is logged, in one line."""
        full = frozenset(number for number in self._directories if self._is_full(number))
        least = f"{self._min_free_bytes / 2**20:,.0f} MiB"
        if full - self._full_stores:
            logger.error(
                "less than %s (--min-free) left for %s: sends are refused until there is more; settling goes on",
                least,
                self._describe_stores(full - self._full_stores),
            )
        if self._full_stores - full:
            logger.info(
                "more than %s left again for %s: sends are taken",
                least,
                self._describe_stores(self._full_stores - full),
            )
        self._full_stores = full
        return full

    def refusal_reason(self, store_number: int) -> str | None:
        """Why a store takes no messages, as of the last check; None if it does."""
        if store_number not in self._full_stores:
            return None
        return self._unreadable_reasons.get(store_number) or low_space_reason(self._min_free_bytes)

    def _is_full(self, store_number: int) -> bool:
        try:
            free = self._read_free_bytes(self._directories[store_number])
        except OSError as error:  # a disk that is not there takes nothing
            self._unreadable_reasons[store_number] = (
                f"the free space on its disk cannot be read ({error.strerror}): check the disk and its mount"
            )
            return True
        self._unreadable_reasons.pop(store_number, None)
        enough = self._min_free_bytes * (_RECOVERY_FACTOR if store_number in self._full_stores else 1)
        return free < enough

    def _describe_stores(self, store_numbers: Iterable[int]) -> str:
        return ", ".join(f"store {number} ({self._directories[number]})" for number in sorted(store_numbers))
