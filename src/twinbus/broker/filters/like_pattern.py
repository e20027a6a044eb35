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

MAX_PATTERN_CHARACTERS: Final = 1024
_ANY_TEXT: Final = "%"
_ANY_CHARACTER: Final = "_"
_SCAN_AHEAD: Final = 256
"""Characters that are read one by one before the others are looked at all at once."""
_MAX_DISTINCT: Final = 50
"""Different characters of a pattern beyond which all are read one by one."""
_MAX_CACHED: Final = 256
"""Integers that are kept for a text."""
_LARGEST_BYTE: Final = 0xFF
_PLANES: Final = 4
_ZERO, _ONE = b"01"


class CharacterPositions:
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

    def positions_of(self, character: str) -> int:
        """The places of one character."""
        bits = self._bits.get(character)
        if bits is None:
            if len(self._bits) >= _MAX_CACHED:
                self._bits.clear()
            bits = self._bits[character] = self._find(ord(character))
        return bits

    def is_for(self, text: str) -> bool:
        """Whether these are the places in that very text."""
        return self._text is text

    def _find(self, code: int) -> int:
        bits = -1
        for plane, byte in zip(self._planes, code.to_bytes(_PLANES, "little"), strict=True):
            if plane:
                bits &= _equal_bits(plane, byte)
            elif byte:
                return 0
        return bits


def _equal_bits(plane: bytes, byte: int) -> int:
    table = bytearray([_ZERO]) * (_LARGEST_BYTE + 1)
    table[byte] = _ONE
    return int(plane.translate(table), 2)


class _PositionsCache:
    """The places in the text that was matched last: the rules of a topic look at the same property of a message."""

    __slots__ = ("_positions",)

    def __init__(self) -> None:
        self._positions = CharacterPositions("0")

    def positions_in(self, text: str) -> CharacterPositions:
        if not self._positions.is_for(text):
            self._positions = CharacterPositions(text)
        return self._positions


_POSITIONS: Final = _PositionsCache()


class Segment:
    """What lies between two %: characters, some of which may be any."""

    __slots__ = (
        "_characters",
        "_last_bit",
        "_leading_wildcards",
        "_literal",
        "_masks",
        "_trailing_wildcards",
        "_wildcard_mask",
        "distinct_characters",
        "size",
    )

    def __init__(self, characters: list[str | None]) -> None:
        """None is any character."""
        self.size = len(characters)
        known = [place for place, character in enumerate(characters) if character is not None]
        self._leading_wildcards = known[0] if known else 0
        """Wildcards in front; `_tail` is how many there are behind."""
        self._trailing_wildcards = self.size - 1 - known[-1] if known else self.size
        core = characters[self._leading_wildcards : self.size - self._trailing_wildcards]
        literals = [character for character in core if character is not None]
        self._literal = "".join(literals) if len(literals) == len(core) else None
        """The characters, if none of them is any."""
        self.distinct_characters = set(literals) if self._literal is None else set()
        """Different characters, where there are wildcards in between."""
        self._characters = core
        self._wildcard_mask = 0
        """A bit for each place where any character fits; `_masks` has those where one character does, too."""
        self._masks: dict[str, int] = {}
        for place, character in enumerate(core):
            if character is None:
                self._wildcard_mask |= 1 << place
            else:
                self._masks[character] = self._masks.get(character, 0) | 1 << place
        self._masks = {character: mask | self._wildcard_mask for character, mask in self._masks.items()}
        self._last_bit = 1 << len(core) >> 1

    @property
    def literal_count(self) -> int:
        """How many characters of it are not any."""
        return sum([character is not None for character in self._characters])

    def find(self, text: str, start: int, end: int, *, use_positions: bool = False) -> int:
        """The first place between the two where it fits; -1 if there is none. `by_places`: with help of `Places`."""
        start, end = start + self._leading_wildcards, end - self._trailing_wildcards
        if self._literal is not None:
            found = text.find(self._literal, start, end) if start <= end else -1
        else:
            near = min(end, start + _SCAN_AHEAD + len(self._characters)) if use_positions else end
            found = self._find_by_characters(text, start, near)
            if found < 0 and near < end:
                found = self._find_by_positions(text, start + _SCAN_AHEAD, end)
        return found - self._leading_wildcards if found >= 0 else -1

    def matches_at(self, text: str, at: int) -> bool:
        """Whether the text, which is long enough, has it there."""
        if self._literal is not None:
            return text.startswith(self._literal, at + self._leading_wildcards)
        at += self._leading_wildcards
        for place, character in enumerate(self._characters, at):
            if character is not None and text[place] != character:
                return False
        return True

    def _find_by_positions(self, text: str, start: int, end: int) -> int:
        latest = end - len(self._characters) - start
        if latest < 0:
            return -1
        places = _POSITIONS.positions_in(text)
        left = (2 << latest) - 1
        for place, character in enumerate(self._characters, start):
            if character is not None:
                left &= places.positions_of(character) >> place
                if not left:
                    return -1
        return start + (left & -left).bit_length() - 1

    def _find_by_characters(self, text: str, start: int, end: int) -> int:
        # A bit of `reached` is set where the stretch, up to that bit, ends at the character just read.
        reached = 0
        for at in range(start, end):
            reached = (reached << 1 | 1) & self._masks.get(text[at], self._wildcard_mask)
            if reached & self._last_bit:
                return at + 1 - len(self._characters)
        return -1


class LikePattern:
    """One pattern, ready to be compared with any number of texts."""

    __slots__ = ("_segments", "_use_positions")

    def __init__(self, pattern: str, escape: str | None = None) -> None:
        """FilterError if it is too long, the escape character is not one, or stands at the end."""
        if len(pattern) > MAX_PATTERN_CHARACTERS:
            raise FilterError(f"a pattern of {len(pattern)} characters; it can have {MAX_PATTERN_CHARACTERS}")
        if escape is not None and len(escape) != 1:
            raise FilterError(f"{escape!r:.20} cannot escape anything: that takes exactly one character")
        self._segments = _split(pattern, escape)
        self._use_positions = 0 < len(self.distinct_characters) <= _MAX_DISTINCT

    @property
    def inner_segments(self) -> list[Segment]:
        """The stretches that are looked for: the first and the last are where the text begins and ends."""
        return self._segments[1:-1]

    @property
    def distinct_characters(self) -> set[str]:
        """The different characters of stretches with wildcards in between."""
        return set().union(*[stretch.distinct_characters for stretch in self.inner_segments])

    def matches(self, text: str) -> bool:
        """Whether all of the text is as the pattern says."""
        first, last = self._segments[0], self._segments[-1]
        if len(self._segments) == 1:
            return len(text) == first.size and first.matches_at(text, 0)
        at, end = first.size, len(text) - last.size
        if at > end or not first.matches_at(text, 0) or not last.matches_at(text, end):
            return False
        for stretch in self._segments[1:-1]:
            found = stretch.find(text, at, end, use_positions=self._use_positions)
            if found < 0:
                return False
            at = found + stretch.size
        return True


def _split(pattern: str, escape: str | None) -> list[Segment]:
    stretches: list[Segment] = []
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
                stretches.append(Segment(characters))
            characters = []
        else:
            characters.append(None if character == _ANY_CHARACTER else character)
    if is_escaped:
        raise FilterError(f"the pattern {pattern!r:.60} ends with its escape character, which then escapes nothing")
    return [*stretches, Segment(characters)]


@lru_cache(maxsize=256)
def cached_pattern(pattern: str, escape: str | None) -> LikePattern:
    """The same, remembered: where a property holds the pattern, most messages have the same."""
    return LikePattern(pattern, escape)
