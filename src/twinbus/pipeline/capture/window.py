"""Windows: which part of a fragment's log becomes the next file, and when.

Owns: when a window closes: some time after its first message was seen, or when it is likely to be large enough,
whichever comes first; each fragment by itself. Pure: positions and times are handed in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

INITIAL_MESSAGE_BYTES: Final = 262_144.0
"""Bytes of a message, before any was seen: as many as it can have, so that one looks soon."""


@dataclass(frozen=True, slots=True)
class WindowLimits:
    """When a window closes."""

    max_seconds: float
    max_bytes: int
    """Bytes of messages, before they are compressed."""


@dataclass(frozen=True, slots=True)
class DueWindow:
    """A window that is to be written now."""

    fragment: int
    first_sequence_number: int
    last_sequence_number: int
    """The numbers it has, both included; not all of them need be there."""
    only_full_files: bool
    """Only files of the full size: what is left goes on waiting."""


class Window:
    """The open one of a fragment."""

    def __init__(
        self, fragment: int, first_sequence_number: int, limits: WindowLimits, *, closes_at_once: bool = False
    ) -> None:
        """`first` is the first number that is not captured yet."""
        self.fragment = fragment
        self.first_sequence_number = first_sequence_number
        self.is_being_written = False
        """A job writes it now."""
        self.closes_at_once = closes_at_once
        """It closes as soon as there is something: until there is a file, nothing tells that numbers began anew."""
        self._limits = limits
        self._opened_s: float | None = None
        self._bytes_per_number = INITIAL_MESSAGE_BYTES
        """How much a number stood for where it was last looked."""

    def close_if_due(self, next_sequence_number: int, now_s: float, *, force: bool = False) -> DueWindow | None:
        """What has to be written, if its time has come; `next_number` is what the next message will have."""
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
        """All up to a number is in files."""
        if up_to >= self.first_sequence_number:
            self.first_sequence_number = up_to + 1
            self._opened_s = None

    def mark_closed(self, number_count: int = 0, message_bytes: int = 0) -> None:
        """The job is over. Of so many numbers that were read, there were so many bytes."""
        self.is_being_written = False
        if number_count:
            self._bytes_per_number = message_bytes / number_count
