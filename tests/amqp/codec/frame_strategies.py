"""Hypothesis strategies for encoded transfers and dispositions, and their decoding by the declarations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from hypothesis import strategies as st

from tests.amqp.codec.reference_encoder import NULL, random_encoding, random_list_encoding
from twinbus.amqp.codec.decode import DEFAULT_LIMITS
from twinbus.amqp.codec.delivery_frames import DispositionTail, TransferTail, read_disposition, read_transfer
from twinbus.amqp.codec.frames import read_performative
from twinbus.amqp.codec.performatives import Disposition, Error, Transfer
from twinbus.amqp.outcomes import ACCEPTED, RELEASED, Modified, Rejected, TransactionalState
from twinbus.amqp.types import Described, Symbol, UByte, UInt, ULong

if TYPE_CHECKING:
    from random import Random

    from tests.amqp.codec.value_strategies import Values

ReadTransfer: TypeAlias = tuple[int, int | None, bytes | None, TransferTail, int]
ReadDisposition: TypeAlias = tuple[bool, int, int, DispositionTail]

NOT_FOUND: Final = Error(condition="amqp:not-found", description="no such thing")
STATES: Final = [
    ACCEPTED,
    RELEASED,
    Rejected(),
    Rejected(error=NOT_FOUND),
    Rejected(error=Error(condition="amqp:not-found", description="x" * 300)),
    Modified(delivery_failed=True),
    TransactionalState(txn_id=b"1", outcome=ACCEPTED),
]

uints: Final[Values] = (
    st.integers(0, 2**32 - 1) | st.sampled_from([0, 1, 255, 256, 0x80013700, 2**31, 2**32 - 1]) | st.integers(0, 9)
).map(UInt)
_flags: Final[Values] = st.none() | st.booleans()
_states: Final[Values] = (
    st.none()
    | st.just(Described(ULong(0x24), []))
    | st.just(Described(Symbol("amqp:accepted:list"), []))
    | st.just(Described(ULong(0x25), [Described(ULong(0x1D), [Symbol("amqp:not-found"), "x" * 300, None])]))
    | st.just(Described(ULong(0x27), [True, None, {Symbol("a"): 1}]))
    | st.just(Described(ULong(0x99), ["none of ours"]))
)

transfer_fields: Final = st.tuples(
    uints,
    st.none() | uints,
    st.none() | st.binary(max_size=32) | st.binary(min_size=256, max_size=260),
    st.none() | uints,
    _flags,
    _flags,
    st.none() | st.integers(0, 1).map(UByte),
    _states,
    _flags,
    _flags,
    _flags,
)
"""The eleven fields of a transfer, as decoded."""
disposition_fields: Final = st.tuples(st.booleans(), uints, st.none() | uints, _flags, _states, _flags)
"""The six fields of a disposition, as decoded."""


def encoded_fields(fields: tuple[object, ...], chance: Random) -> list[bytes]:
    """Encode each field in any legal encoding; trailing nulls may be omitted."""
    encoded = [random_encoding(field, chance) for field in fields]
    while encoded and encoded[-1] == NULL and chance.random() < 0.9:
        encoded.pop()
    return encoded


def encoded_frame(code: int, fields: list[bytes], chance: Random) -> bytes:
    """Encode a performative as the body of a frame, as a list of either width."""
    return bytes((0x00, 0x53, code)) + random_list_encoding(fields, chance)


def transfer_as_declared(data: bytes, at: int, end: int) -> ReadTransfer:
    transfer, payload_at = read_performative(data, at, end, DEFAULT_LIMITS)
    assert isinstance(transfer, Transfer)
    tail = TransferTail(
        message_format=0 if transfer.message_format is None else transfer.message_format,
        settled=transfer.settled is True,
        more=transfer.more,
        state=transfer.state,
        aborted=transfer.aborted,
        is_whole=not (transfer.more or transfer.aborted),
    )
    return transfer.handle, transfer.delivery_id, transfer.delivery_tag, tail, payload_at


def disposition_as_declared(data: bytes, at: int, end: int) -> ReadDisposition:
    disposition, decoded_end = read_performative(data, at, end, DEFAULT_LIMITS)
    assert isinstance(disposition, Disposition)
    assert decoded_end == end
    last = disposition.first if disposition.last is None else disposition.last
    return disposition.role, disposition.first, last, DispositionTail(disposition.settled, disposition.state)


def transfer_read(data: bytes, at: int, end: int) -> ReadTransfer:
    return read_transfer(data, at, end, DEFAULT_LIMITS)


def disposition_read(data: bytes, at: int, end: int) -> ReadDisposition:
    return read_disposition(data, at, end, DEFAULT_LIMITS)
