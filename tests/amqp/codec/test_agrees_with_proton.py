"""Agreement with Qpid Proton, an independent implementation: each side decodes the values that the other encodes."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, Final

import proton
from hypothesis import given
from hypothesis import strategies as st

from tests.amqp.codec.reference_encoder import encoding_choices, random_encoding
from tests.amqp.codec.value_strategies import PRIMITIVES, Values, examples, with_type, without_repr
from twinbus.amqp.codec.decode import DEFAULT_LIMITS, decode
from twinbus.amqp.codec.encode import encode
from twinbus.amqp.codec.frames import AMQP_HEADER, FRAME_HEADER, HEADER_SIZE, read_performative
from twinbus.amqp.codec.performatives import Attach, Begin, Detach, Error, Flow, Open
from twinbus.amqp.terminus import Source, Target
from twinbus.amqp.types import (
    Array,
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    Float,
    Int,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from twinbus.amqp.codec.composite import Composite

TYPES: Final[dict[type, tuple[int, type]]] = {
    # our type: proton's type number, proton's type
    type(None): (proton.Data.NULL, type(None)),
    bool: (proton.Data.BOOL, bool),
    UByte: (proton.Data.UBYTE, proton.ubyte),
    UShort: (proton.Data.USHORT, proton.ushort),
    UInt: (proton.Data.UINT, proton.uint),
    ULong: (proton.Data.ULONG, proton.ulong),
    Byte: (proton.Data.BYTE, proton.byte),
    Short: (proton.Data.SHORT, proton.short),
    Int: (proton.Data.INT, proton.int32),
    int: (proton.Data.LONG, int),
    Float: (proton.Data.FLOAT, proton.float32),
    float: (proton.Data.DOUBLE, float),
    Decimal32: (proton.Data.DECIMAL32, proton.decimal32),
    Decimal64: (proton.Data.DECIMAL64, proton.decimal64),
    Decimal128: (proton.Data.DECIMAL128, proton.decimal128),
    Char: (proton.Data.CHAR, proton.char),
    Timestamp: (proton.Data.TIMESTAMP, proton.timestamp),
    uuid.UUID: (proton.Data.UUID, uuid.UUID),
    bytes: (proton.Data.BINARY, bytes),
    str: (proton.Data.STRING, str),
    Symbol: (proton.Data.SYMBOL, proton.symbol),
    list: (proton.Data.LIST, list),
    dict: (proton.Data.MAP, dict),
    Array: (proton.Data.ARRAY, proton.Array),
}
OURS_BY_NUMBER: Final = {number: ours for ours, (number, _) in TYPES.items()}
OURS: Final = {memoryview: bytes, **{theirs: ours for ours, (_, theirs) in TYPES.items()}}
_AS_INTEGER: Final[dict[type, int]] = {Decimal32: 4, Decimal64: 8}


def to_proton(value: Any) -> Any:  # noqa: ANN401  # any AMQP value
    kind = type(value)
    if kind is Described:
        return proton.Described(to_proton(value.descriptor), to_proton(value.value))
    if kind is Array:
        descriptor: Any = to_proton(value.descriptors[0]) if value.descriptors else proton.UNDESCRIBED
        return proton.Array(descriptor, TYPES[value.element_type][0], *map(to_proton, value.items))
    if kind is list:
        return [to_proton(item) for item in value]
    if kind is dict:
        return {to_proton(key): to_proton(item) for key, item in value.items()}
    if value is None or isinstance(value, bool | uuid.UUID):
        return value
    if kind in _AS_INTEGER:
        value = int.from_bytes(value, "big")
    return TYPES[kind][1](value)


def from_proton(value: Any) -> Any:  # noqa: ANN401  # any AMQP value
    kind = type(value)
    if kind is proton.Described:
        return Described(from_proton(value.descriptor), from_proton(value.value))
    if kind is proton.Array:
        descriptors = () if value.descriptor == proton.UNDESCRIBED else (from_proton(value.descriptor),)
        return Array(OURS_BY_NUMBER[value.type], [from_proton(item) for item in value.elements], descriptors)
    if kind is list:
        return [from_proton(item) for item in value]
    if kind is dict:
        return {from_proton(key): from_proton(item) for key, item in value.items()}
    ours = OURS[kind]
    if value is None or isinstance(value, bool | uuid.UUID):
        return value
    return ours(value.to_bytes(_AS_INTEGER[ours], "big") if ours in _AS_INTEGER else value)


def encoded_by_proton(value: object) -> bytes:
    data = proton.Data()
    data.put_object(to_proton(value))
    return data.encode()


def decoded_by_proton(encoding: bytes) -> object:
    data = proton.Data()
    assert data.decode(encoding) == len(encoding)
    data.rewind()
    assert data.next() is not None
    return from_proton(data.get_object())


PRIMITIVES_OF_BOTH: Final[dict[type, Values]] = {
    **PRIMITIVES,
    # A NaN's payload does not survive the conversion to proton's C types and back.
    Float: st.floats(width=32, allow_nan=False).map(Float),
    float: st.floats(allow_nan=False),
}
_primitives: Final[Values] = st.one_of(*PRIMITIVES_OF_BOTH.values())
_keys: Final = PRIMITIVES[str] | PRIMITIVES[ULong]


@st.composite
def _arrays(draw: st.DrawFn, children: Values) -> Array:
    elements: dict[type, Values] = {
        **PRIMITIVES_OF_BOTH,
        list: st.lists(children, max_size=3),
        dict: st.dictionaries(_keys, children, max_size=3),
    }
    element_type = draw(st.sampled_from(list(elements)))
    items = draw(st.lists(elements[element_type], max_size=4))
    return Array(element_type, items, tuple(draw(st.lists(_primitives, max_size=1))))


def _nested(children: Values) -> Values:
    # Proton supports only primitive descriptors, one descriptor per array, and dicts as maps. In a list, it loses the
    # elements after a described value that is itself described.
    inner = without_repr(children)
    plain = inner.filter(lambda value: not isinstance(value, Described))
    return st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(_keys, inner, max_size=4),
        st.builds(Described, _primitives, plain),
        _arrays(inner),
    )


values_of_both: Final[Values] = st.recursive(_primitives, _nested, max_leaves=8)


@examples(120)
@given(values_of_both)
def test_proton_decodes_the_values_that_we_encode(value: object) -> None:
    assert with_type(decoded_by_proton(encode(value))) == with_type(value)


@examples(120)
@given(values_of_both)
def test_we_decode_the_values_that_proton_encodes(value: object) -> None:
    encoding = bytes(encoded_by_proton(value))  # proton returns a bytearray
    decoded, end = decode(encoding)
    assert with_type(decoded) == with_type(value)
    assert end == len(encoding)


@examples(80)
@given(values_of_both, encoding_choices())
def test_proton_decodes_every_encoding_of_the_reference_encoder(value: object, chance: Random) -> None:
    assert with_type(decoded_by_proton(random_encoding(value, chance))) == with_type(value)


# --- performatives ----------------------------------------------------------------------------------------------------


def frames_of(drive: Callable[[proton.Connection], None]) -> list[Composite]:
    """Return the performatives that proton's own engine sends."""
    connection = proton.Connection()
    transport = proton.Transport()
    transport.bind(connection)
    drive(connection)
    data = transport.peek(transport.pending())
    assert data is not None
    data = bytes(data)
    assert data.startswith(AMQP_HEADER)
    at = len(AMQP_HEADER)
    performatives = []
    while at < len(data):
        size, _, _, _ = FRAME_HEADER.unpack_from(data, at)
        performative, end = read_performative(data, at + HEADER_SIZE, at + size, DEFAULT_LIMITS)
        assert end == at + size
        performatives.append(performative)
        at += size
    return performatives


def test_we_decode_the_open_begin_attach_and_flow_of_proton() -> None:
    def drive(connection: proton.Connection) -> None:
        connection.container = "one"
        connection.hostname = "example.org"
        connection.offered_capabilities = [proton.symbol("a"), proton.symbol("b")]
        connection.properties = {proton.symbol("product"): "proton", proton.symbol("number"): 7}
        connection.open()
        session = connection.session()
        session.open()
        sender = session.sender("to q")
        sender.source.address, sender.target.address = "here", "q"
        sender.snd_settle_mode = proton.Link.SND_UNSETTLED
        sender.open()
        receiver = session.receiver("from q")
        receiver.source.address = "q"
        receiver.source.filter.put_object(
            {proton.symbol("selector"): proton.Described(proton.symbol("apache.org:selector-filter:string"), "a = 1")}
        )
        receiver.open()
        receiver.flow(5)

    opened, begin, sender, receiver, flow = frames_of(drive)
    assert opened == Open(
        container_id="one",
        hostname="example.org",
        max_frame_size=32_768,
        channel_max=32_767,
        offered_capabilities=("a", "b"),
        properties={"product": "proton", "number": 7},
    )
    window = 2**31 - 1
    assert begin == Begin(next_outgoing_id=0, incoming_window=window, outgoing_window=window, handle_max=window)
    assert sender == Attach(
        name="to q",
        handle=0,
        role=False,
        snd_settle_mode=0,
        source=Source(address="here"),
        target=Target(address="q"),
        initial_delivery_count=0,
        max_message_size=0,
    )
    assert isinstance(receiver, Attach)
    assert (receiver.name, receiver.handle, receiver.role) == ("from q", 1, True)
    assert receiver.target == Target()
    selector = Described(Symbol("apache.org:selector-filter:string"), "a = 1")
    assert receiver.source == Source(address="q", filter={"selector": selector})
    assert flow == Flow(
        incoming_window=window,
        next_outgoing_id=0,
        outgoing_window=window,
        handle=1,
        delivery_count=0,
        link_credit=5,
    )


def test_we_decode_a_detach_with_an_error_from_proton() -> None:
    def drive(connection: proton.Connection) -> None:
        connection.open()
        session = connection.session()
        session.open()
        sender = session.sender("link")
        sender.open()
        sender.condition = proton.Condition("amqp:not-found", "no such thing", {proton.symbol("a"): 1})
        sender.close()

    error = Error(condition="amqp:not-found", description="no such thing", info={"a": 1})
    assert frames_of(drive)[-1] == Detach(handle=0, closed=True, error=error)
