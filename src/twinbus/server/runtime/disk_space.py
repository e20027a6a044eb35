"""Free space on the disks of the stores.

Owns: the decision about which stores are too full for new messages, and the reason that clients and `/health` get. The
server checks every second and refuses sends to stores that are too full. Settlements continue. The reserved space is
for settlements, because deletions need space, too.
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
"""A full store accepts messages again once 10 % more than the minimum is free, so that it does not flap."""

OUT_OF_SPACE_REASON: Final = (
    "its disk is full (no space left on the device): free space on that disk, and the store opens again by itself"
)
"""The reason that clients get while a store is closed because a write failed for lack of space."""
_NO_SPACE_TEXTS: Final = tuple(os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT))

logger = logging.getLogger(__name__)


def low_space_reason(min_free_bytes: int) -> str:
    """Return the reason that clients get if a store's disk has less free space than `--min-free`.

    The reason has no directory names, because clients without a key see it in `/health`.
    """
    return (
        f"its disk is full (less than {min_free_bytes / 2**20:,.0f} MiB free, the limit of --min-free): free space on "
        "that disk, or restart the server with a lower --min-free. Stored messages can be received and settled"
    )


def is_out_of_space(failure: str) -> bool:
    """Return whether a store failed because its disk, or the user's quota on the disk, has no space left."""
    return any(text in failure for text in _NO_SPACE_TEXTS)


def free_bytes(path: Path) -> int:
    """Return how many bytes an unprivileged process can still write to the disk of `path`."""
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


def measure_sync_s(directory: Path) -> float:
    """Write and fsync a few bytes in `directory`, and return the seconds taken. Raise OSError if the write fails."""
    probe = directory / "twinbus.probe"
    start_s = time.monotonic()
    descriptor = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, b"probe")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
        probe.unlink()
    return time.monotonic() - start_s


class DiskSpaceMonitor:
    """Checks which stores are too full for new messages."""

    def __init__(
        self, directories: Mapping[int, Path], min_free_bytes: int, read_free_bytes: Callable[[Path], int] = free_bytes
    ) -> None:
        """Create a monitor for stores; `directories` has their directories by store number."""
        self._directories = directories
        self._min_free_bytes = min_free_bytes
        self._read_free_bytes = read_free_bytes
        self._full_stores: frozenset[int] = frozenset()
        self._unreadable_reasons: dict[int, str] = {}

    def check(self) -> frozenset[int]:
        """Return the numbers of the stores that are too full, and log changes since the last check."""
        full = frozenset(number for number in self._directories if self._is_full(number))
        minimum = f"{self._min_free_bytes / 2**20:,.0f} MiB"
        if full - self._full_stores:
            logger.error(
                "less than %s (--min-free) left for %s: sends are refused until space is freed; settlements continue",
                minimum,
                self._describe_stores(full - self._full_stores),
            )
        if self._full_stores - full:
            logger.info(
                "more than %s left again for %s: sends are accepted",
                minimum,
                self._describe_stores(self._full_stores - full),
            )
        self._full_stores = full
        return full

    def refusal_reason(self, store_number: int) -> str | None:
        """Return why a store refuses messages, as of the last check, or None if it accepts them."""
        if store_number not in self._full_stores:
            return None
        return self._unreadable_reasons.get(store_number) or low_space_reason(self._min_free_bytes)

    def _is_full(self, store_number: int) -> bool:
        try:
            free = self._read_free_bytes(self._directories[store_number])
        except OSError as error:  # an unreadable disk counts as full
            self._unreadable_reasons[store_number] = (
                f"the free space on its disk cannot be read ({error.strerror}): check the disk and its mount"
            )
            return True
        self._unreadable_reasons.pop(store_number, None)
        required = self._min_free_bytes * (_RECOVERY_FACTOR if store_number in self._full_stores else 1)
        return free < required

    def _describe_stores(self, store_numbers: Iterable[int]) -> str:
        return ", ".join(f"store {number} ({self._directories[number]})" for number in sorted(store_numbers))
