"""The read-ahead window: the next messages of a fragment, in memory; later messages stay in the store.

Owns: the available messages in memory, and the position to read from next. A window holds at most `WINDOW_MESSAGES`
messages and about `WINDOW_BYTES`, however long the backlog is.

    ── deleted ──┬── in flight and requeued ──┬── ready ──┬── in the store only ──┬── not on disk yet ──
           low_watermark                              next_read           committed.next_sequence
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from typing import TYPE_CHECKING, Final

from twinbus.amqp.codec.decode import decode, open_map, skip
from twinbus.amqp.errors import DecodeError
from twinbus.amqp.message import Message, Section
from twinbus.broker.message_record import offsets_of
from twinbus.broker.store_keys import sequence_of_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from twinbus.store.protocol import Row

_SMALL_DESCRIPTOR: Final = 0x53
_APPLICATION_PROPERTIES: Final = int(Section.APPLICATION_PROPERTIES)
_SHORT_STRING_LIMIT: Final = 256
_STRING_CONSTRUCTORS: Final = ((b"\xa1", b"\xb1"), (b"\xa3", b"\xb3"))
"""AMQP constructors of strings and symbols, each with a length of one byte and of four bytes."""


class WithheldValues:
    """The values of one property; messages with one of these values are skipped."""

    __slots__ = ("_encoded_names", "_lowest_skipped", "_property_name", "_values_by_encoding")

    def __init__(self) -> None:
        """Create an empty set of values."""
        self._property_name = ""
        self._encoded_names: list[bytes] = []
        """All possible encodings of the property name."""
        self._values_by_encoding: dict[bytes, str] = {}
        """The values by all their possible encodings, in lower case."""
        self._lowest_skipped: dict[str, int | None] = {}
        """The values, each with the lowest sequence number skipped for it, or None."""

    @property
    def values(self) -> list[str]:
        """The values; messages with one of these values are skipped."""
        return list(self._lowest_skipped)

    @property
    def lowest_skipped(self) -> int | None:
        """The lowest sequence number that was skipped, or None."""
        return _min_or_none(self._lowest_skipped.values())

    def skips(self, sequence: int, record: bytes) -> bool:
        """Return whether a message is withheld, and record its sequence number if so."""
        value = self._value_in(record)
        if value is None:
            return False
        lowest = self._lowest_skipped[value]
        if lowest is None or sequence < lowest:
            self._lowest_skipped[value] = sequence
        return True

    def set_values(self, property_name: str, values: Iterable[str]) -> int | None:
        """Replace the withheld values. Return the lowest sequence number skipped for a removed value, or None."""
        previous, self._lowest_skipped = self._lowest_skipped, dict.fromkeys([value.lower() for value in values])
        if property_name == self._property_name:
            self._lowest_skipped |= {
                value: previous.pop(value) for value in list(previous) if value in self._lowest_skipped
            }
        self._property_name, self._encoded_names = property_name, _encodings_of(property_name)
        self._values_by_encoding = {
            encoded.lower(): value for value in self._lowest_skipped for encoded in _encodings_of(value)
        }
        return _min_or_none(previous.values())

    def forget_skipped(self) -> None:
        """Forget the skipped sequence numbers, because all messages are read again."""
        self._lowest_skipped = dict.fromkeys(self._lowest_skipped)

    def _value_in(self, record: bytes) -> str | None:
        """Return the property value of a record if it is withheld, or None."""
        at, end = offsets_of(record)[2], len(record)
        try:
            while at < end:
                if record[at] or record[at + 1] != _SMALL_DESCRIPTOR:
                    return self._value_of(Message(record[at:]))
                if record[at + 2] == _APPLICATION_PROPERTIES:
                    return self._value_at(record, at + 3)
                at = skip(record, at + 3)
        except (DecodeError, IndexError):
            pass  # a malformed message is delivered, so that the receiver reports the error
        return None

    def _value_at(self, record: bytes, at: int) -> str | None:
        """Return the withheld value in the map of application properties at an offset, or None."""
        count, at = open_map(record, at)
        for _ in range(count // 2):
            value_at = skip(record, at)
            end = skip(record, value_at)
            if record[at:value_at] in self._encoded_names:
                encoded = record[value_at:end]
                value = self._values_by_encoding.get(encoded.lower())
                if value is None and not encoded[2:].isascii():  # bytes.lower() handles only ASCII
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
    short = (
        [constructor + bytes([size]) + content for constructor, _ in _STRING_CONSTRUCTORS]
        if size < _SHORT_STRING_LIMIT
        else []
    )
    return short + [long_constructor + size.to_bytes(4) + content for _, long_constructor in _STRING_CONSTRUCTORS]


def _min_or_none(numbers: Iterable[int | None]) -> int | None:
    return min([number for number in numbers if number is not None], default=None)


WINDOW_MESSAGES: Final = 2_000
WINDOW_BYTES: Final = 4_194_304
_REFILL_BELOW: Final = WINDOW_MESSAGES // 2


class Window:
    """The next available messages of a fragment."""

    __slots__ = ("is_reading", "next_read", "ready", "ready_bytes")

    def __init__(self, next_read: int) -> None:
        """Create an empty window that reads from the sequence number `next_read` on."""
        self.ready: deque[tuple[int, bytes]] = deque()
        """Sequence numbers and records of available messages, in order."""
        self.ready_bytes = 0
        self.next_read = next_read
        self.is_reading = False

    @property
    def lowest_available(self) -> int:
        """The sequence number below which no message is available: all lower messages are in flight or removed."""
        return min(self.ready[0][0], self.next_read) if self.ready else self.next_read

    def extend(self, messages: list[tuple[int, bytes]], size: int) -> None:
        """Add new messages, if the window has room and all earlier messages are in it."""
        if self.next_read == messages[0][0] and len(self.ready) < WINDOW_MESSAGES and self.ready_bytes < WINDOW_BYTES:
            self.ready.extend(messages)
            self.ready_bytes += size
            self.next_read = messages[-1][0] + 1

    def take(self, count: int) -> list[tuple[int, bytes]]:
        """Remove and return the next `count` messages."""
        popleft = self.ready.popleft
        taken = [popleft() for _ in range(count)]
        self.ready_bytes -= sum([len(record) for _, record in taken])
        return taken

    def withdraw(self, sequences: set[int]) -> None:
        """Remove messages from the window."""
        kept = [message for message in self.ready if message[0] not in sequences]
        if len(kept) < len(self.ready):
            self.ready = deque(kept)
            self.ready_bytes = sum([len(record) for _, record in kept])

    def requeue(self, sequence: int, record: bytes) -> None:
        """Insert a message that was in flight, at its position in the order of sequence numbers."""
        self.ready_bytes += len(record)
        if self.ready and self.ready[0][0] < sequence:
            insort(self.ready, (sequence, record))
        else:
            self.ready.appendleft((sequence, record))
        while len(self.ready) > 1 and (len(self.ready) > 2 * WINDOW_MESSAGES or self.ready_bytes > 2 * WINDOW_BYTES):
            self.next_read, record = self.ready.pop()  # drop the last messages, which are read again later
            self.ready_bytes -= len(record)

    def needs_read(self, committed_end: int) -> bool:
        """Return whether the window is less than half full and the store has more messages."""
        return (
            self.next_read < committed_end
            and not self.is_reading
            and len(self.ready) < _REFILL_BELOW
            and self.ready_bytes < WINDOW_BYTES // 2
        )

    def fill(
        self,
        rows: Sequence[Row],
        start: int,
        end: int,
        is_in_flight: Callable[[int], bool],
        withheld_values: WithheldValues | None = None,
    ) -> None:
        """Add messages that were read from `start` up to `end`, except those that are in flight or withheld."""
        self.is_reading = False
        if self.next_read != start:
            return  # a lower message was requeued meanwhile: the next read starts there
        if not rows:
            self.next_read = end
        for key, record in rows:
            sequence = sequence_of_key(key)
            self.next_read = sequence + 1
            if not is_in_flight(sequence) and (withheld_values is None or not withheld_values.skips(sequence, record)):
                self.ready.append((sequence, record))
                self.ready_bytes += len(record)

    def withhold(self, withheld_values: WithheldValues) -> None:
        """Remove messages that are withheld from now on."""
        self.withdraw({sequence for sequence, record in self.ready if withheld_values.skips(sequence, record)})

    def clear(self) -> None:
        """Drop all messages to free memory, because there are no consumers."""
        self.next_read = self.lowest_available
        self.ready.clear()
        self.ready_bytes = 0
