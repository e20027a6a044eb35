"""Fuzz targets of the codec: one value, one message, one transfer or disposition.

Owns: the invariants of decoding. Decoding raises only DecodeError, decoded values can be encoded and decoded again, and
the fast and the declared decoder agree.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from tests.fuzz.connection_target import LIMITS
from tests.fuzz.finding import require
from twinbus.amqp.codec.composite import from_described
from twinbus.amqp.codec.decode import decode, skip
from twinbus.amqp.codec.delivery_frames import read_disposition, read_transfer
from twinbus.amqp.codec.encode import encode
from twinbus.amqp.codec.frames import read_performative
from twinbus.amqp.codec.performatives import Disposition, Transfer
from twinbus.amqp.errors import DecodeError
from twinbus.amqp.message import Message, Section
from twinbus.amqp.types import Described

if TYPE_CHECKING:
    import collections
    from collections.abc import Callable

    from tests.fuzz.mutator import Input
    from twinbus.amqp.settings import Limits

    Decoded = tuple[object, ...] | None

NEXT_FRAME: Final = b"\x00\x00\x00\x30\x02\x00\x00\x00\x00\x53\x14\xc0\x20\x0b"
REPR_INTERVAL: Final = 16
"""One value in 16 is also printed."""


def read_value(fuzz_input: Input, seen: collections.Counter[str]) -> None:
    (data,) = fuzz_input.reads
    end = _end_of(data)
    try:
        value, decoded_end = decode(data, 0, LIMITS[fuzz_input.random_seed % len(LIMITS)])
    except DecodeError as error:
        seen[f"value refused: {error.condition}"] += 1
        return
    seen["value read"] += 1
    require(decoded_end == end, "skip and decode find the same end")
    encoded = encode(value)
    decoded_again, _ = decode(encoded)
    require(encode(decoded_again) == encoded, "a value that was written is read as the same")
    if isinstance(value, Described):
        try:
            from_described(value)
        except DecodeError:
            seen["value is no composite"] += 1
    if fuzz_input.random_seed % REPR_INTERVAL == 0:
        require(repr(value), "a value can be printed")


def _end_of(data: bytes) -> int:
    try:
        return skip(data, 0)
    except DecodeError:
        return -1


def read_message(fuzz_input: Input, seen: collections.Counter[str]) -> None:
    (data,) = fuzz_input.reads
    try:
        message = Message(data, LIMITS[fuzz_input.random_seed % len(LIMITS)])
    except DecodeError:
        seen["message refused"] += 1
        return
    refused = 0
    for read in READS:
        try:
            read(message)
        except DecodeError:
            refused += 1
    seen["message read in part" if refused else "message read"] += 1


READS: Final[tuple[Callable[[Message], object], ...]] = (
    lambda message: message.header,
    lambda message: message.properties,
    lambda message: message.delivery_annotations,
    lambda message: message.message_annotations,
    lambda message: message.application_properties,
    lambda message: message.footer,
    lambda message: message.body_section,
    lambda message: message.data,
    lambda message: message.sequences,
    lambda message: message.value,
    lambda message: [message.raw(section) for section in Section],
    lambda message: message.field(Section.HEADER, 4),
    lambda message: message.field(Section.PROPERTIES, 0),
    lambda message: message.field(Section.PROPERTIES, 10),
    lambda message: message.field(Section.VALUE, 1),
    lambda message: message.lookup(Section.MESSAGE_ANNOTATIONS, "x-opt-sequence"),
    lambda message: message.lookup(Section.APPLICATION_PROPERTIES, "colour"),
    lambda message: message.lookup(Section.HEADER, "colour"),
)


def compare_decoders(fuzz_input: Input, seen: collections.Counter[str]) -> None:
    """Compare the fast decoding of transfers and dispositions with the declared decoding."""
    (data,) = fuzz_input.reads
    limits = LIMITS[fuzz_input.random_seed % 2]
    read = READERS.get(data[:3])
    if read is None:
        seen["transfer became another performative"] += 1
        return
    end = len(data)
    if fuzz_input.random_seed & REPR_INTERVAL:
        data += NEXT_FRAME  # following bytes must not matter
    fast, declared = read[0](data, end, limits), read[1](data, end, limits)
    require(fast == declared, f"fast and declared reading agree: {fast}, {declared}")
    seen["transfer refused" if fast is None else "transfer read"] += 1


def _fast_transfer(data: bytes, end: int, limits: Limits) -> Decoded:
    try:
        handle, delivery_id, tag, tail, at = read_transfer(data, 0, end, limits)
    except (DecodeError, IndexError, struct.error):  # the connection treats all of them as decode errors
        return None
    return handle, delivery_id, tag, tail.settled, tail.more, tail.aborted, repr(tail.state), at


def _declared_transfer(data: bytes, end: int, limits: Limits) -> Decoded:
    try:
        transfer, at = read_performative(data, 0, end, limits)
    except DecodeError:
        return None
    assert isinstance(transfer, Transfer)
    settled = bool(transfer.settled)
    ids = (transfer.handle, transfer.delivery_id, transfer.delivery_tag)
    return *ids, settled, transfer.more, transfer.aborted, repr(transfer.state), at


def _fast_disposition(data: bytes, end: int, limits: Limits) -> Decoded:
    try:
        role, first, last, tail = read_disposition(data, 0, end, limits)
    except (DecodeError, IndexError, struct.error):
        return None
    return role, first, last, tail.settled, repr(tail.state)


def _declared_disposition(data: bytes, end: int, limits: Limits) -> Decoded:
    try:
        disposition, at = read_performative(data, 0, end, limits)
    except DecodeError:
        return None
    assert isinstance(disposition, Disposition)
    last = disposition.first if disposition.last is None else disposition.last
    return (
        (disposition.role, disposition.first, last, disposition.settled, repr(disposition.state)) if at == end else None
    )


READERS: Final = {
    b"\x00\x53\x14": (_fast_transfer, _declared_transfer),
    b"\x00\x53\x15": (_fast_disposition, _declared_disposition),
}
