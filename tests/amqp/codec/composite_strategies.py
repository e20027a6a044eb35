"""All declared composites, and hypothesis strategies for their fields."""

from __future__ import annotations

import uuid
from dataclasses import MISSING
from typing import Final

from hypothesis import strategies as st

from tests.amqp.codec.value_strategies import Values, ascii_texts, primitives
from twinbus.amqp import outcomes, sasl, terminus
from twinbus.amqp.codec import performatives, sections
from twinbus.amqp.codec.composite import Composite, FieldType, from_described
from twinbus.amqp.codec.decode import decode
from twinbus.amqp.codec.performatives import Error
from twinbus.amqp.outcomes import ACCEPTED, RELEASED
from twinbus.amqp.types import Described, Symbol, UInt, ULong

DECLARED: Final[list[type[Composite]]] = [
    cls
    for module in (performatives, outcomes, terminus, sasl, sections)
    for cls in vars(module).values()
    if isinstance(cls, type) and issubclass(cls, Composite) and cls.__module__ == module.__name__
]

_names = ascii_texts
_texts = st.text(max_size=20)
_binaries = st.binary(max_size=20)
_equal_to_themselves = primitives.filter(lambda value: value == value)  # noqa: PLR0124  # all but NaN
_errors = st.builds(
    Error,
    condition=_names,
    description=st.none() | _texts,
    info=st.none() | st.dictionaries(_names, _equal_to_themselves, max_size=2),
)
_anything = (
    _equal_to_themselves
    | st.sampled_from([ACCEPTED, RELEASED])
    | st.builds(outcomes.Rejected, error=st.none() | _errors)
    | st.builds(terminus.Source, address=_texts)
    | st.builds(Described, st.just(Symbol("none of ours")), st.lists(_equal_to_themselves, max_size=2))
)


def _below(limit: int) -> Values:
    return st.integers(0, limit - 1) | st.sampled_from([0, 255, 256, limit - 1]).filter(lambda value: value < limit)


FILLINGS: Final[dict[str, Values]] = {
    "boolean": st.booleans(),
    "ubyte": _below(2**8),
    "ushort": _below(2**16),
    "uint": _below(2**32),
    "ulong": _below(2**64),
    "timestamp": st.integers(-(2**63), 2**63 - 1),
    "string": _texts,
    "symbol": _names,
    "symbol, one or more": st.lists(_names, max_size=3).map(tuple),
    "binary": _binaries,
    "map": st.dictionaries(_binaries | _names.map(Symbol), _equal_to_themselves, max_size=3),
    "map with symbolic keys": st.dictionaries(_names, _equal_to_themselves, max_size=3),
    "map with symbolic or ulong keys": st.dictionaries(
        _names | st.builds(ULong, _below(2**64)), _equal_to_themselves, max_size=3
    ),
    "message-id": _texts | _binaries | st.builds(ULong, st.integers(0, 2**64 - 1)) | st.uuids(allow_nil=True),
    "any value": _anything,
    "Error": _errors,
}
"""Strategies by name of the field type."""


def filling(kind: FieldType) -> Values:
    return FILLINGS[kind.name]


def composites(cls: type[Composite], **instead: Values) -> st.SearchStrategy[Composite]:
    """Composites of `cls` with any optional fields; `instead` replaces the strategies of single fields."""
    fields = {}
    for name, kind, default in cls.field_specs:
        if name in instead:
            fields[name] = instead[name]
        elif default is MISSING:
            fields[name] = filling(kind)
        else:
            fields[name] = st.just(default) | filling(kind)
    return st.builds(cls, **fields)


def minimal(cls: type[Composite]) -> Composite:
    """Return an instance of `cls` with only its mandatory fields."""
    samples: dict[str, object] = {
        "boolean": True,
        "ubyte": 1,
        "uint": 1,
        "ulong": 1,
        "string": "a",
        "symbol": "a",
        "symbol, one or more": ("a",),
        "binary": b"a",
    }
    return cls(**{name: samples[kind.name] for name, kind, default in cls.field_specs if default is MISSING})


def described(data: bytes) -> Described:
    value, end = decode(data)
    assert end == len(data)
    assert isinstance(value, Described)
    return value


def fields(instance: Composite) -> list[object]:
    """Return the fields of a composite as decoded from the wire."""
    values = described(instance.encode()).value
    assert isinstance(values, list)
    return values


def read(cls: type[Composite], values: list[object]) -> object:
    return from_described(Described(ULong(cls.code), values))


WRONG: Final[dict[str, list[object]]] = {
    "boolean": [ULong(1), "true", 1],
    "ubyte": [1, ULong(1), True],
    "ushort": [1, ULong(1), True],
    "uint": [1, ULong(1), True, "1"],
    "ulong": [1, True, "1"],
    "timestamp": [1, ULong(1)],
    "string": [Symbol("a"), b"a"],
    "symbol": ["a", b"a"],
    "symbol, one or more": ["a", [Symbol("a")], b"a"],
    "binary": ["a", uuid.UUID(int=1), []],
    "map": [[], "a"],
    "map with symbolic keys": [[], {1: 2}, {b"a": 1}, {ULong(1): 2}],
    "map with symbolic or ulong keys": [[], {1: 2}, {b"a": 1}, {UInt(1): 1}],
    "message-id": [Symbol("a"), 1, [], True],
    "Error": [[], "a", Described(ULong(0x24), []), Described(Symbol("none of ours"), [])],
}
"""Decoded values that a field of each type must refuse. An untyped field refuses none."""
