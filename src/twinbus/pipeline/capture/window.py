"""Windows: which part of a fragment's log becomes the next file, and when.

Owns: when a window closes: some time after its first message was seen, or when it is likely to be large enough,
whichever comes first; each fragment by itself. Pure: positions and times are handed in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

FIRST_GUESS: Final = 262_144.0
"""Bytes of a message, before any was seen: as many as it can have, so that one looks soon."""


@dataclass(frozen=True, slots=True)
class Limits:
    """When a window closes."""

    seconds: float
    size: int
    """Bytes of messages, before they are compressed."""


@dataclass(frozen=True, slots=True)
class Closing:
    """A window that is to be written now."""

    fragment: int
    first: int
    last: int
    """The numbers it has, both included; not all of them need be there."""
    only_full: bool
    """Only files of the full size: what is left goes on waiting."""


class Window:
    """The open one of a fragment."""

    def __init__(self, fragment: int, first: int, limits: Limits, *, is_hurried: bool = False) -> None:
        """`first` is the first number that is not captured yet."""
        self.fragment = fragment
        self.first = first
        self.is_closing = False
        """A job writes it now."""
        self.is_hurried = is_hurried
        """It closes as soon as there is something: until there is a file, nothing tells that numbers began anew."""
        self._limits = limits
        self._opened_s: float | None = None
        self._bytes_each = FIRST_GUESS
        """How much a number stood for where it was last looked."""

    def look(self, next_number: int, now_s: float, *, at_once: bool = False) -> Closing | None:
        """What has to be written, if its time has come; `next_number` is what the next message will have."""
        if self.is_closing or next_number <= self.first:
            return None
        if self._opened_s is None:
            self._opened_s = now_s
        is_due = at_once or self.is_hurried or now_s - self._opened_s >= self._limits.seconds
        is_large = (next_number - self.first) * self._bytes_each >= self._limits.size
        if not is_due and not is_large:
            return None
        self.is_closing = True
        return Closing(self.fragment, self.first, next_number - 1, only_full=not is_due)

    def written(self, up_to: int) -> None:
        """All up to a number is in files."""
        if up_to >= self.first:
            self.first = up_to + 1
            self._opened_s = None

    def closed(self, numbers: int = 0, size: int = 0) -> None:
        """The job is over. Of so many numbers that were read, there were so many bytes."""
        self.is_closing = False
        if numbers:
            self._bytes_each = size / numbers
