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
from twinbus.broker.record import offsets_of

if TYPE_CHECKING:
    from collections.abc import Iterable

_SMALL_DESCRIPTOR: Final = 0x53
_APPLICATION_PROPERTIES: Final = int(Section.APPLICATION_PROPERTIES)
_SHORT_STRING_LIMIT: Final = 256
_STRING_CONSTRUCTORS: Final = ((b"\xa1", b"\xb1"), (b"\xa3", b"\xb3"))
"""Constructors of strings and symbols: with one byte for their length, and with four."""


class WithheldValues:
    """The values of one property whose messages are skipped."""

    __slots__ = ("_encoded_names", "_lowest_skipped", "_property_name", "_values_by_encoding")

    def __init__(self) -> None:
        """Nothing is withheld."""
        self._property_name = ""
        self._encoded_names: list[bytes] = []
        """The name as it may be encoded."""
        self._values_by_encoding: dict[bytes, str] = {}
        """The values by all that they may be encoded as."""
        self._lowest_skipped: dict[str, int | None] = {}
        """The values, each with the lowest sequence number that was skipped for it."""

    @property
    def values(self) -> list[str]:
        """The values whose messages are skipped."""
        return list(self._lowest_skipped)

    @property
    def lowest_skipped(self) -> int | None:
        """The lowest sequence number that was skipped, or None."""
        return _min_or_none(self._lowest_skipped.values())

    def skips(self, sequence: int, record: bytes) -> bool:
        """Tell whether a message is withheld, and note it if so."""
        value = self._value_in(record)
        if value is None:
            return False
        lowest = self._lowest_skipped[value]
        if lowest is None or sequence < lowest:
            self._lowest_skipped[value] = sequence
        return True

    def set_values(self, property_name: str, values: Iterable[str]) -> int | None:
        """Withhold these values, and no others. Returns the lowest number that was skipped for the rest, or None."""
        before, self._lowest_skipped = self._lowest_skipped, dict.fromkeys([value.lower() for value in values])
        if property_name == self._property_name:
            self._lowest_skipped |= {
                value: before.pop(value) for value in list(before) if value in self._lowest_skipped
            }
        self._property_name, self._encoded_names = property_name, _encodings_of(property_name)
        self._values_by_encoding = {
            encoded.lower(): value for value in self._lowest_skipped for encoded in _encodings_of(value)
        }
        return _min_or_none(before.values())

    def forget_skipped(self) -> None:
        """All messages are read again."""
        self._lowest_skipped = dict.fromkeys(self._lowest_skipped)

    def _value_in(self, record: bytes) -> str | None:
        """Return the value that a message has, if it is one of ours."""
        at, end = offsets_of(record)[2], len(record)
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
            if record[at:value_at] in self._encoded_names:
                encoded = record[value_at:end]
                value = self._values_by_encoding.get(encoded.lower())
                if value is None and not encoded[2:].isascii():  # bytes know no other letters
                    return self._match(decode(encoded)[0])
                return value
            at = end
        return None

    def _value_of(self, message: Message) -> str | None:
        return self._match(message.lookup(Section.APPLICATION_PROPERTIES, self._property_name))

    def _match(self, value: object) -> str | None:
        return value.lower() if isinstance(value, str) and value.lower() in self._lowest_skipped else None


def _encodings_of(text: str) -> list[bytes]:
    content = text.encode()
    size = len(content)
    short = [one + bytes([size]) + content for one, _ in _STRING_CONSTRUCTORS] if size < _SHORT_STRING_LIMIT else []
    return short + [four + size.to_bytes(4) + content for _, four in _STRING_CONSTRUCTORS]


def _min_or_none(numbers: Iterable[int | None]) -> int | None:
    return min([number for number in numbers if number is not None], default=None)
