"""The cache of decoded transfer and disposition tails: bounded, refilled when full, and never used for other frames."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.amqp.codec.frame_strategies import disposition_read, transfer_read
from twinbus.amqp.codec import delivery_frames
from twinbus.amqp.codec.delivery_frames import _MAX_CACHED_TAILS, _MAX_TAIL_BYTES, _disposition_tails, _transfer_tails
from twinbus.amqp.codec.performatives import Disposition, Transfer
from twinbus.amqp.errors import DecodeError
from twinbus.amqp.outcomes import ACCEPTED, RELEASED, Modified, Rejected, TransactionalState

if TYPE_CHECKING:
    from collections.abc import Iterator

MANY = 3 * _MAX_CACHED_TAILS


@pytest.fixture(autouse=True)
def empty_caches() -> Iterator[None]:
    _transfer_tails.clear()
    _disposition_tails.clear()
    yield
    _transfer_tails.clear()
    _disposition_tails.clear()


def transfer(number: int, message_format: int, state: object = None) -> bytes:
    return Transfer(
        handle=number, delivery_id=number, delivery_tag=b"tag", message_format=message_format, state=state
    ).encode()


def disposition(first: int, state: object) -> bytes:
    return Disposition(role=True, first=first, last=first + 1, settled=True, state=state).encode()


def test_a_peer_that_sends_ever_new_tails_cannot_grow_the_cache_beyond_its_limit() -> None:
    for number in range(MANY):
        data = transfer(number, 0x80000000 + number)
        for _ in range(2):
            handle, delivery_id, _, tail, _ = transfer_read(data, 0, len(data))
            assert (handle, delivery_id, tail.message_format) == (number, number, 0x80000000 + number)
        assert 0 < len(_transfer_tails) <= _MAX_CACHED_TAILS


def test_a_peer_that_sends_ever_new_tails_cannot_keep_other_tails_out_of_the_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for number in range(MANY):
        data = transfer(1, number)
        transfer_read(data, 0, len(data))
    usual_transfer = transfer(7, 2**31)
    first = transfer_read(usual_transfer, 0, len(usual_transfer))
    monkeypatch.delattr(delivery_frames, "read_performative")
    assert transfer_read(usual_transfer, 0, len(usual_transfer)) == first


def test_a_plain_modified_state_is_cached_and_every_read_gets_a_copy() -> None:
    data = disposition(1, Modified(undeliverable_here=True))
    states = [disposition_read(data, 0, len(data))[3].state for _ in range(3)]
    assert states == [Modified(undeliverable_here=True)] * 3
    assert len({id(state) for state in states}) == 3
    assert len(_disposition_tails) == 1


@pytest.mark.parametrize(
    "state",
    [
        Rejected(),
        Modified(message_annotations={"a": 1}),
        TransactionalState(txn_id=b"1", outcome=ACCEPTED),
        "none of ours",
    ],
    ids=repr,
)
def test_a_state_with_mutable_content_is_not_cached(state: object) -> None:
    for data, read in ((transfer(1, 0, state), transfer_read), (disposition(1, state), disposition_read)):
        states = [read(data, 0, len(data))[3].state for _ in range(2)]
        assert states == [state, state]
        assert states[0] is not states[1]
    assert not _transfer_tails
    assert not _disposition_tails


@pytest.mark.parametrize("state", [None, ACCEPTED, RELEASED], ids=repr)
def test_a_state_without_fields_is_decoded_to_the_shared_instance(state: object) -> None:
    for data, read in ((transfer(1, 0, state), transfer_read), (disposition(1, state), disposition_read)):
        for _ in range(2):
            assert read(data, 0, len(data))[3].state is state
    assert len(_transfer_tails) == len(_disposition_tails) == 1


@pytest.mark.parametrize(("resume", "is_cached"), [("42", True), ("5600", False)], ids=["20 bytes", "21 bytes"])
def test_the_tail_of_a_transfer_is_cached_up_to_twenty_bytes(resume: str, *, is_cached: bool) -> None:
    tail = bytes.fromhex("7000000000 5600 5600 5000 00532445" + resume + "5600 5600")
    assert (len(tail) <= _MAX_TAIL_BYTES) is is_cached
    body = bytes.fromhex("43 43 a003746167") + tail
    data = bytes((0x00, 0x53, delivery_frames.TRANSFER, 0xC0, len(body) + 1, 11)) + body
    for _ in range(2):
        assert transfer_read(data, 0, len(data))[3].state is ACCEPTED
    assert (tail in _transfer_tails) is is_cached


@pytest.mark.parametrize(("settled", "is_cached"), [("41", True), ("5601", False)], ids=["20 bytes", "21 bytes"])
def test_the_tail_of_a_disposition_is_cached_up_to_twenty_bytes(settled: str, *, is_cached: bool) -> None:
    tail = bytes.fromhex(settled + "00800000000000000024 d00000000400000000")
    assert (len(tail) <= _MAX_TAIL_BYTES) is is_cached
    body = bytes.fromhex("41 43 43") + tail
    data = bytes((0x00, 0x53, delivery_frames.DISPOSITION, 0xC0, len(body) + 1, 5)) + body
    for _ in range(2):
        assert disposition_read(data, 0, len(data))[3] == (True, ACCEPTED)
    assert (tail in _disposition_tails) is is_cached


@pytest.mark.parametrize("count", [3, 4, 10, 12, 255])
def test_a_cached_tail_does_not_hide_a_wrong_field_count_of_a_transfer(count: int) -> None:
    narrow = transfer(1, 0)
    transfer_read(narrow, 0, len(narrow))
    wide = narrow[:3] + b"\xd0" + (narrow[4] + 3).to_bytes(4, "big") + b"\x00\x00\x00\x0b" + narrow[6:]
    assert transfer_read(wide, 0, len(wide))[:4] == transfer_read(narrow, 0, len(narrow))[:4]
    wrong_narrow = narrow[:5] + bytes((count,)) + narrow[6:]
    wrong_wide = wide[:8] + count.to_bytes(4, "big") + wide[12:]
    for wrong in (wrong_narrow, wrong_wide, wide[:8] + b"\x01\x00\x00\x0b" + wide[12:]):
        with pytest.raises(DecodeError):
            transfer_read(wrong, 0, len(wrong))


@pytest.mark.parametrize("count", [3, 5, 7, 255])
def test_a_cached_tail_does_not_hide_a_wrong_field_count_of_a_disposition(count: int) -> None:
    data = disposition(1, ACCEPTED)
    disposition_read(data, 0, len(data))
    wrong = data[:5] + bytes((count,)) + data[6:]
    with pytest.raises(DecodeError):
        disposition_read(wrong, 0, len(wrong))


def test_a_truncated_disposition_does_not_read_its_range_from_the_next_frame() -> None:
    whole = bytes.fromhex("005315 c00c03 41 7000000001 7000000002")
    assert disposition_read(whole, 0, len(whole))[:3] == (True, 1, 2)
    truncated = bytes.fromhex("005315 c00903 41 7000000001 7000")
    next_frame = bytes.fromhex("00000008 02000000")
    with pytest.raises(DecodeError):
        disposition_read(truncated + next_frame, 0, len(truncated))


def test_a_truncated_transfer_does_not_complete_a_cached_tail_from_the_next_frame() -> None:
    whole = transfer(1, 0)
    transfer_read(whole, 0, len(whole))
    for end in range(7, len(whole)):
        with pytest.raises(DecodeError):
            transfer_read(whole + b"\x40" * 20, 0, end)


@pytest.mark.parametrize("role", ["5602", "56ff", "40", "43"])
def test_a_cached_tail_does_not_hide_an_invalid_role(role: str) -> None:
    whole = bytes.fromhex("005315 c00703 5601 5201 5202")
    assert disposition_read(whole, 0, len(whole))[:3] == (True, 1, 2)
    size = 5 + len(role) // 2
    wrong = bytes.fromhex(f"005315 c0{size:02x}03 {role} 5201 5202")
    with pytest.raises(DecodeError):
        disposition_read(wrong, 0, len(wrong))


def test_a_truncated_tag_is_not_completed_from_the_payload_or_the_next_frame() -> None:
    whole = bytes.fromhex("005314 c00803 43 43 a003746167")
    assert transfer_read(whole, 0, len(whole))[2] == b"tag"
    truncated = bytes.fromhex("005314 c00603 43 43 a00374")
    for end in (len(truncated), len(truncated) + 2):
        with pytest.raises(DecodeError):
            transfer_read(truncated + b"ag" + b"\x40" * 20, 0, end)
