"""Patterns of LIKE: % is any text, _ any character, and an escape character makes the next one literal.

A pattern is cut at each %. The stretches between have a fixed length, so taking the first place where each fits is
enough: nothing is tried twice. Wildcards at the ends of a stretch are only counted; what is left is found in one of
three ways, each of which takes time in proportion to the text, whatever the pattern:

- literal characters: `str.find`;
- wildcards in between, nearby: character by character, with a bit for each character of the stretch;
- wildcards in between, farther away: with a bit for each character of the text. One integer for each character of the
  stretch says where the text has it; shifted and combined, these leave the places where the stretch fits. They belong
  to the text, so that other patterns, of other rules, use them, too. Where a pattern has so many different characters
  that making the integers takes longer than reading the text does, it is read to its end.

Owns: what a pattern means. Case matters, as everywhere in values.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from twinbus.broker.filters.errors import FilterError

MAX_PATTERN: Final = 1024
_ANY_TEXT: Final = "%"
_ANY_CHARACTER: Final = "_"
_NEAR: Final = 256
"""Characters that are read one by one before the others are looked at all at once."""
_MANY: Final = 50
"""Different characters of a pattern beyond which all are read one by one."""
_KEPT: Final = 256
"""Integers that are kept for a text."""
_LARGEST_BYTE: Final = 0xFF
_PLANES: Final = 4
_ZERO, _ONE = b"01"


class Places:
    """Where a text has which characters: integers, in which the lowest bit is the text's first character."""

    __slots__ = ("_bits", "_planes", "_text")

    def __init__(self, text: str) -> None:
        """Nothing is known before it is asked for."""
        self._text = text
        self._bits: dict[str, int] = {}
        self._planes: list[bytes]
        """The lowest bytes of all characters, then the second ones, and so on; empty where all are zero."""
        reverse = text[::-1]  # digits of a number begin with the highest
        try:
            self._planes = [reverse.encode("latin-1"), b"", b"", b""]
        except UnicodeEncodeError:
            wide = reverse.encode("utf-32-le", "surrogatepass")
            self._planes = [wide[plane::_PLANES].rstrip(b"\0") and wide[plane::_PLANES] for plane in range(_PLANES)]

    def of(self, character: str) -> int:
        """The places of one character."""
        bits = self._bits.get(character)
        if bits is None:
            if len(self._bits) >= _KEPT:
                self._bits.clear()
            bits = self._bits[character] = self._find(ord(character))
        return bits

    def is_of(self, text: str) -> bool:
        """Whether these are the places in that very text."""
        return self._text is text

    def _find(self, code: int) -> int:
        bits = -1
        for plane, byte in zip(self._planes, code.to_bytes(_PLANES, "little"), strict=True):
            if plane:
                bits &= _equal(plane, byte)
            elif byte:
                return 0
        return bits


def _equal(plane: bytes, byte: int) -> int:
    table = bytearray([_ZERO]) * (_LARGEST_BYTE + 1)
    table[byte] = _ONE
    return int(plane.translate(table), 2)


class _Latest:
    """The places in the text that was matched last: the rules of a topic look at the same property of a message."""

    __slots__ = ("_places",)

    def __init__(self) -> None:
        self._places = Places("0")

    def in_text(self, text: str) -> Places:
        if not self._places.is_of(text):
            self._places = Places(text)
        return self._places


_LATEST: Final = _Latest()


class Stretch:
    """What lies between two %: characters, some of which may be any."""

    __slots__ = ("_anywhere", "_characters", "_last", "_lead", "_literal", "_masks", "_tail", "size", "wanted")

    def __init__(self, characters: list[str | None]) -> None:
        """None is any character."""
        self.size = len(characters)
        known = [place for place, character in enumerate(characters) if character is not None]
        self._lead = known[0] if known else 0
        """Wildcards in front; `_tail` is how many there are behind."""
        self._tail = self.size - 1 - known[-1] if known else self.size
        core = characters[self._lead : self.size - self._tail]
        literals = [character for character in core if character is not None]
        self._literal = "".join(literals) if len(literals) == len(core) else None
        """The characters, if none of them is any."""
        self.wanted = set(literals) if self._literal is None else set()
        """Different characters, where there are wildcards in between."""
        self._characters = core
        self._anywhere = 0
        """A bit for each place where any character fits; `_masks` has those where one character does, too."""
        self._masks: dict[str, int] = {}
        for place, character in enumerate(core):
            if character is None:
                self._anywhere |= 1 << place
            else:
                self._masks[character] = self._masks.get(character, 0) | 1 << place
        self._masks = {character: mask | self._anywhere for character, mask in self._masks.items()}
        self._last = 1 << len(core) >> 1

    @property
    def literals(self) -> int:
        """How many characters of it are not any."""
        return sum([character is not None for character in self._characters])

    def find(self, text: str, start: int, end: int, *, by_places: bool = False) -> int:
        """The first place between the two where it fits; -1 if there is none. `by_places`: with help of `Places`."""
        start, end = start + self._lead, end - self._tail
        if self._literal is not None:
            found = text.find(self._literal, start, end) if start <= end else -1
        else:
            near = min(end, start + _NEAR + len(self._characters)) if by_places else end
            found = self._find_by_characters(text, start, near)
            if found < 0 and near < end:
                found = self._find_by_places(text, start + _NEAR, end)
        return found - self._lead if found >= 0 else -1

    def fits(self, text: str, at: int) -> bool:
        """Whether the text, which is long enough, has it there."""
        if self._literal is not None:
            return text.startswith(self._literal, at + self._lead)
        at += self._lead
        for place, character in enumerate(self._characters, at):
            if character is not None and text[place] != character:
                return False
        return True

    def _find_by_places(self, text: str, start: int, end: int) -> int:
        latest = end - len(self._characters) - start
        if latest < 0:
            return -1
        places = _LATEST.in_text(text)
        left = (2 << latest) - 1
        for place, character in enumerate(self._characters, start):
            if character is not None:
                left &= places.of(character) >> place
                if not left:
                    return -1
        return start + (left & -left).bit_length() - 1

    def _find_by_characters(self, text: str, start: int, end: int) -> int:
        # A bit of `reached` is set where the stretch, up to that bit, ends at the character just read.
        reached = 0
        for at in range(start, end):
            reached = (reached << 1 | 1) & self._masks.get(text[at], self._anywhere)
            if reached & self._last:
                return at + 1 - len(self._characters)
        return -1


class Pattern:
    """One pattern, ready to be compared with any number of texts."""

    __slots__ = ("_by_places", "_stretches")

    def __init__(self, pattern: str, escape: str | None = None) -> None:
        """FilterError if it is too long, the escape character is not one, or stands at the end."""
        if len(pattern) > MAX_PATTERN:
            raise FilterError(f"a pattern of {len(pattern)} characters; it can have {MAX_PATTERN}")
        if escape is not None and len(escape) != 1:
            raise FilterError(f"{escape!r:.20} cannot escape anything: that takes exactly one character")
        self._stretches = _cut(pattern, escape)
        self._by_places = 0 < len(self.wanted) <= _MANY

    @property
    def inner(self) -> list[Stretch]:
        """The stretches that are looked for: the first and the last are where the text begins and ends."""
        return self._stretches[1:-1]

    @property
    def wanted(self) -> set[str]:
        """The different characters of stretches with wildcards in between."""
        return set().union(*[stretch.wanted for stretch in self.inner])

    def matches(self, text: str) -> bool:
        """Whether all of the text is as the pattern says."""
        first, last = self._stretches[0], self._stretches[-1]
        if len(self._stretches) == 1:
            return len(text) == first.size and first.fits(text, 0)
        at, end = first.size, len(text) - last.size
        if at > end or not first.fits(text, 0) or not last.fits(text, end):
            return False
        for stretch in self._stretches[1:-1]:
            found = stretch.find(text, at, end, by_places=self._by_places)
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
            if characters or not stretches:  # %% is %
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
