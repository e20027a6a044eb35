"""Messages that an exclusive receiver does not want for now: they stay in their place, and the others go on.

The receiver names an application property and values of it (the syphon: the destinations that accept nothing). Messages
with one of these values, in upper or lower case, are skipped, and not noted one by one: what is kept is the lowest
sequence number that was skipped for each value, from which messages are read again once the value is released. So a
million withheld messages take no more memory than one.

Owns: the values, and these numbers. When the receiver leaves, nothing is withheld any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.amqp.decode import decode, open_map, skip
from twinbus.amqp.errors import DecodeError
from twinbus.amqp.message import Message, Section
from twinbus.broker.record import places_of

if TYPE_CHECKING:
    from collections.abc import Iterable

_SMALL_DESCRIPTOR: Final = 0x53
_APPLICATION_PROPERTIES: Final = int(Section.APPLICATION_PROPERTIES)
_SHORT: Final = 256
_STRINGS: Final = ((b"\xa1", b"\xb1"), (b"\xa3", b"\xb3"))
"""Constructors of strings and symbols: with one byte for their length, and with four."""


class Withheld:
    """The values of one property whose messages are skipped."""

    __slots__ = ("_encodings", "_lowest", "_name", "_names")

    def __init__(self) -> None:
        """Nothing is withheld."""
        self._name = ""
        self._names: list[bytes] = []
        """The name as it may be encoded."""
        self._encodings: dict[bytes, str] = {}
        """The values by all that they may be encoded as."""
        self._lowest: dict[str, int | None] = {}
        """The values, each with the lowest sequence number that was skipped for it."""

    @property
    def values(self) -> list[str]:
        """The values whose messages are skipped."""
        return list(self._lowest)

    @property
    def lowest(self) -> int | None:
        """The lowest sequence number that was skipped, or None."""
        return _least(self._lowest.values())

    def skips(self, sequence: int, record: bytes) -> bool:
        """Tell whether a message is withheld, and note it if so."""
        value = self._value_in(record)
        if value is None:
            return False
        lowest = self._lowest[value]
        if lowest is None or sequence < lowest:
            self._lowest[value] = sequence
        return True

    def change(self, name: str, values: Iterable[str]) -> int | None:
        """Withhold these values, and no others. Returns the lowest number that was skipped for the rest, or None."""
        before, self._lowest = self._lowest, dict.fromkeys([value.lower() for value in values])
        if name == self._name:
            self._lowest |= {value: before.pop(value) for value in list(before) if value in self._lowest}
        self._name, self._names = name, _encodings_of(name)
        self._encodings = {encoded.lower(): value for value in self._lowest for encoded in _encodings_of(value)}
        return _least(before.values())

    def forget(self) -> None:
        """All messages are read again."""
        self._lowest = dict.fromkeys(self._lowest)

    def _value_in(self, record: bytes) -> str | None:
        """Return the value that a message has, if it is one of ours."""
        at, end = places_of(record)[2], len(record)
        try:
            while at < end:
                if record[at] or record[at + 1] != _SMALL_DESCRIPTOR:
                    return self._value_of(Message(record[at:]))
                if record[at + 2] == _APPLICATION_PROPERTIES:
                    return self._value_at(record, at + 3)
                at = skip(record, at + 3)
        except (DecodeError, IndexError):
            pass  # it is delivered, and its receiver says what is wrong with it
        return None

    def _value_at(self, record: bytes, at: int) -> str | None:
        """Return the value in the map of application properties that lies there."""
        count, at = open_map(record, at)
        for _ in range(count // 2):
            value_at = skip(record, at)
            end = skip(record, value_at)
            if record[at:value_at] in self._names:
                encoded = record[value_at:end]
                value = self._encodings.get(encoded.lower())
                if value is None and not encoded[2:].isascii():  # bytes know no other letters
                    return self._known(decode(encoded)[0])
                return value
            at = end
        return None

    def _value_of(self, message: Message) -> str | None:
        return self._known(message.lookup(Section.APPLICATION_PROPERTIES, self._name))

    def _known(self, value: object) -> str | None:
        return value.lower() if isinstance(value, str) and value.lower() in self._lowest else None


def _encodings_of(text: str) -> list[bytes]:
    content = text.encode()
    size = len(content)
    short = [one + bytes([size]) + content for one, _ in _STRINGS] if size < _SHORT else []
    return short + [four + size.to_bytes(4) + content for _, four in _STRINGS]


def _least(numbers: Iterable[int | None]) -> int | None:
    return min([number for number in numbers if number is not None], default=None)
