"""A message as rules see it: its properties, each read when the first rule asks for it, and then kept for the others.

To find a property, names and sizes are walked over; values are decoded for those that are asked for. The body never is.

Owns: what a rule can know of a message. Knows nothing of rules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.amqp.decode import decode, open_list, open_map, skip
from twinbus.amqp.errors import DecodeError
from twinbus.amqp.message import Message, Section
from twinbus.broker.filters.system_properties import SYSTEM_PROPERTIES, PropertyLocation, property_number
from twinbus.broker.filters.values import (
    MAX_DURATION_TICKS,
    MAX_INSTANT_TICKS,
    OPAQUE,
    Duration,
    Instant,
    from_amqp,
    id_as_text,
)
from twinbus.broker.message_record import HAS_TTL, enqueued_time_of, offsets_of, parse_record
from twinbus.model.times import TICKS_PER_MS

if TYPE_CHECKING:
    from twinbus.broker.filters.syntax_tree import PropertyKey

_NOT_THERE: Final = -1
_SHORT_DESCRIPTOR: Final = 0x53
"""A number of one byte, as nearly all write it."""
_SHORT_NAMES: Final = (0xA1, 0xA3)
"""A string or a symbol, with a size of one byte."""
_LONG_NAMES: Final = (0xB1, 0xB3)
_TIME_TO_LIVE: Final = property_number("TimeToLive")
_EXPIRES_AT: Final = property_number("ExpiresAtUtc")
_ENQUEUED_TIME: Final = property_number("EnqueuedTimeUtc")
_SEQUENCE_NUMBER: Final = property_number("SequenceNumber")
_DELIVERY_COUNT: Final = property_number("DeliveryCount")


class MessageView:
    """One stored message."""

    __slots__ = (
        "_annotation_offsets",
        "_bare_at",
        "_field_offsets",
        "_fields_left",
        "_next_field",
        "_properties_at",
        "_sequence",
        "_source",
        "_user_offsets",
        "_user_properties_at",
        "_values",
        "record",
        "scanned_properties",
    )

    def __init__(self, record: bytes, sequence: int | None = None) -> None:
        """`record` is as `broker.record` makes it; `sequence` is the message's number, where it has one already."""
        self.record = record
        self.scanned_properties = 0
        """The sender's properties that were walked over to find one."""
        self._sequence = sequence
        self._values: dict[PropertyKey, object] = {}
        """What was asked for before."""
        self._source = record
        """The bytes that the sections lie in."""
        self._bare_at = _NOT_THERE
        self._properties_at = _NOT_THERE
        self._user_properties_at = _NOT_THERE
        self._field_offsets: list[int] = []
        """Where the fields of the properties begin, as far as was asked for."""
        self._fields_left = _NOT_THERE
        self._next_field = 0
        self._user_offsets: dict[bytes, int] | None = None
        """Where the values of the sender's properties begin, by their names in lower case."""
        self._annotation_offsets: dict[bytes, int] | None = None

    def copy_cache(self, other: MessageView) -> None:
        """Know of the same message what another view has read of it."""
        self.scanned_properties = other.scanned_properties
        self._values = dict(other._values)
        self._source = other._source
        self._bare_at, self._properties_at, self._user_properties_at = (
            other._bare_at,
            other._properties_at,
            other._user_properties_at,
        )
        self._field_offsets, self._fields_left, self._next_field = (
            list(other._field_offsets),
            other._fields_left,
            other._next_field,
        )
        self._user_offsets, self._annotation_offsets = other._user_offsets, other._annotation_offsets

    def value(self, key: PropertyKey) -> object:
        """A property, as expressions see it; None where it is null or not there."""
        values = self._values
        if key in values:
            return values[key]
        found = self._read_user_property(key) if isinstance(key, bytes) else self._read_system_property(key)
        values[key] = found
        return found

    def exists(self, key: PropertyKey) -> bool:
        """Whether the sender gave it such a property, be it null; whether a system property is not null."""
        if isinstance(key, bytes):
            return key in self._find_user_properties()
        return self.value(key) is not None

    def user_property_keys(self) -> list[bytes]:
        """Of the sender's properties, in lower case."""
        return list(self._find_user_properties())

    def amqp_value(self, key: bytes) -> object:
        """One of the sender's properties as AMQP has it, its type included. DecodeError if it cannot be read."""
        at = self._find_user_properties().get(key, _NOT_THERE)
        return decode(self._source, at)[0] if at >= 0 else None

    # --- the sender's properties --------------------------------------------------------------------------------------

    def _read_user_property(self, key: bytes) -> object:
        at = self._find_user_properties().get(key, _NOT_THERE)
        return from_amqp(_decode_or_opaque(self._source, at)) if at >= 0 else None

    def _find_user_properties(self) -> dict[bytes, int]:
        if self._user_offsets is None:
            self._find_sections()
            self._user_offsets = {}
            if self._user_properties_at >= 0:
                count, at = open_map(self._source, self._user_properties_at)
                self.scanned_properties = count // 2
                self._user_offsets = _scan_map(self._source, at, self.scanned_properties)
        return self._user_offsets

    # --- system properties --------------------------------------------------------------------------------------------

    def _read_system_property(self, number: int) -> object:
        found = SYSTEM_PROPERTIES[number]
        if found.location is PropertyLocation.FIELD:
            return from_amqp(self._read_field(found.field))
        if found.location is PropertyLocation.ID:
            return id_as_text(self._read_field(found.field))
        if found.location is PropertyLocation.ANNOTATION:
            return self._read_annotation(found.annotation)
        return self._read_record_head(number)

    def _read_field(self, index: int) -> object:
        fields, source = self._field_offsets, self._source
        if self._fields_left < 0:
            self._find_sections()
            source = self._source
            self._fields_left = 0
            if self._properties_at >= 0:
                self._fields_left, self._next_field = open_list(source, self._properties_at)
        while len(fields) <= index and self._fields_left:
            fields.append(self._next_field)
            self._next_field = skip(source, self._next_field)
            self._fields_left -= 1
        return _decode_or_opaque(source, fields[index]) if index < len(fields) else None

    def _read_annotation(self, name: str) -> object:
        if self._annotation_offsets is None:
            at, count, _ = offsets_of(self.record)
            self._annotation_offsets = _scan_map(self.record, at, count // 2)
        at = self._annotation_offsets.get(name.encode(), _NOT_THERE)
        return from_amqp(_decode_or_opaque(self.record, at)) if at >= 0 else None

    def _read_record_head(self, number: int) -> object:
        if number == _ENQUEUED_TIME:
            return Instant(enqueued_time_of(self.record) * TICKS_PER_MS)
        if number == _SEQUENCE_NUMBER:
            return self._sequence
        if number == _DELIVERY_COUNT:
            return parse_record(self.record).delivery_count
        if number == _TIME_TO_LIVE:
            return self._time_to_live()
        if number == _EXPIRES_AT:
            expires = enqueued_time_of(self.record) * TICKS_PER_MS + self._time_to_live().ticks
            return Instant(min(expires, MAX_INSTANT_TICKS))
        return len(self.record)

    def _time_to_live(self) -> Duration:
        envelope = parse_record(self.record).header
        is_limited = envelope.flags & HAS_TTL
        return Duration(min(envelope.ttl_ms * TICKS_PER_MS, MAX_DURATION_TICKS) if is_limited else MAX_DURATION_TICKS)

    # --- sections -----------------------------------------------------------------------------------------------------

    def _find_sections(self) -> None:
        """Find both sections, usually the first two; a body that lies before one is stepped over by its size."""
        if self._bare_at >= 0:
            return
        self._bare_at = offsets_of(self.record)[2]
        source, at, end = self._source, self._bare_at, len(self._source)
        while at < end and (self._properties_at < 0 or self._user_properties_at < 0):
            if source[at] != 0 or source[at + 1] != _SHORT_DESCRIPTOR:
                self._find_unusual_sections()
                return
            section, at = source[at + 2], at + 3
            if section == Section.PROPERTIES:
                self._properties_at = at
            elif section == Section.APPLICATION_PROPERTIES:
                self._user_properties_at = at
            at = skip(source, at)

    def _find_unusual_sections(self) -> None:
        """Descriptors written long, or by name, are for `Message` to read."""
        message = Message(self.record[self._bare_at :])
        properties, user = message.raw(Section.PROPERTIES), message.raw(Section.APPLICATION_PROPERTIES)
        self._source = properties + user
        self._properties_at = skip(properties, 1) if properties else _NOT_THERE
        self._user_properties_at = len(properties) + skip(user, 1) if user else _NOT_THERE


def _decode_or_opaque(source: bytes, at: int) -> object:
    """A value that cannot be read is there all the same; who sent it may know what it is."""
    try:
        return decode(source, at)[0]
    except DecodeError:
        return OPAQUE


def _scan_map(source: bytes, at: int, pairs: int) -> dict[bytes, int]:
    """Where the values of a map begin, by names in lower case. Of names that differ in case only the first counts."""
    found: dict[bytes, int] = {}
    for _ in range(pairs):
        constructor = source[at]
        if constructor in _SHORT_NAMES:
            start = at + 2
            end = start + source[at + 1]
        elif constructor in _LONG_NAMES:
            start = at + 5
            end = start + int.from_bytes(source[at + 1 : start], "big")
        else:  # a name that is no text names nothing here
            at = skip(source, skip(source, at))
            continue
        name = source[start:end]
        name = name.lower() if name.isascii() else _lower_utf8(name)
        if name not in found:
            found[name] = end
        at = skip(source, end)
    return found


def _lower_utf8(name: bytes) -> bytes:
    return name.decode("utf-8", "surrogateescape").lower().encode("utf-8", "surrogateescape")
