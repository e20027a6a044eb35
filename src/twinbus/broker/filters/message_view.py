"""A message as rules see it: properties are decoded on first use and cached for the other rules.

To find a property, the view reads only names and sizes; it decodes the values of requested properties only, and never
the body.

Owns the properties that rules can read. Knows nothing of rules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.amqp.codec.decode import decode, open_list, open_map, skip
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
    id_as_string,
)
from twinbus.broker.message_record import HAS_TTL, enqueued_time_of, offsets_of, parse_record
from twinbus.model.times import TICKS_PER_MS

if TYPE_CHECKING:
    from twinbus.broker.filters.syntax_tree import PropertyKey

_ABSENT: Final = -1
_SHORT_DESCRIPTOR: Final = 0x53
"""Constructor of a descriptor that is a one-byte number (smallulong), which nearly all clients write."""
_SHORT_NAMES: Final = (0xA1, 0xA3)
"""Constructors of a string and a symbol with a one-byte size."""
_LONG_NAMES: Final = (0xB1, 0xB3)
_TIME_TO_LIVE: Final = property_number("TimeToLive")
_EXPIRES_AT: Final = property_number("ExpiresAtUtc")
_ENQUEUED_TIME: Final = property_number("EnqueuedTimeUtc")
_SEQUENCE_NUMBER: Final = property_number("SequenceNumber")
_DELIVERY_COUNT: Final = property_number("DeliveryCount")


class MessageView:
    """Properties of one stored message, decoded lazily."""

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
        """Create a view of a record (see `broker.message_record`); `sequence` is its sequence number, if assigned."""
        self.record = record
        self.scanned_properties = 0
        """Number of user properties that the view has scanned. Callers add this to the cost of the evaluation."""
        self._sequence = sequence
        self._values: dict[PropertyKey, object] = {}
        """Decoded properties."""
        self._source = record
        """The bytes that contain the sections."""
        self._bare_at = _ABSENT
        self._properties_at = _ABSENT
        self._user_properties_at = _ABSENT
        self._field_offsets: list[int] = []
        """Offsets of the fields of the properties section that were found so far."""
        self._fields_left = _ABSENT
        self._next_field = 0
        self._user_offsets: dict[bytes, int] | None = None
        """Offsets of the values of user properties, by name in lower case."""
        self._annotation_offsets: dict[bytes, int] | None = None

    def copy_cache(self, other: MessageView) -> None:
        """Copy the decoded properties and offsets of another view of the same message."""
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
        """Return a property as expressions see it, or None if it is null or absent."""
        values = self._values
        if key in values:
            return values[key]
        value = self._read_user_property(key) if isinstance(key, bytes) else self._read_system_property(key)
        values[key] = value
        return value

    def exists(self, key: PropertyKey) -> bool:
        """Return whether the message has the property; a user property may be null, a system property must not be."""
        if isinstance(key, bytes):
            return key in self._find_user_properties()
        return self.value(key) is not None

    def user_property_keys(self) -> list[bytes]:
        """Return the keys of all user properties: their names in lower case."""
        return list(self._find_user_properties())

    def amqp_value(self, key: bytes) -> object:
        """Return a user property with its AMQP type, or None if absent; raise DecodeError if it cannot be decoded."""
        at = self._find_user_properties().get(key, _ABSENT)
        return decode(self._source, at)[0] if at >= 0 else None

    # --- user properties ----------------------------------------------------------------------------------------------

    def _read_user_property(self, key: bytes) -> object:
        at = self._find_user_properties().get(key, _ABSENT)
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
        system_property = SYSTEM_PROPERTIES[number]
        if system_property.location is PropertyLocation.FIELD:
            return from_amqp(self._read_field(system_property.field))
        if system_property.location is PropertyLocation.ID:
            return id_as_string(self._read_field(system_property.field))
        if system_property.location is PropertyLocation.ANNOTATION:
            return self._read_annotation(system_property.annotation)
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
        at = self._annotation_offsets.get(name.encode(), _ABSENT)
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
        header = parse_record(self.record).header
        is_limited = header.flags & HAS_TTL
        return Duration(min(header.ttl_ms * TICKS_PER_MS, MAX_DURATION_TICKS) if is_limited else MAX_DURATION_TICKS)

    # --- sections -----------------------------------------------------------------------------------------------------

    def _find_sections(self) -> None:
        """Find the two properties sections, usually the first two; a body before them is skipped by its size."""
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
        """Let `Message` find the sections if a descriptor is not encoded as a one-byte number."""
        message = Message(self.record[self._bare_at :])
        properties, user = message.raw(Section.PROPERTIES), message.raw(Section.APPLICATION_PROPERTIES)
        self._source = properties + user
        self._properties_at = skip(properties, 1) if properties else _ABSENT
        self._user_properties_at = len(properties) + skip(user, 1) if user else _ABSENT


def _decode_or_opaque(source: bytes, at: int) -> object:
    """Return the value at `at`, or OPAQUE if it cannot be decoded: such a property still exists."""
    try:
        return decode(source, at)[0]
    except DecodeError:
        return OPAQUE


def _scan_map(source: bytes, at: int, pairs: int) -> dict[bytes, int]:
    """Return the offsets of a map's values by name in lower case; of names that differ only in case, the first wins."""
    offsets: dict[bytes, int] = {}
    for _ in range(pairs):
        constructor = source[at]
        if constructor in _SHORT_NAMES:
            start = at + 2
            end = start + source[at + 1]
        elif constructor in _LONG_NAMES:
            start = at + 5
            end = start + int.from_bytes(source[at + 1 : start], "big")
        else:  # a key that is not a string cannot be named by an expression
            at = skip(source, skip(source, at))
            continue
        name = source[start:end]
        name = name.lower() if name.isascii() else _lower_utf8(name)
        if name not in offsets:
            offsets[name] = end
        at = skip(source, end)
    return offsets


def _lower_utf8(name: bytes) -> bytes:
    return name.decode("utf-8", "surrogateescape").lower().encode("utf-8", "surrogateescape")
