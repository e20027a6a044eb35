"""The spread: which part of a partitioned entity a message goes to.

Owns: the choice. A message with a key goes where its key leads, whatever the state of that part; one without goes to
the next in turn that takes messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.model.partition_key import fragment_of

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from twinbus.broker.part import Part


class Spread:
    """The choice among the parts of one entity."""

    def __init__(self, parts: Sequence[Part], start: int) -> None:
        """The first message without a key goes to part `start`, if that takes messages."""
        self._parts = parts
        self._next = start

    def choose(self, key: bytes | None, but: Collection[int] = ()) -> int:
        """The number of the part for a message of that key. Without a key none of `but`, if there is another."""
        if key is not None:
            return fragment_of(key)
        parts, count = self._parts, len(self._parts)
        self._next %= count
        for step in range(count):
            number = (self._next + step) % count
            if number not in but and parts[number].main.takes_sends:
                break
        else:
            number = next((other for other in range(count) if other not in but), self._next)
        self._next = (number + 1) % count
        return number
