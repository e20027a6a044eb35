"""Fast decoding of transfers and dispositions: it agrees with the declared decoding for every legal encoding."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest
from azure.servicebus._pyamqp import performatives as pyamqp
from azure.servicebus._pyamqp._encode import encode_frame
from azure.servicebus._pyamqp.outcomes import Accepted as PyamqpAccepted
from hypothesis import given
from hypothesis import strategies as st

from tests.amqp.codec.frame_strategies import (
    disposition_as_declared,
    disposition_fields,
    disposition_read,
    encoded_fields,
    encoded_frame,
    transfer_as_declared,
    transfer_fields,
    transfer_read,
)
from tests.amqp.codec.reference_encoder import encoding_choices
from tests.amqp.codec.value_strategies import examples
from twinbus.amqp.codec import delivery_frames
from twinbus.amqp.codec.delivery_frames import (
    DISPOSITION,
    TRANSFER,
    DispositionTail,
    TransferTail,
    TransferWriter,
    _disposition_tails,
    _transfer_tails,
    disposition_frame,
)
from twinbus.amqp.codec.performatives import Disposition, Transfer
from twinbus.amqp.errors import DecodeError
from twinbus.amqp.outcomes import ACCEPTED

if TYPE_CHECKING:
    from random import Random

REFUSED = (DecodeError, IndexError, struct.error)
"""Exceptions that the connection treats as an invalid frame."""
FOLLOWING_BYTES = st.sampled_from([b"", b"\x00\x00\x00\x08\x02\x00\x00\x00", b"\x40" * 40, b"\xa0" * 40])
"""Bytes that may follow a frame in the same read."""


def clear_caches() -> None:
    _transfer_tails.clear()
    _disposition_tails.clear()


@examples(200)
@given(transfer_fields, encoding_choices(), st.binary(max_size=20), FOLLOWING_BYTES)
def test_a_transfer_is_decoded_as_declared_with_and_without_the_cache(
    fields: tuple[object, ...], chance: Random, payload: bytes, following: bytes
) -> None:
    clear_caches()
    encoding = encoded_frame(TRANSFER, encoded_fields(fields, chance), chance)
    data = b"before" + encoding + payload + following
    end = len(data) - len(following)
    expected = transfer_as_declared(data, 6, end)
    assert expected[:3] == fields[:3]
    assert expected[-1] == 6 + len(encoding)
    assert transfer_read(data, 6, end) == expected
    assert transfer_read(data, 6, end) == expected


@examples(200)
@given(disposition_fields, encoding_choices(), FOLLOWING_BYTES)
def test_a_disposition_is_decoded_as_declared_with_and_without_the_cache(
    fields: tuple[object, ...], chance: Random, following: bytes
) -> None:
    clear_caches()
    data = b"before" + encoded_frame(DISPOSITION, encoded_fields(fields, chance), chance)
    end = len(data)
    data += following
    expected = disposition_as_declared(data, 6, end)
    assert expected[:2] == fields[:2]
    assert disposition_read(data, 6, end) == expected
    assert disposition_read(data, 6, end) == expected


@examples(100)
@given(transfer_fields, transfer_fields, encoding_choices(), st.binary(max_size=20))
def test_a_transfer_with_the_tail_of_another_keeps_its_own_ids_and_tag(
    one: tuple[object, ...], other: tuple[object, ...], chance: Random, payload: bytes
) -> None:
    clear_caches()
    tail = encoded_fields(one, chance)[3:]
    for fields in (one, other):
        front = encoded_fields(fields, chance)[:3]
        front += [b"\x40"] * (3 - len(front) if tail else 0)
        data = encoded_frame(TRANSFER, front + tail, chance) + payload
        assert transfer_read(data, 0, len(data)) == transfer_as_declared(data, 0, len(data))


@examples(100)
@given(disposition_fields, disposition_fields, encoding_choices())
def test_a_disposition_with_the_tail_of_another_keeps_its_own_range(
    one: tuple[object, ...], other: tuple[object, ...], chance: Random
) -> None:
    clear_caches()
    tail = encoded_fields(one, chance)[3:]
    for fields in (one, other):
        front = encoded_fields(fields, chance)[:3]
        front += [b"\x40"] * (3 - len(front) if tail else 0)
        data = encoded_frame(DISPOSITION, front + tail, chance)
        assert disposition_read(data, 0, len(data)) == disposition_as_declared(data, 0, len(data))


def damaged(encoding: bytes, data: st.DataObject) -> bytes:
    """Return `encoding` with a few bytes changed after its descriptor."""
    changed = bytearray(encoding)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(3, len(changed)))
        removed = data.draw(st.integers(0, 2))
        inserted = st.sampled_from(
            [b"", b"\x00", b"\x03", b"\x40", b"\x43", b"\x52", b"\x70", b"\xa0", b"\xc0", b"\xff"]
        )
        changed[at : at + removed] = data.draw(inserted)
    return bytes(changed)


@examples(150)
@given(transfer_fields, encoding_choices(), FOLLOWING_BYTES, st.data())
def test_a_damaged_transfer_is_refused_or_decoded_as_declared_whatever_is_cached(
    fields: tuple[object, ...], chance: Random, following: bytes, data: st.DataObject
) -> None:
    clear_caches()
    encoding = encoded_frame(TRANSFER, encoded_fields(fields, chance), chance)
    transfer_read(encoding, 0, len(encoding))
    frame = damaged(encoding, data)
    received = frame + following
    try:
        expected = transfer_as_declared(received, 0, len(frame))
    except DecodeError:
        with pytest.raises(REFUSED):
            transfer_read(received, 0, len(frame))
    else:
        assert transfer_read(received, 0, len(frame)) == expected


@examples(150)
@given(disposition_fields, encoding_choices(), FOLLOWING_BYTES, st.data())
def test_a_damaged_disposition_is_refused_or_decoded_as_declared_whatever_is_cached(
    fields: tuple[object, ...], chance: Random, following: bytes, data: st.DataObject
) -> None:
    clear_caches()
    encoding = encoded_frame(DISPOSITION, encoded_fields(fields, chance), chance)
    disposition_read(encoding, 0, len(encoding))
    frame = damaged(encoding, data)
    received = frame + following
    try:
        expected = disposition_as_declared(received, 0, len(frame))
    except (DecodeError, AssertionError):  # another performative, or trailing bytes
        with pytest.raises(REFUSED):
            disposition_read(received, 0, len(frame))
    else:
        assert disposition_read(received, 0, len(frame)) == expected


# --- single cases -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "encoding", ["005314 c00301 5205", "005314 c00201 43", "005314 c00402 43 5207", "005314 c00302 43 43"]
)
def test_a_transfer_of_one_or_two_fields_may_end_the_input(encoding: str) -> None:
    data = bytes.fromhex(encoding)
    assert transfer_read(data, 0, len(data)) == transfer_as_declared(data, 0, len(data))


@pytest.mark.parametrize("encoding", ["005315 c00302 41 43", "005315 c00402 42 5207"])
def test_a_disposition_of_two_fields_may_end_the_input(encoding: str) -> None:
    data = bytes.fromhex(encoding)
    assert disposition_read(data, 0, len(data)) == disposition_as_declared(data, 0, len(data))


def test_absent_fields_of_a_transfer_have_plain_default_values() -> None:
    data = Transfer(handle=1, delivery_id=2, delivery_tag=b"").encode()
    tail = TransferTail(0, settled=False, more=False, state=None, aborted=False, is_whole=True)
    assert transfer_read(data, 0, len(data)) == (1, 2, b"", tail, len(data))


@pytest.mark.parametrize(("more", "aborted"), [(False, False), (True, False), (False, True), (True, True)])
def test_a_transfer_is_whole_when_no_more_follows_and_it_is_not_aborted(*, more: bool, aborted: bool) -> None:
    data = Transfer(handle=1, delivery_id=2, delivery_tag=b"", more=more, aborted=aborted).encode()
    assert transfer_read(data, 0, len(data))[3].is_whole is (not more and not aborted)


def test_a_disposition_without_last_covers_one_delivery() -> None:
    data = Disposition(role=True, first=7, settled=True, state=ACCEPTED).encode()
    assert disposition_read(data, 0, len(data)) == (True, 7, 7, DispositionTail(settled=True, state=ACCEPTED))


@pytest.mark.parametrize("encoding", ["005324 45", "005315 c00302 41 43", "005317 45"])
def test_another_performative_is_not_decoded_as_a_transfer(encoding: str) -> None:
    data = bytes.fromhex(encoding)
    with pytest.raises(DecodeError, match="no transfer"):
        transfer_read(data, 0, len(data))


@pytest.mark.parametrize("following", [b"\x40", b"\x00"])
def test_a_disposition_with_trailing_bytes_in_its_frame_is_refused(following: bytes) -> None:
    data = Disposition(role=True, first=7, state=ACCEPTED).encode()
    disposition_read(data, 0, len(data))
    with pytest.raises(DecodeError):
        disposition_read(data + following, 0, len(data) + 1)


# --- use of the fast decoder ------------------------------------------------------------------------------------------

PYAMQP_TRANSFER = pyamqp.TransferFrame(
    handle=3,
    delivery_id=70_000,
    delivery_tag=b"0123456789abcdef",
    message_format=0,
    settled=False,
    more=False,
    rcv_settle_mode=None,
    state=None,
    resume=None,
    aborted=None,
    batchable=None,
    payload=b"payload",
)
PYAMQP_DISPOSITION = pyamqp.DispositionFrame(
    role=True, first=70_000, last=None, settled=False, state=PyamqpAccepted(), batchable=None
)


def encoded_by_pyamqp(frame: object) -> bytes:
    _, encoding = encode_frame(frame)  # type: ignore[arg-type]  # a named tuple that pyamqp does not declare as one
    assert encoding is not None
    return bytes(encoding)


TRANSFERS = {
    "pyamqp": encoded_by_pyamqp(PYAMQP_TRANSFER),
    "ours, by hand": TransferWriter(0, 3).head(70_000, b"tag", 0, settled=False, more=False, payload_size=0)[8:],
    "ours, as declared": Transfer(handle=3, delivery_id=7, delivery_tag=b"tag", message_format=0).encode(),
    "proton": bytes.fromhex("005314 c00b05 43 5207 a003746167 43 42") + b"payload",
    "a wide list": bytes.fromhex("005314 d00000000d00000005 43 43 a003746167 43 42") + b"payload",
}
DISPOSITIONS = {
    "pyamqp": encoded_by_pyamqp(PYAMQP_DISPOSITION),
    "ours": disposition_frame(0, True, 70_000, 70_001, settled=True, state=ACCEPTED.encode())[8:],  # noqa: FBT003
    "ours, as declared": Disposition(role=True, first=70_000, settled=True, state=ACCEPTED).encode(),
    "proton": bytes.fromhex("005315 c00b05 41 5207 5209 41 005324 45"),
}


@pytest.mark.parametrize("client", TRANSFERS)
def test_transfers_of_real_clients_take_the_fast_path_from_the_second_on(
    client: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clear_caches()
    data = TRANSFERS[client]
    first = transfer_read(data, 0, len(data))
    monkeypatch.delattr(delivery_frames, "read_performative")
    assert transfer_read(data, 0, len(data)) == first


@pytest.mark.parametrize("client", DISPOSITIONS)
def test_dispositions_of_real_clients_take_the_fast_path_from_the_second_on(
    client: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clear_caches()
    data = DISPOSITIONS[client]
    first = disposition_read(data, 0, len(data))
    monkeypatch.delattr(delivery_frames, "read_performative")
    assert disposition_read(data, 0, len(data)) == first
