"""Composite types: lists whose fields have names, described by a code (open, source, accepted, properties...).

A composite is a dataclass whose fields say their AMQP kind; reading and writing follow from that declaration. All
fields are always written, null or not: some clients index into the list without looking at its length.

Owns: how a declaration becomes bytes. Knows nothing of any single composite.
"""

from __future__ import annotations

import dataclasses
import struct
import uuid
from dataclasses import MISSING, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, dataclass_transform

from twinbus.amqp import encode
from twinbus.amqp.errors import DecodeError, EncodeError
from twinbus.amqp.types import Array, Described, Pairs, Symbol, Timestamp, UByte, UInt, ULong, UShort

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class FieldType:
    """What a field may hold: `read` checks and converts a decoded value, `write` encodes one."""

    name: str
    read: Callable[[object], object]
    write: Callable[[bytearray, Any], None]


def _exactly(wanted: type) -> Callable[[object], object]:
    def read(value: object) -> object:
        if type(value) is not wanted:
            raise TypeError
        return value

    return read


def _read_map(value: object) -> object:
    if not isinstance(value, dict | Pairs):
        raise TypeError
    return value


def _write_symbolic_map(out: bytearray, value: dict[object, object]) -> None:
    # A key beyond ASCII can be no symbol: it came as a string, which reading forgives, and goes back as one.
    encode.write(
        out, {Symbol(key) if isinstance(key, str) and key.isascii() else key: item for key, item in value.items()}
    )


def _symbolic_map(name: str, *key_types: type) -> FieldType:
    """A map whose keys are symbols, or of other types given. Strings are forgiven, as brokers in the wild do."""
    allowed = (str, *key_types)

    def read(value: object) -> object:
        if not isinstance(value, dict) or not all(isinstance(key, allowed) for key in value):
            raise TypeError
        return value

    return FieldType(name, read, _write_symbolic_map)


def _read_symbols(value: object) -> tuple[str, ...]:
    if type(value) is Symbol:
        return (value,)
    if isinstance(value, Array) and value.element_type is Symbol and not value.descriptors:
        return tuple(str(item) for item in value.items)
    raise TypeError


def _read_message_id(value: object) -> object:
    if type(value) not in (str, bytes, uuid.UUID, ULong):
        raise TypeError
    return value


def _read_composite(value: object) -> object:
    return from_described(value) if isinstance(value, Described) else value


def _write_any(out: bytearray, value: object) -> None:
    if isinstance(value, Composite):
        value.write(out)
    else:
        encode.write(out, value)


BOOLEAN: Final = FieldType("boolean", _exactly(bool), encode.write_boolean)
UBYTE: Final = FieldType("ubyte", _exactly(UByte), encode.write_ubyte)
USHORT: Final = FieldType("ushort", _exactly(UShort), encode.write_ushort)
UINT: Final = FieldType("uint", _exactly(UInt), encode.write_uint)
ULONG: Final = FieldType("ulong", _exactly(ULong), encode.write_ulong)
TIMESTAMP: Final = FieldType("timestamp", _exactly(Timestamp), encode.write_timestamp)
STRING: Final = FieldType("string", _exactly(str), encode.write_string)
SYMBOL: Final = FieldType("symbol", _exactly(Symbol), encode.write_symbol)
SYMBOLS: Final = FieldType("symbol, one or more", _read_symbols, encode.write_symbols)
BINARY: Final = FieldType("binary", _exactly(bytes), encode.write_binary)
MAP: Final = FieldType("map", _read_map, encode.write)
FIELDS: Final = _symbolic_map("map with symbolic keys")
ANNOTATIONS: Final = _symbolic_map("map with symbolic or ulong keys", ULong)
MESSAGE_ID: Final = FieldType("message-id", _read_message_id, encode.write)
ANY: Final = FieldType("any value", _read_composite, _write_any)


def one_of(*classes: type[Composite]) -> FieldType:
    """A field that holds one of these composites."""

    def read(value: object) -> object:
        found = _read_composite(value)
        if not isinstance(found, classes):
            raise TypeError
        return found

    return FieldType(" or ".join(cls.__name__ for cls in classes), read, _write_any)


def typed_field(field_type: FieldType, **default: object) -> Any:  # noqa: ANN401  # a field of any type, as dataclasses.field is
    """A field of `kind`: mandatory, or with what an absent one means as `default`."""
    return dataclasses.field(metadata={"kind": field_type}, **default)  # type: ignore[call-overload]  # chosen by **default


class Composite:
    """A list with named fields. Subclasses are made by `@composite`."""

    __slots__ = ()
    code: ClassVar[int]
    symbol: ClassVar[str]
    field_specs: ClassVar[tuple[tuple[str, FieldType, object], ...]]
    """Field name, kind, default (MISSING if mandatory), in wire order."""

    def write(self, out: bytearray) -> None:
        """Append this composite, descriptor included, to `out`."""
        body = bytearray()
        for name, kind, default in self.field_specs:
            value = getattr(self, name)
            if value is not None:
                self._write_field(body, name, kind, value)
            elif default is MISSING:
                raise EncodeError(f"{self.symbol}: {name} is mandatory")
            else:
                body.append(0x40)
        out += bytes((0x00, 0x53, self.code)) if self.code <= _NARROW else b"\x00\x80" + self.code.to_bytes(8, "big")
        encode.write_list(out, body, len(self.field_specs))

    def _write_field(self, out: bytearray, name: str, field_type: FieldType, value: object) -> None:
        try:
            field_type.write(out, value)
        except (EncodeError, TypeError, ValueError, AttributeError, struct.error) as error:
            raise EncodeError(f"{self.symbol}: {name} is no {field_type.name}: {error}") from None

    def encode(self) -> bytes:
        """This composite as bytes; EncodeError names the field that has no encoding."""
        out = bytearray()
        self.write(out)
        return bytes(out)


_NARROW: Final = 255
_BY_DESCRIPTOR: Final[dict[object, type[Composite]]] = {}
"""Every composite by its numeric and its symbolic descriptor. A ulong equals the plain int of its value."""


@dataclass_transform(kw_only_default=True, field_specifiers=(typed_field,))
def composite(code: int, symbol: str) -> Callable[[type], Any]:
    """Make a class the composite described by `code` or `symbol`."""

    def make(cls: type) -> Any:  # noqa: ANN401  # the same class, with slots
        made: Any = dataclass(slots=True, kw_only=True)(cls)
        made.code, made.symbol = code, symbol
        made.field_specs = tuple(
            (field.name, field.metadata["kind"], field.default) for field in dataclasses.fields(made)
        )
        _BY_DESCRIPTOR[code] = _BY_DESCRIPTOR[symbol] = made
        return made

    return make


def from_described(value: Described) -> object:
    """The composite that `value` describes; `value` itself where its descriptor is not one of ours."""
    descriptor = value.descriptor
    cls = _BY_DESCRIPTOR.get(descriptor) if type(descriptor) in (ULong, Symbol) else None
    if cls is None:
        return value
    if not isinstance(value.value, list):
        raise DecodeError(f"{cls.symbol} is not a list")
    return _from_list(cls, value.value)


def _from_list(cls: type[Composite], values: list[object]) -> Composite:
    if len(values) > len(cls.field_specs):
        raise DecodeError(f"{cls.symbol} has {len(values)} fields, more than the {len(cls.field_specs)} it can have")
    filled: dict[str, object] = {}
    for (name, kind, _), value in zip(cls.field_specs, values, strict=False):
        if value is None:
            continue
        try:
            filled[name] = kind.read(value)
        except TypeError:
            raise DecodeError(f"{cls.symbol}: {name} is {value!r:.60}, not a {kind.name}") from None
    for name, _, default in cls.field_specs:
        if default is MISSING and name not in filled:
            raise DecodeError(f"{cls.symbol}: {name} is mandatory")
    return cls(**filled)
