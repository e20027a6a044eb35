"""LIKE patterns: % matches any text, _ any one character, and an escape character makes the next character literal.

A pattern is split at each % into segments. A segment has a fixed length, so the first position where it fits is always
right and the matcher never backtracks. Wildcards at the ends of a segment are only counted; the core between them is
searched in one of three ways, each of which takes time linear in the text for any pattern:

- A core without wildcards: `str.find`.
- A core with wildcards, near the start of the search: character by character, with one bit per character of the core.
- A core with wildcards, farther away: with one bit per character of the text. For each character of the core, an
  integer holds the positions of this character in the text; shifting and AND-ing these integers leaves the positions
  where the core fits. The integers are cached per text, so patterns of other rules reuse them. If a pattern has so many
  distinct characters that computing the integers takes longer than scanning the text, the text is scanned to its end.

Owns the meaning of patterns. Matching is case-sensitive, like every comparison of values.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from twinbus.broker.filters.errors import FilterError

MAX_PATTERN_CHARACTERS: Final = 1024
_ANY_TEXT: Final = "%"
_ANY_CHARACTER: Final = "_"
_SCAN_AHEAD: Final = 256
"""Number of characters that are scanned one by one before the search switches to position integers."""
_MAX_DISTINCT: Final = 50
"""Largest number of distinct characters in a pattern for which position integers are used."""
_MAX_CACHED: Final = 256
"""Maximum number of position integers cached for a text."""
_LARGEST_BYTE: Final = 0xFF
_PLANES: Final = 4
_ZERO, _ONE = b"01"


class CharacterPositions:
    """Positions of each character in a text, as integers whose lowest bit stands for the first character."""

    __slots__ = ("_bits", "_planes", "_text")

    def __init__(self, text: str) -> None:
        """Prepare a text; the positions of a character are computed on first use."""
        self._text = text
        self._bits: dict[str, int] = {}
        self._planes: list[bytes]
        """Byte planes of the reversed text's code points, lowest byte first; a plane of zeros is empty."""
        reverse = text[::-1]  # int(..., 2) takes the highest digit first
        try:
            self._planes = [reverse.encode("latin-1"), b"", b"", b""]
        except UnicodeEncodeError:
            wide = reverse.encode("utf-32-le", "surrogatepass")
            self._planes = [wide[plane::_PLANES].rstrip(b"\0") and wide[plane::_PLANES] for plane in range(_PLANES)]

    def positions_of(self, character: str) -> int:
        """Return the positions of one character as an integer."""
        bits = self._bits.get(character)
        if bits is None:
            if len(self._bits) >= _MAX_CACHED:
                self._bits.clear()
            bits = self._bits[character] = self._find(ord(character))
        return bits

    def is_for(self, text: str) -> bool:
        """Return whether these positions were computed for `text`, compared by identity."""
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
    """Cache of the last text's positions: the rules of a topic often test the same property of a message."""

    __slots__ = ("_positions",)

    def __init__(self) -> None:
        self._positions = CharacterPositions("0")

    def positions_in(self, text: str) -> CharacterPositions:
        if not self._positions.is_for(text):
            self._positions = CharacterPositions(text)
        return self._positions


_POSITIONS: Final = _PositionsCache()


class Segment:
    """Part of a pattern before, between or after the % characters: literal characters and `_` wildcards."""

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
        """Create a segment of these characters; None is a wildcard."""
        self.size = len(characters)
        literal_positions = [position for position, character in enumerate(characters) if character is not None]
        self._leading_wildcards = literal_positions[0] if literal_positions else 0
        """Number of wildcards before the core; `_trailing_wildcards` is the number of wildcards after the core."""
        self._trailing_wildcards = self.size - 1 - literal_positions[-1] if literal_positions else self.size
        core = characters[self._leading_wildcards : self.size - self._trailing_wildcards]
        literals = [character for character in core if character is not None]
        self._literal = "".join(literals) if len(literals) == len(core) else None
        """The core as a string, if it has no wildcards."""
        self.distinct_characters = set(literals) if self._literal is None else set()
        """Distinct literal characters of a core with wildcards; empty for a core without wildcards."""
        self._characters = core
        self._wildcard_mask = 0
        """Bits of the core's wildcard positions; `_masks` has, for each character, the positions where it may stand."""
        self._masks: dict[str, int] = {}
        for position, character in enumerate(core):
            if character is None:
                self._wildcard_mask |= 1 << position
            else:
                self._masks[character] = self._masks.get(character, 0) | 1 << position
        self._masks = {character: mask | self._wildcard_mask for character, mask in self._masks.items()}
        self._last_bit = 1 << len(core) >> 1

    @property
    def literal_count(self) -> int:
        """Number of literal characters."""
        return sum([character is not None for character in self._characters])

    def find(self, text: str, start: int, end: int, *, use_positions: bool = False) -> int:
        """Return the first position between `start` and `end` where the segment fits, or -1.

        `use_positions` allows a search by position integers.
        """
        start, end = start + self._leading_wildcards, end - self._trailing_wildcards
        if self._literal is not None:
            position = text.find(self._literal, start, end) if start <= end else -1
        else:
            scan_end = min(end, start + _SCAN_AHEAD + len(self._characters)) if use_positions else end
            position = self._find_by_characters(text, start, scan_end)
            if position < 0 and scan_end < end:
                position = self._find_by_positions(text, start + _SCAN_AHEAD, end)
        return position - self._leading_wildcards if position >= 0 else -1

    def matches_at(self, text: str, at: int) -> bool:
        """Return whether the segment fits at position `at` of `text`, which must be long enough."""
        if self._literal is not None:
            return text.startswith(self._literal, at + self._leading_wildcards)
        at += self._leading_wildcards
        for position, character in enumerate(self._characters, at):
            if character is not None and text[position] != character:
                return False
        return True

    def _find_by_positions(self, text: str, start: int, end: int) -> int:
        latest = end - len(self._characters) - start
        if latest < 0:
            return -1
        positions = _POSITIONS.positions_in(text)
        fits = (2 << latest) - 1
        for position, character in enumerate(self._characters, start):
            if character is not None:
                fits &= positions.positions_of(character) >> position
                if not fits:
                    return -1
        return start + (fits & -fits).bit_length() - 1

    def _find_by_characters(self, text: str, start: int, end: int) -> int:
        # Bit i of `reached` is set if the first i + 1 characters of the core match the text that ends at `at`.
        reached = 0
        for at in range(start, end):
            reached = (reached << 1 | 1) & self._masks.get(text[at], self._wildcard_mask)
            if reached & self._last_bit:
                return at + 1 - len(self._characters)
        return -1


class LikePattern:
    """Compiled LIKE pattern."""

    __slots__ = ("_segments", "_use_positions")

    def __init__(self, pattern: str, escape: str | None = None) -> None:
        """Compile a pattern; raise FilterError if it is too long or uses its escape character wrongly."""
        if len(pattern) > MAX_PATTERN_CHARACTERS:
            raise FilterError(f"the pattern has {len(pattern)} characters; the limit is {MAX_PATTERN_CHARACTERS}")
        if escape is not None and len(escape) != 1:
            raise FilterError(f"the escape character must be exactly one character, not {escape!r:.20}")
        self._segments = _split(pattern, escape)
        self._use_positions = 0 < len(self.distinct_characters) <= _MAX_DISTINCT

    @property
    def inner_segments(self) -> list[Segment]:
        """Segments to search for: all but the first and last, which are anchored to the ends of the text."""
        return self._segments[1:-1]

    @property
    def distinct_characters(self) -> set[str]:
        """Distinct literal characters of the inner segments whose core has wildcards."""
        return set().union(*[segment.distinct_characters for segment in self.inner_segments])

    def matches(self, text: str) -> bool:
        """Return whether the pattern matches the whole text."""
        first, last = self._segments[0], self._segments[-1]
        if len(self._segments) == 1:
            return len(text) == first.size and first.matches_at(text, 0)
        at, end = first.size, len(text) - last.size
        if at > end or not first.matches_at(text, 0) or not last.matches_at(text, end):
            return False
        for segment in self._segments[1:-1]:
            position = segment.find(text, at, end, use_positions=self._use_positions)
            if position < 0:
                return False
            at = position + segment.size
        return True


def _split(pattern: str, escape: str | None) -> list[Segment]:
    segments: list[Segment] = []
    characters: list[str | None] = []
    is_escaped = False
    for character in pattern:
        if is_escaped:
            characters.append(character)
            is_escaped = False
        elif character == escape:
            is_escaped = True
        elif character == _ANY_TEXT:
            if characters or not segments:  # %% is the same as %
                segments.append(Segment(characters))
            characters = []
        else:
            characters.append(None if character == _ANY_CHARACTER else character)
    if is_escaped:
        raise FilterError(f"the pattern {pattern!r:.60} ends with its escape character")
    return [*segments, Segment(characters)]


@lru_cache(maxsize=256)
def cached_pattern(pattern: str, escape: str | None) -> LikePattern:
    """Return a compiled pattern from a cache: patterns taken from a property are mostly the same for all messages."""
    return LikePattern(pattern, escape)
