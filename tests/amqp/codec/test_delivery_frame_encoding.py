"""Hand-written encoding of transfers and dispositions: the declared decoder reads back exactly what was encoded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.amqp.codec.frame_strategies import STATES
from tests.amqp.codec.value_strategies import examples
from twinbus.amqp.codec.decode import DEFAULT_LIMITS, decode
from twinbus.amqp.codec.delivery_frames import TransferWriter, disposition_frame
from twinbus.amqp.codec.encode import encode
from twinbus.amqp.codec.frames import AMQP_FRAME, DATA_OFFSET, FRAME_HEADER, HEADER_SIZE, frame, read_performative
from twinbus.amqp.codec.performatives import Disposition, Transfer
from twinbus.amqp.types import Described

if TYPE_CHECKING:
    from twinbus.amqp.codec.composite import Composite

uints = st.integers(0, 2**32 - 1) | st.sampled_from([0, 255, 256, 2**31, 2**32 - 1])
channels = st.integers(0, 65_535)
message_formats = uints | st.sampled_from([0, 0x80013700])


def read_frame(data: bytes, channel: int) -> tuple[Composite, bytes]:
    """Return the performative and the payload of `data`, which must be exactly one frame."""
    assert FRAME_HEADER.unpack_from(data) == (len(data), DATA_OFFSET, AMQP_FRAME, channel)
    performative, end = read_performative(data, HEADER_SIZE, len(data), DEFAULT_LIMITS)
    return performative, data[end:]


@examples(150)
@given(
    channel=channels,
    handle=uints,
    delivery_id=uints,
    tag=st.binary(max_size=32),
    message_format=message_formats,
    settled=st.booleans(),
    more=st.booleans(),
    payload=st.binary(max_size=300),
)
def test_a_hand_written_transfer_decodes_to_the_same_fields(
    channel: int,
    handle: int,
    delivery_id: int,
    tag: bytes,
    message_format: int,
    payload: bytes,
    *,
    settled: bool,
    more: bool,
) -> None:
    writer = TransferWriter(channel, handle)
    head = writer.head(delivery_id, tag, message_format, settled=settled, more=more, payload_size=len(payload))
    expected = Transfer(
        handle=handle,
        delivery_id=delivery_id,
        delivery_tag=tag,
        message_format=message_format,
        settled=settled,
        more=more,
    )
    assert read_frame(head + payload, channel) == (expected, payload)


def test_a_hand_written_transfer_has_all_eleven_fields() -> None:
    head = TransferWriter(0, 1).head(2, b"tag", 0, settled=False, more=False, payload_size=0)
    value, _ = decode(head, HEADER_SIZE)
    assert isinstance(value, Described)
    assert isinstance(value.value, list)
    assert len(value.value) == 11


@pytest.mark.parametrize("size", [*range(33), 230])
def test_a_delivery_tag_may_have_any_allowed_length(size: int) -> None:
    tag = bytes(range(size))
    head = TransferWriter(1, 2).head(3, tag, 0, settled=True, more=False, payload_size=0)
    performative, _ = read_frame(head, 1)
    assert isinstance(performative, Transfer)
    assert performative.delivery_tag == tag


@examples(50)
@given(st.lists(st.tuples(uints, st.binary(max_size=4), st.sampled_from([0, 7]), st.booleans(), st.booleans())))
def test_a_transfer_writer_keeps_no_state_between_transfers(
    deliveries: list[tuple[int, bytes, int, bool, bool]],
) -> None:
    writer = TransferWriter(3, 4)
    for delivery_id, tag, message_format, settled, more in deliveries:
        written = writer.head(delivery_id, tag, message_format, settled=settled, more=more, payload_size=9)
        fresh = TransferWriter(3, 4).head(delivery_id, tag, message_format, settled=settled, more=more, payload_size=9)
        assert written == fresh


@examples(100)
@given(
    channel=channels,
    role=st.booleans(),
    first=uints,
    last=uints,
    settled=st.booleans(),
    state=st.none() | st.sampled_from(STATES),
)
def test_a_hand_written_disposition_decodes_to_the_same_fields(
    channel: int, first: int, last: int, state: Composite | None, *, role: bool, settled: bool
) -> None:
    encoded = b"\x40" if state is None else state.encode()
    data = disposition_frame(channel, role, first, last, settled=settled, state=encoded)
    expected = Disposition(role=role, first=first, last=last, settled=settled, state=state)
    assert read_frame(data, channel) == (expected, b"")


@pytest.mark.parametrize("sizes", [range(260), range(65_530, 65_540)], ids=["narrow", "wide"])
def test_a_disposition_state_may_have_any_length(sizes: range) -> None:
    for size in sizes:
        state = bytes(size)
        data = disposition_frame(1, False, 2, 3, settled=True, state=encode(state))  # noqa: FBT003  # a role
        expected = Disposition(role=False, first=2, last=3, settled=True, state=state)
        assert read_frame(data, 1) == (expected, b"")


def test_a_hand_written_disposition_has_all_six_fields() -> None:
    for state in (b"\x40", encode(bytes(300))):
        value, _ = decode(disposition_frame(0, True, 1, 1, settled=False, state=state), HEADER_SIZE)  # noqa: FBT003
        assert isinstance(value, Described)
        assert isinstance(value.value, list)
        assert len(value.value) == 6


def test_hand_written_and_declared_frames_decode_to_the_same_transfer() -> None:
    declared = frame(
        1, Transfer(handle=300, delivery_id=300, delivery_tag=b"t", message_format=300, settled=True).encode()
    )
    by_hand = TransferWriter(1, 300).head(300, b"t", 300, settled=True, more=False, payload_size=0)
    assert read_frame(by_hand, 1) == read_frame(declared, 1)
