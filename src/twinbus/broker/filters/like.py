"""Patterns of LIKE: % is any text, _ any character, and an escape character takes either by its word.

A pattern is cut at each %. What lies between has a fixed length, so taking the first place where each fits is enough:
nothing is ever tried twice, and the time a match takes grows with the text, whatever the pattern.

Owns: what a pattern means. Case matters, as everywhere in values.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from twinbus.broker.filters.errors import FilterError

MAX_PATTERN: Final = 1024
_ANY_TEXT: Final = "%"
_ANY_CHARACTER: Final = "_"


class Stretch:
    """What lies between two %: characters, some of which may be any."""

    __slots__ = ("_anywhere", "_last", "_literal", "_masks", "size")

    def __init__(self, characters: list[str | None]) -> None:
        """None is any character."""
        self.size = len(characters)
        literals = [character for character in characters if character is not None]
        self._literal = "".join(literals) if len(literals) == self.size else None
        """The characters, if none of them is any."""
        self._anywhere = 0
        """A bit for each place where any character fits; `_masks` has those where one character does, too."""
        self._masks: dict[str, int] = {}
        for place, character in enumerate(characters):
            if character is None:
                self._anywhere |= 1 << place
            else:
                self._masks[character] = self._masks.get(character, 0) | 1 << place
        self._masks = {character: mask | self._anywhere for character, mask in self._masks.items()}
        self._last = 1 << self.size >> 1

    def find(self, text: str, start: int, end: int) -> int:
        """The first place between the two where it fits; -1 if there is none."""
        if self._literal is not None:
            return text.find(self._literal, start, end)
        # A bit of `reached` is set where the stretch, up to that bit, ends at the character just read.
        reached = 0
        for at in range(start, end):
            reached = (reached << 1 | 1) & self._masks.get(text[at], self._anywhere)
            if reached & self._last:
                return at + 1 - self.size
        return -1

    def fits(self, text: str, at: int) -> bool:
        """Whether the text has it there."""
        return self.find(text, at, at + self.size) == at


class Pattern:
    """One pattern, ready to be compared with any number of texts."""

    __slots__ = ("_stretches",)

    def __init__(self, pattern: str, escape: str | None = None) -> None:
        """FilterError if it is too long, the escape character is not one, or stands at the end."""
        if len(pattern) > MAX_PATTERN:
            raise FilterError(f"a pattern of {len(pattern)} characters; it can have {MAX_PATTERN}")
        if escape is not None and len(escape) != 1:
            raise FilterError(f"{escape!r:.20} cannot escape anything: that takes exactly one character")
        self._stretches = _cut(pattern, escape)

    def matches(self, text: str) -> bool:
        """Whether all of the text is as the pattern says."""
        first, last = self._stretches[0], self._stretches[-1]
        if len(self._stretches) == 1:
            return len(text) == first.size and first.fits(text, 0)
        at, end = first.size, len(text) - last.size
        if at > end or not first.fits(text, 0) or not last.fits(text, end):
            return False
        for stretch in self._stretches[1:-1]:
            found = stretch.find(text, at, end)
            if found < 0:
                return False
            at = found + stretch.size
        return True


def _cut(pattern: str, escape: str | None) -> list[Stretch]:
    stretches: list[Stretch] = []
    characters: list[str | None] = []
    is_escaped = False
    for character in pattern:
        if is_escaped:
            characters.append(character)
            is_escaped = False
        elif character == escape:
            is_escaped = True
        elif character == _ANY_TEXT:
            stretches.append(Stretch(characters))
            characters = []
        else:
            characters.append(None if character == _ANY_CHARACTER else character)
    if is_escaped:
        raise FilterError(f"the pattern {pattern!r:.60} ends with its escape character, which then escapes nothing")
    return [*stretches, Stretch(characters)]


@lru_cache(maxsize=256)
def pattern_of(pattern: str, escape: str | None) -> Pattern:
    """The same, remembered: where a property holds the pattern, most messages have the same."""
    return Pattern(pattern, escape)
