"""Messages: sections kept as they came, found once and read on demand (part 3.2).

A broker passes most of a message through untouched. So `Message` only finds where each section lies; a section, one
field of it or one key of a map is decoded when somebody asks, and the body never unless it is asked for. Sections are
taken in any order, because clients do send them so; `build` writes them in the order of the specification.

Owns: the layout of a message; the fields of its sections are in `sections`. Knows nothing of what annotations or
properties mean to a broker.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final

from twinbus.amqp.composite import Composite, from_described
from twinbus.amqp.decode import DEFAULT_LIMITS, decode, open_list, open_map, skip
from twinbus.amqp.encode import write, write_list
from twinbus.amqp.errors import DecodeError, EncodeError
from twinbus.amqp.sections import Header, Properties, Section
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
"""The sections that brokers write."""

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
    """One encoded message. Making one only finds its sections; DecodeError if they do not add up."""

    __slots__ = ("_body", "_limits", "_spans", "payload")

    def __init__(self, payload: bytes, limits: Limits = DEFAULT_LIMITS) -> None:
        """`limits` hold for whatever is decoded later."""
        self.payload = payload
        self._limits = limits
        self._spans: dict[int, tuple[int, int, int]] = {}
        """Where a section starts, where its value does, and where it ends."""
        self._body: list[tuple[int, int, int]] = []
        """The same for each section of the body, which may have several."""
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
                    raise DecodeError("a message with two bodies")
                spans.setdefault(code, (start, value_at, at))
                body.append((start, value_at, at))
            elif code in spans:
                raise DecodeError(f"a message with two sections {Section(code).name.lower()}")
            elif code in _SECTION_CODES:
                spans[code] = (start, value_at, at)
            else:
                raise DecodeError(f"at byte {start} of a message is no section")

    def _read_descriptor(self, at: int) -> tuple[int, int]:
        """The rare ways to write a section's descriptor: as eight bytes, or by name. 0 where there is none."""
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
        """A section as it came, descriptor included; nothing where there is none. For the body: all its sections."""
        if section not in self._spans:
            return b""
        spans = self._body if section in BODY_SECTIONS else [self._spans[section]]
        return b"".join([self.payload[start:end] for start, _, end in spans])

    def content(self, section: Section) -> bytes:
        """A section as it came, without its descriptor; nothing where there is none. Not for a body."""
        span = self._spans.get(section)
        return self.payload[span[1] : span[2]] if span is not None else b""

    def size_of(self, section: Section) -> int:
        """Bytes of a section, descriptor included; for the body, of its first section."""
        span = self._spans.get(section)
        return span[2] - span[0] if span is not None else 0

    def bare(self) -> bytes:
        """What nobody on the way may change: properties, application properties and body; and the footer behind them.

        Usually that is how a message ends, and costs one slice.
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
        """The keys of a section that is a map, each with the bytes of key and value as they came."""
        return [(key, raw) for key, _, raw in self.entries(section)]

    def entries(self, section: Section) -> list[tuple[object, int, bytes]]:
        """As `pairs`; between key and bytes, where in these the value starts."""
        if section not in self._spans:
            return []
        payload, limits = self.payload, self._limits
        _, value_at, end = self._spans[section]
        count, at = open_map(payload, value_at)
        found = []
        for _ in range(count // 2):
            if at >= end:
                raise DecodeError("a map with fewer elements than it says")
            key, item_at = decode(payload, at, limits)
            stopped = skip(payload, item_at)
            if stopped > end:
                raise DecodeError("a value runs past the end of its section")
            found.append((key, item_at - at, payload[at:stopped]))
            at = stopped
        return found

    def entry_count(self, section: Section) -> int:
        """How many entries a section that is a map says it has; 0 where there is none."""
        if section not in self._spans:
            return 0
        count, _ = open_map(self.payload, self._spans[section][1])
        return count // 2

    def fields(self, section: Section) -> list[bytes]:
        """The fields of a section that is a list, each as it came; empty where there is none."""
        if section not in self._spans:
            return []
        _, value_at, end = self._spans[section]
        count, at = open_list(self.payload, value_at)
        found = []
        for _ in range(count):
            if at >= end:
                raise DecodeError("a list with fewer elements than it says")
            start, at = at, skip(self.payload, at)
            found.append(self.payload[start:at])
        return found

    def checked(self, section: Section, shape: type[Composite]) -> list[Any]:
        """All fields of the header or the properties, in order, as `header` and `properties` have them; but sooner."""
        values: object = []
        if section in self._spans:
            values, _ = decode(self.payload, self._spans[section][1], self._limits)
        if not isinstance(values, list):
            raise DecodeError(f"{shape.symbol} is not a list")
        plan, given = shape.field_specs, len(values)
        if given > len(plan):
            raise DecodeError(f"{shape.symbol} has {given} fields, more than the {len(plan)} it can have")
        found: list[Any] = []
        for index, (name, kind, default) in enumerate(plan):
            value = values[index] if index < given else None
            if value is None:
                found.append(default)
                continue
            try:
                found.append(kind.read(value))
            except TypeError:
                raise DecodeError(f"{shape.symbol}: {name} is {value!r:.60}, not a {kind.name}") from None
        return found

    @property
    def header(self) -> Header | None:
        """How it is to be delivered."""
        found = self._composite(Section.HEADER)
        return found if isinstance(found, Header) else None

    @property
    def properties(self) -> Properties | None:
        """What the sender said of it."""
        found = self._composite(Section.PROPERTIES)
        return found if isinstance(found, Properties) else None

    @property
    def delivery_annotations(self) -> Mapping[object, object] | Pairs:
        """Said from this hop to the next."""
        return self._map(Section.DELIVERY_ANNOTATIONS)

    @property
    def message_annotations(self) -> Mapping[object, object] | Pairs:
        """Said to everyone on the way."""
        return self._map(Section.MESSAGE_ANNOTATIONS)

    @property
    def application_properties(self) -> Mapping[object, object] | Pairs:
        """The sender's own."""
        return self._map(Section.APPLICATION_PROPERTIES)

    @property
    def footer(self) -> Mapping[object, object] | Pairs:
        """What could only be said behind the body."""
        return self._map(Section.FOOTER)

    # --- body ---------------------------------------------------------------------------------------------------------

    @property
    def body_section(self) -> Section | None:
        """Which kind of body it has: DATA, SEQUENCE, VALUE, or none at all."""
        for section in (Section.DATA, Section.SEQUENCE, Section.VALUE):
            if section in self._spans:
                return section
        return None

    @property
    def data(self) -> list[bytes]:
        """The binaries of a body of DATA; empty for any other."""
        return [value for value in self._body_values(Section.DATA) if isinstance(value, bytes)]

    @property
    def sequences(self) -> list[list[object]]:
        """The lists of a body of SEQUENCE; empty for any other."""
        return [value for value in self._body_values(Section.SEQUENCE) if isinstance(value, list)]

    @property
    def value(self) -> object:
        """The value of a body of VALUE; None for any other. Composites (declare, discharge) come as such."""
        values = self._body_values(Section.VALUE)
        return values[0] if values else None

    def _body_values(self, section: Section) -> list[object]:
        if section not in self._spans:
            return []
        wanted = _BODY_TYPES[section]
        values = []
        for _, start, _ in self._body:
            value, _ = decode(self.payload, start, self._limits)
            if not isinstance(value, wanted):
                raise DecodeError(f"a section {section.name.lower()} that holds {value!r:.60}")
            values.append(from_described(value) if isinstance(value, Described) else value)
        return values

    # --- single fields ------------------------------------------------------------------------------------------------

    def field(self, section: Section, index: int) -> object:
        """One field of the header or the properties, without decoding the others. None where it is not there."""
        if section not in self._spans:
            return None
        _, value_at, end = self._spans[section]
        count, at = open_list(self.payload, value_at)
        if index >= count:
            return None
        for _ in range(index):
            at = skip(self.payload, at)
            if at >= end:
                raise DecodeError("a list with fewer elements than it says")
        return self._value_within(at, end)

    def has_field(self, section: Section, index: int) -> bool:
        """Whether a field of the header or the properties is there and not null."""
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
        """One value of a section that is a map, without decoding the others. None where the key is not there."""
        if section not in self._spans:
            return None
        _, value_at, end = self._spans[section]
        count, at = open_map(self.payload, value_at)
        for _ in range(count // 2):
            if at >= end:
                break
            found, at = decode(self.payload, at, self._limits)
            if isinstance(found, str) and found == key:
                return self._value_within(at, end)
            at = skip(self.payload, at)
        return None

    def _value_within(self, at: int, end: int) -> object:
        value, stopped = decode(self.payload, at, self._limits)
        if stopped > end:
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
    """An encoded message. `body` is encoded sections, as `data`, `sequence` and `value` make them."""
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
    """The header or the properties with these fields, in order; a list may leave out the nulls that end it."""
    plan, count = shape.field_specs, len(values)
    while count and values[count - 1] is None:
        count -= 1
    out, body = bytearray((0x00, 0x53, shape.code)), bytearray()
    for index in range(count):
        item = values[index]
        if item is None:
            body.append(_NULL)
            continue
        name, kind, _ = plan[index]
        try:
            kind.write(body, item)
        except (EncodeError, TypeError, ValueError, AttributeError, struct.error) as error:
            raise EncodeError(f"{shape.symbol}: {name} is no {kind.name}: {error}") from None
    write_list(out, body, count)
    return bytes(out)


def data(*binaries: bytes) -> bytes:
    """A body of binaries, a section each."""
    pieces: list[bytes] = []
    for binary in binaries:
        size = len(binary)
        pieces.append(
            _SHORT_DATA.pack(_DATA_LEAD, 0xA0, size) if size <= _MAX_SHORT else _DATA.pack(_DATA_LEAD, 0xB0, size)
        )
        pieces.append(binary)
    return b"".join(pieces)


def sequence(*lists: list[object]) -> bytes:
    """A body of lists, a section each."""
    out = bytearray()
    for one in lists:
        _write_descriptor(out, Section.SEQUENCE)
        write(out, one)
    return bytes(out)


def value(content: object) -> bytes:
    """A body of one value, which may be a composite."""
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
