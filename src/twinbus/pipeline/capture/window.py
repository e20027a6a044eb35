"""Windows: the part of a fragment's log that becomes the next file.

Owns the decision when to close a window, for each fragment separately. A window closes some time after its first
message was seen, or once it has probably reached the size limit, whichever comes first. Pure: positions and times are
parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

INITIAL_MESSAGE_BYTES: Final = 262_144.0
"""Assumed message size before any message was read: the maximum, so that the first window is checked early."""


@dataclass(frozen=True, slots=True)
class WindowLimits:
    """Limits at which a window closes."""

    max_seconds: float
    max_bytes: int
    """Uncompressed size of the messages."""


@dataclass(frozen=True, slots=True)
class DueWindow:
    """A window that has to be written now."""

    fragment: int
    first_sequence_number: int
    last_sequence_number: int
    """Last sequence number of the window (inclusive). Some numbers in the window may have no message."""
    only_full_files: bool
    """Whether to write only full-size files and leave the remaining messages in the window."""


class Window:
    """The open window of a fragment."""

    def __init__(
        self, fragment: int, first_sequence_number: int, limits: WindowLimits, *, closes_at_once: bool = False
    ) -> None:
        """Create a window. `first_sequence_number` is the first number that is not captured yet."""
        self.fragment = fragment
        self.first_sequence_number = first_sequence_number
        self.is_being_written = False
        """Whether a job is writing the window."""
        self.closes_at_once = closes_at_once
        """Whether the window closes at its first message: only a new file records that sequence numbers are reused."""
        self._limits = limits
        self._opened_s: float | None = None
        self._bytes_per_number = INITIAL_MESSAGE_BYTES
        """Average message size per sequence number in the last window read."""

    def close_if_due(self, next_sequence_number: int, now_s: float, *, force: bool = False) -> DueWindow | None:
        """Return the window if it is due. `next_sequence_number` is the number of the next message to be enqueued."""
        if self.is_being_written or next_sequence_number <= self.first_sequence_number:
            return None
        if self._opened_s is None:
            self._opened_s = now_s
        is_due = force or self.closes_at_once or now_s - self._opened_s >= self._limits.max_seconds
        is_large = (
            next_sequence_number - self.first_sequence_number
        ) * self._bytes_per_number >= self._limits.max_bytes
        if not is_due and not is_large:
            return None
        self.is_being_written = True
        return DueWindow(
            self.fragment, self.first_sequence_number, next_sequence_number - 1, only_full_files=not is_due
        )

    def mark_written(self, up_to: int) -> None:
        """Advance the start of the window past `up_to`, which is now captured."""
        if up_to >= self.first_sequence_number:
            self.first_sequence_number = up_to + 1
            self._opened_s = None

    def mark_closed(self, number_count: int = 0, message_bytes: int = 0) -> None:
        """Mark the window as no longer being written, and update the average size from the numbers and bytes read."""
        self.is_being_written = False
        if number_count:
            self._bytes_per_number = message_bytes / number_count
