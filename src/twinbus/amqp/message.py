"""Messages: encoded sections, located once and decoded on demand (part 3.2 of the specification).

A broker passes most of a message through unchanged. So `Message` only locates the sections; on request, it decodes a
section, a single field, a single key of a map, or the body. Sections may come in any order, because some clients send
them out of order; `build` writes them in the order that the specification requires.

Owns the layout of a message; `sections` declares the fields. Must not know what annotations or properties mean to a
broker.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final

from twinbus.amqp.codec.composite import Composite, from_described
from twinbus.amqp.codec.decode import DEFAULT_LIMITS, decode, open_list, open_map, skip
from twinbus.amqp.codec.encode import write, write_list
from twinbus.amqp.codec.sections import Header, Properties, Section
from twinbus.amqp.errors import DecodeError, EncodeError
from twinbus.amqp.types import Described, Pairs, Symbol, ULong

if TYPE_CHECKING:
    from collections.abc import Mapping

    from twinbus.amqp.settings import Limits

__all__ = [
    "BODY_SECTIONS",
    "Header",
    "Message",
    "Properties",
    "Section",
    "build",
    "data",
    "section_of",
    "sequence",
    "value",
]

BODY_SECTIONS: Final = frozenset({0x75, 0x76, 0x77})

_ENVELOPE: Final = (Section.HEADER, Section.DELIVERY_ANNOTATIONS, Section.MESSAGE_ANNOTATIONS)
"""Sections that brokers write."""

_SYMBOLS: Final = {
    "amqp:header:list": Section.HEADER,
    "amqp:delivery-annotations:map": Section.DELIVERY_ANNOTATIONS,
    "amqp:message-annotations:map": Section.MESSAGE_ANNOTATIONS,
    "amqp:properties:list": Section.PROPERTIES,
    "amqp:application-properties:map": Section.APPLICATION_PROPERTIES,
    "amqp:data:binary": Section.DATA,
    "amqp:amqp-sequence:list": Section.SEQUENCE,
    "amqp:amqp-value:*": Section.VALUE,
    "amqp:footer:map": Section.FOOTER,
}
_NULL: Final = 0x40
_DATA_LEAD: Final = bytes((0x00, 0x53, Section.DATA))
_MAX_SHORT: Final = 255
_SHORT_DATA: Final = struct.Struct(">3sBB")
_DATA: Final = struct.Struct(">3sBI")
_SECTION_CODES: Final = frozenset(int(section) for section in Section)


_BODY_TYPES: Final[dict[Section, type]] = {Section.DATA: bytes, Section.SEQUENCE: list, Section.VALUE: object}


class Message:
    """Encoded message. The constructor locates the sections, and raises DecodeError if they are invalid."""

    __slots__ = ("_body", "_limits", "_spans", "payload")

    def __init__(self, payload: bytes, limits: Limits = DEFAULT_LIMITS) -> None:
        """Locate the sections of `payload`; `limits` apply to values decoded later."""
        self.payload = payload
        self._limits = limits
        self._spans: dict[int, tuple[int, int, int]] = {}
        """Section code -> (start of the section, start of the section's value, end of the section)."""
        self._body: list[tuple[int, int, int]] = []
        """Spans of all body sections: a body may have several DATA or SEQUENCE sections."""
        self._find_sections()

    def _find_sections(self) -> None:
        payload, spans, body = self.payload, self._spans, self._body
        at, end = 0, len(payload)
        while at < end:
            start = at
            if payload[at : at + 2] == b"\x00\x53":
                code = payload[at + 2] if at + 2 < end else 0
                at += 3
            else:
                code, at = self._read_descriptor(at)
            value_at = at
            at = skip(payload, at)
            if code in BODY_SECTIONS:
                if body and (code not in spans or code == Section.VALUE):
                    raise DecodeError("the message has two bodies")
                spans.setdefault(code, (start, value_at, at))
                body.append((start, value_at, at))
            elif code in spans:
                raise DecodeError(f"the message has two {Section(code).name.lower()} sections")
            elif code in _SECTION_CODES:
                spans[code] = (start, value_at, at)
            else:
                raise DecodeError(f"no known section starts at byte {start} of the message")

    def _read_descriptor(self, at: int) -> tuple[int, int]:
        """Decode a descriptor in a rare encoding (eight bytes, or a name). Return code 0 for an unknown section."""
        if self.payload[at] != 0:
            return 0, at
        descriptor, value_at = decode(self.payload, at + 1, self._limits)
        if type(descriptor) is ULong:
            return descriptor, value_at
        return (_SYMBOLS.get(descriptor, 0) if type(descriptor) is Symbol else 0), value_at

    # --- sections -----------------------------------------------------------------------------------------------------

    def __contains__(self, section: Section) -> bool:
        return section in self._spans

    def raw(self, section: Section) -> bytes:
        """Return a section with its descriptor (for a body section, the whole body), or b"" if it is absent."""
        if section not in self._spans:
            return b""
        spans = self._body if section in BODY_SECTIONS else [self._spans[section]]
        return b"".join([self.payload[start:end] for start, _, end in spans])

    def content(self, section: Section) -> bytes:
        """Return the encoded value of a section, without its descriptor, or b"" if absent. Not for body sections."""
        span = self._spans.get(section)
        return self.payload[span[1] : span[2]] if span is not None else b""

    def size_of(self, section: Section) -> int:
        """Return the size of a section including its descriptor; for a body, return the size of its first section."""
        span = self._spans.get(section)
        return span[2] - span[0] if span is not None else 0

    def bare(self) -> bytes:
        """Return properties, application properties and body, which intermediaries must not change, and the footer.

        Usually this part is the end of the message, and a single slice returns it.
        """
        spans = self._spans
        ends = [spans[section][2] for section in _ENVELOPE if section in spans]
        start = max(ends, default=0)
        if all(span[0] >= start for section, span in spans.items() if section not in _ENVELOPE):
            return self.payload[start:]
        pieces = [self.raw(section) for section in (Section.PROPERTIES, Section.APPLICATION_PROPERTIES)]
        pieces += [self.payload[at:end] for at, _, end in self._body]
        return b"".join([*pieces, self.raw(Section.FOOTER)])

    def pairs(self, section: Section) -> list[tuple[object, bytes]]:
        """Return the keys of a map section, each with the encoded bytes of key and value."""
        return [(key, raw) for key, _, raw in self.entries(section)]

    def entries(self, section: Section) -> list[tuple[object, int, bytes]]:
        """Return (key, offset of the value in the bytes, encoded bytes of key and value) per entry of a map section."""
        if section not in self._spans:
            return []
        payload, limits = self.payload, self._limits
        _, value_at, end = self._spans[section]
        count, at = open_map(payload, value_at)
        entries = []
        for _ in range(count // 2):
            if at >= end:
                raise DecodeError("a map has fewer elements than it declares")
            key, item_at = decode(payload, at, limits)
            item_end = skip(payload, item_at)
            if item_end > end:
                raise DecodeError("a value runs past the end of its section")
            entries.append((key, item_at - at, payload[at:item_end]))
            at = item_end
        return entries

    def entry_count(self, section: Section) -> int:
        """Return the number of entries that a map section declares, or 0 if the section is absent."""
        if section not in self._spans:
            return 0
        count, _ = open_map(self.payload, self._spans[section][1])
        return count // 2

    def fields(self, section: Section) -> list[bytes]:
        """Return the encoded fields of a list section; empty if the section is absent."""
        if section not in self._spans:
            return []
        _, value_at, end = self._spans[section]
        count, at = open_list(self.payload, value_at)
        fields = []
        for _ in range(count):
            if at >= end:
                raise DecodeError("a list has fewer elements than it declares")
            start, at = at, skip(self.payload, at)
            fields.append(self.payload[start:at])
        return fields

    def checked(self, section: Section, shape: type[Composite]) -> list[Any]:
        """Check and return all fields of the header or the properties, in order.

        This method is faster than `header` and `properties`. An absent field has its default.
        """
        values: object = []
        if section in self._spans:
            values, _ = decode(self.payload, self._spans[section][1], self._limits)
        if not isinstance(values, list):
            raise DecodeError(f"{shape.symbol} is not a list")
        field_specs, value_count = shape.field_specs, len(values)
        if value_count > len(field_specs):
            raise DecodeError(f"{shape.symbol} has {value_count} fields; the maximum is {len(field_specs)}")
        fields: list[Any] = []
        for index, (name, field_type, default) in enumerate(field_specs):
            value = values[index] if index < value_count else None
            if value is None:
                fields.append(default)
                continue
            try:
                fields.append(field_type.read(value))
            except TypeError:
                raise DecodeError(f"{shape.symbol}: {name} is {value!r:.60}, not a {field_type.name}") from None
        return fields

    @property
    def header(self) -> Header | None:
        """Header section, or None."""
        header = self._composite(Section.HEADER)
        return header if isinstance(header, Header) else None

    @property
    def properties(self) -> Properties | None:
        """Properties section, or None."""
        properties = self._composite(Section.PROPERTIES)
        return properties if isinstance(properties, Properties) else None

    @property
    def delivery_annotations(self) -> Mapping[object, object] | Pairs:
        """Delivery annotations, for the next hop only."""
        return self._map(Section.DELIVERY_ANNOTATIONS)

    @property
    def message_annotations(self) -> Mapping[object, object] | Pairs:
        """Message annotations, for all intermediaries."""
        return self._map(Section.MESSAGE_ANNOTATIONS)

    @property
    def application_properties(self) -> Mapping[object, object] | Pairs:
        """Application properties, set by the sender."""
        return self._map(Section.APPLICATION_PROPERTIES)

    @property
    def footer(self) -> Mapping[object, object] | Pairs:
        """Footer section, which follows the body."""
        return self._map(Section.FOOTER)

    # --- body ---------------------------------------------------------------------------------------------------------

    @property
    def body_section(self) -> Section | None:
        """Section type of the body: DATA, SEQUENCE, VALUE, or None if there is no body."""
        for section in (Section.DATA, Section.SEQUENCE, Section.VALUE):
            if section in self._spans:
                return section
        return None

    @property
    def data(self) -> list[bytes]:
        """Binaries of a DATA body; empty for any other body."""
        return [value for value in self._body_values(Section.DATA) if isinstance(value, bytes)]

    @property
    def sequences(self) -> list[list[object]]:
        """Lists of a SEQUENCE body; empty for any other body."""
        return [value for value in self._body_values(Section.SEQUENCE) if isinstance(value, list)]

    @property
    def value(self) -> object:
        """Value of a VALUE body, or None. Composites (declare, discharge) are converted to their classes."""
        values = self._body_values(Section.VALUE)
        return values[0] if values else None

    def _body_values(self, section: Section) -> list[object]:
        if section not in self._spans:
            return []
        expected_type = _BODY_TYPES[section]
        values = []
        for _, start, _ in self._body:
            value, _ = decode(self.payload, start, self._limits)
            if not isinstance(value, expected_type):
                raise DecodeError(f"the {section.name.lower()} section contains {value!r:.60}")
            values.append(from_described(value) if isinstance(value, Described) else value)
        return values

    # --- single fields ------------------------------------------------------------------------------------------------

    def field(self, section: Section, index: int) -> object:
        """Decode a single field in the header or the properties; return None if the field is absent."""
        if section not in self._spans:
            return None
        _, value_at, end = self._spans[section]
        count, at = open_list(self.payload, value_at)
        if index >= count:
            return None
        for _ in range(index):
            at = skip(self.payload, at)
            if at >= end:
                raise DecodeError("a list has fewer elements than it declares")
        return self._value_within(at, end)

    def has_field(self, section: Section, index: int) -> bool:
        """Return whether a field of the header or the properties is present and not null."""
        if section not in self._spans:
            return False
        _, value_at, end = self._spans[section]
        count, at = open_list(self.payload, value_at)
        if index >= count:
            return False
        for _ in range(index):
            at = skip(self.payload, at)
        return at < end and self.payload[at] != _NULL

    def lookup(self, section: Section, key: str) -> object:
        """Decode a single value in a map section; return None if the key is absent."""
        if section not in self._spans:
            return None
        _, value_at, end = self._spans[section]
        count, at = open_map(self.payload, value_at)
        for _ in range(count // 2):
            if at >= end:
                break
            candidate, at = decode(self.payload, at, self._limits)
            if isinstance(candidate, str) and candidate == key:
                return self._value_within(at, end)
            at = skip(self.payload, at)
        return None

    def _value_within(self, at: int, end: int) -> object:
        value, value_end = decode(self.payload, at, self._limits)
        if value_end > end:
            raise DecodeError("a value runs past the end of its section")
        return value

    def _composite(self, section: Section) -> object:
        if section not in self._spans:
            return None
        value, _ = decode(self.payload, self._spans[section][0], self._limits)
        assert isinstance(value, Described)
        return from_described(value)

    def _map(self, section: Section) -> Mapping[object, object] | Pairs:
        if section not in self._spans:
            return {}
        value, _ = decode(self.payload, self._spans[section][1], self._limits)
        if not isinstance(value, dict | Pairs):
            raise DecodeError(f"{section.name.lower()} is {value!r:.60}, not a map")
        return value


def build(
    *,
    header: Header | None = None,
    delivery_annotations: Mapping[str, object] | None = None,
    message_annotations: Mapping[str, object] | None = None,
    properties: Properties | None = None,
    application_properties: Mapping[str, object] | None = None,
    body: bytes = b"",
    footer: Mapping[str, object] | None = None,
) -> bytes:
    """Return an encoded message. `body` consists of encoded sections, from `data`, `sequence` or `value`."""
    out = bytearray()
    if header is not None:
        header.write(out)
    _write_annotations(out, Section.DELIVERY_ANNOTATIONS, delivery_annotations)
    _write_annotations(out, Section.MESSAGE_ANNOTATIONS, message_annotations)
    if properties is not None:
        properties.write(out)
    if application_properties is not None:
        _write_descriptor(out, Section.APPLICATION_PROPERTIES)
        write(out, dict(application_properties))
    out += body
    _write_annotations(out, Section.FOOTER, footer)
    return bytes(out)


def section_of(shape: type[Composite], values: tuple[object, ...]) -> bytes:
    """Encode the header or the properties from all field values in order; trailing nulls are omitted."""
    field_specs, count = shape.field_specs, len(values)
    while count and values[count - 1] is None:
        count -= 1
    out, body = bytearray((0x00, 0x53, shape.code)), bytearray()
    for index in range(count):
        item = values[index]
        if item is None:
            body.append(_NULL)
            continue
        name, field_type, _ = field_specs[index]
        try:
            field_type.write(body, item)
        except (EncodeError, TypeError, ValueError, AttributeError, struct.error) as error:
            raise EncodeError(f"{shape.symbol}: {name} is not a {field_type.name}: {error}") from None
    write_list(out, body, count)
    return bytes(out)


def data(*binaries: bytes) -> bytes:
    """Encode a body of binaries, one section for each."""
    pieces: list[bytes] = []
    for binary in binaries:
        size = len(binary)
        pieces.append(
            _SHORT_DATA.pack(_DATA_LEAD, 0xA0, size) if size <= _MAX_SHORT else _DATA.pack(_DATA_LEAD, 0xB0, size)
        )
        pieces.append(binary)
    return b"".join(pieces)


def sequence(*lists: list[object]) -> bytes:
    """Encode a body of lists, one section for each."""
    out = bytearray()
    for items in lists:
        _write_descriptor(out, Section.SEQUENCE)
        write(out, items)
    return bytes(out)


def value(content: object) -> bytes:
    """Encode a body of one value, which may be a composite."""
    out = bytearray()
    _write_descriptor(out, Section.VALUE)
    if isinstance(content, Composite):
        content.write(out)
    else:
        write(out, content)
    return bytes(out)


def _write_descriptor(out: bytearray, section: Section) -> None:
    out += bytes((0x00, 0x53, section))


def _write_annotations(out: bytearray, section: Section, annotations: Mapping[str, object] | None) -> None:
    if annotations is not None:
        _write_descriptor(out, section)
        write(out, {Symbol(key): item for key, item in annotations.items()})
