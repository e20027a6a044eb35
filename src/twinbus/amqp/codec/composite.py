"""Composite types: described lists with named fields (open, source, accepted, properties and so on).

A composite is a dataclass whose fields declare their AMQP types; encoding and decoding follow from the declaration.
All fields are always written, including nulls: some clients index into the list without checking its length.

Owns the conversion between declarations and bytes. Must not know any particular composite.
"""

from __future__ import annotations

import dataclasses
import struct
import uuid
from dataclasses import MISSING, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, dataclass_transform

from twinbus.amqp.codec import encode
from twinbus.amqp.errors import DecodeError, EncodeError
from twinbus.amqp.types import Array, Described, Pairs, Symbol, Timestamp, UByte, UInt, ULong, UShort

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class FieldType:
    """Type of a field: `read` checks and converts a decoded value, `write` encodes a value."""

    name: str
    read: Callable[[object], object]
    write: Callable[[bytearray, Any], None]


def _exactly(expected: type) -> Callable[[object], object]:
    def read(value: object) -> object:
        if type(value) is not expected:
            raise TypeError
        return value

    return read


def _read_map(value: object) -> object:
    if not isinstance(value, dict | Pairs):
        raise TypeError
    return value


def _write_symbolic_map(out: bytearray, value: dict[object, object]) -> None:
    # A non-ASCII key cannot be a symbol. The decoder accepts such a key as a string, so write it back as a string.
    encode.write(
        out, {Symbol(key) if isinstance(key, str) and key.isascii() else key: item for key, item in value.items()}
    )


def _symbolic_map(name: str, *key_types: type) -> FieldType:
    """Return the type of a map whose keys are symbols, strings (as in other brokers), or instances of `key_types`."""
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
    """Return the type of a field that holds an instance of one of these composites."""

    def read(value: object) -> object:
        composite_value = _read_composite(value)
        if not isinstance(composite_value, classes):
            raise TypeError
        return composite_value

    return FieldType(" or ".join(cls.__name__ for cls in classes), read, _write_any)


def typed_field(field_type: FieldType, **default: object) -> Any:  # noqa: ANN401  # a field of any type, as dataclasses.field is
    """Declare a field of type `field_type`. The field is mandatory unless a `default` is given."""
    return dataclasses.field(metadata={"kind": field_type}, **default)  # type: ignore[call-overload]  # chosen by **default


class Composite:
    """Base class of lists with named fields. The decorator `@composite` sets the class attributes of each subclass."""

    __slots__ = ()
    code: ClassVar[int]
    symbol: ClassVar[str]
    field_specs: ClassVar[tuple[tuple[str, FieldType, object], ...]]
    """Name, type and default (MISSING if mandatory) of each field, in wire order."""

    def write(self, out: bytearray) -> None:
        """Append this composite, including its descriptor, to `out`."""
        body = bytearray()
        for name, field_type, default in self.field_specs:
            value = getattr(self, name)
            if value is not None:
                self._write_field(body, name, field_type, value)
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
            raise EncodeError(f"{self.symbol}: {name} is not a {field_type.name}: {error}") from None

    def encode(self) -> bytes:
        """Return this composite as bytes, or raise EncodeError with the name of the field that has no encoding."""
        out = bytearray()
        self.write(out)
        return bytes(out)


_NARROW: Final = 255
_BY_DESCRIPTOR: Final[dict[object, type[Composite]]] = {}
"""All composites by numeric and by symbolic descriptor. A decoded ULong finds its int key because the two are equal."""


@dataclass_transform(kw_only_default=True, field_specifiers=(typed_field,))
def composite(code: int, symbol: str) -> Callable[[type], Any]:
    """Return a decorator that makes a class the composite with descriptors `code` and `symbol`."""

    def make(cls: type) -> Any:  # noqa: ANN401  # the same class, with slots
        composite_class: Any = dataclass(slots=True, kw_only=True)(cls)
        composite_class.code, composite_class.symbol = code, symbol
        composite_class.field_specs = tuple(
            (field.name, field.metadata["kind"], field.default) for field in dataclasses.fields(composite_class)
        )
        _BY_DESCRIPTOR[code] = _BY_DESCRIPTOR[symbol] = composite_class
        return composite_class

    return make


def from_described(value: Described) -> object:
    """Return the composite that `value` describes, or `value` itself if its descriptor is not a known composite."""
    descriptor = value.descriptor
    cls = _BY_DESCRIPTOR.get(descriptor) if type(descriptor) in (ULong, Symbol) else None
    if cls is None:
        return value
    if not isinstance(value.value, list):
        raise DecodeError(f"{cls.symbol} is not a list")
    return _from_list(cls, value.value)


def _from_list(cls: type[Composite], values: list[object]) -> Composite:
    if len(values) > len(cls.field_specs):
        raise DecodeError(f"{cls.symbol} has {len(values)} fields; the maximum is {len(cls.field_specs)}")
    filled: dict[str, object] = {}
    for (name, field_type, _), value in zip(cls.field_specs, values, strict=False):
        if value is None:
            continue
        try:
            filled[name] = field_type.read(value)
        except TypeError:
            raise DecodeError(f"{cls.symbol}: {name} is {value!r:.60}, not a {field_type.name}") from None
    for name, _, default in cls.field_specs:
        if default is MISSING and name not in filled:
            raise DecodeError(f"{cls.symbol}: {name} is mandatory")
    return cls(**filled)
