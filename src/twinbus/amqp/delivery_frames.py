"""Transfer and disposition, the two frames that come by the hundred thousand, read and written by hand.

Everything here is a special case of what `performatives` declares, for the encodings that real clients use; any other
legal encoding takes the declared way. What stands behind the ids in these frames (settled, state and so on) is nearly
always one of a handful of byte strings, so each is decoded once and kept.

Owns: these bytes. Knows nothing of sessions or links.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from twinbus.amqp.decode import open_list, skip
from twinbus.amqp.errors import DecodeError
from twinbus.amqp.frames import DATA_OFFSET, HEADER_SIZE, read_performative
from twinbus.amqp.outcomes import ACCEPTED, RELEASED, Accepted, Modified, Released
from twinbus.amqp.performatives import Disposition, Transfer

if TYPE_CHECKING:
    from twinbus.amqp.settings import Limits

TRANSFER: Final = 0x14
DISPOSITION: Final = 0x15
TRANSFER_DESCRIPTOR: Final = bytes((0x00, 0x53, TRANSFER))
DISPOSITION_DESCRIPTOR: Final = bytes((0x00, 0x53, DISPOSITION))

T = TypeVar("T")

_U32: Final = struct.Struct(">I").unpack_from
_MAX_CACHED_TAILS: Final = 512
"""Tails kept at the most, of all connections together. One more and they are forgotten, to be learnt again: a peer that
invents new ones must not keep those of the others out."""
_MAX_TAIL_BYTES: Final = 20


class TransferTail(NamedTuple):
    """The fields of a transfer behind its delivery tag."""

    message_format: int
    settled: bool
    more: bool
    state: Any
    aborted: bool
    is_whole: bool
    """Neither more frames follow nor was it aborted: one frame, one message."""


class DispositionTail(NamedTuple):
    """The fields of a disposition behind its range."""

    settled: bool
    state: Any


# By their bytes: how many fields the whole list has, which the bytes before them must confirm, and what they say.
_transfer_tails: Final[dict[bytes, tuple[int, TransferTail]]] = {}
_disposition_tails: Final[dict[bytes, tuple[int, DispositionTail]]] = {}


def read_transfer(
    data: bytes, at: int, end: int, limits: Limits
) -> tuple[int, int | None, bytes | None, TransferTail, int]:
    """Handle, delivery id, delivery tag, the rest, and where the payload starts.

    `at` is the descriptor's offset, `end` that of the next frame.
    """
    start = at
    code = data[at + 3]
    if code == 0xC0:
        body_end = at + 5 + data[at + 4]
        count = data[at + 5]
        at += 6
    elif code == 0xD0:
        body_end = at + 8 + _U32(data, at + 4)[0]
        count = _U32(data, at + 8)[0]
        at += 12
    else:
        body_end = count = 0
    if count < 3:
        return _read_declared_transfer(data, start, end, limits)
    code = data[at]
    if code == 0x52:
        handle = data[at + 1]
        at += 2
    elif code == 0x43:
        handle = 0
        at += 1
    elif code == 0x70:
        handle = _U32(data, at + 1)[0]
        at += 5
    else:
        return _read_declared_transfer(data, start, end, limits)
    code = data[at]
    delivery_id: int | None
    if code == 0x70:
        delivery_id = _U32(data, at + 1)[0]
        at += 5
    elif code == 0x52:
        delivery_id = data[at + 1]
        at += 2
    elif code == 0x43:
        delivery_id = 0
        at += 1
    else:
        return _read_declared_transfer(data, start, end, limits)
    if data[at] != 0xA0:
        return _read_declared_transfer(data, start, end, limits)
    tag_end = at + 2 + data[at + 1]
    if not tag_end <= body_end <= end:
        return _read_declared_transfer(data, start, end, limits)
    kept = _transfer_tails.get(data[tag_end:body_end])
    if kept is None or kept[0] != count:
        return _read_declared_transfer(data, start, end, limits)
    return handle, delivery_id, data[at + 2 : tag_end], kept[1], body_end


def _read_declared_transfer(
    data: bytes, at: int, end: int, limits: Limits
) -> tuple[int, int | None, bytes | None, TransferTail, int]:
    found, payload = read_performative(data, at, end, limits)
    if not isinstance(found, Transfer):
        raise DecodeError("a transfer frame that holds no transfer")
    tail = TransferTail(
        message_format=found.message_format or 0,
        settled=bool(found.settled),
        more=found.more,
        state=_shared_state(found.state),
        aborted=found.aborted,
        is_whole=not found.more and not found.aborted,
    )
    if found.delivery_tag is not None and _can_be_shared(tail.state):
        _cache_transfer_tail(data[at:payload], tail)
    return found.handle, found.delivery_id, found.delivery_tag, tail, payload


def _cache_transfer_tail(body: bytes, tail: TransferTail) -> None:
    """Remember the bytes behind the delivery tag, found by walking over the three fields before them."""
    if body[:3] != TRANSFER_DESCRIPTOR:
        return
    count, at = open_list(body, 3)
    for _ in range(3):
        at = skip(body, at)
    _cache_tail(_transfer_tails, body[at:], (count, tail))


def _shared_state(state: object) -> object:
    """A state that has nothing in it is one and the same object, for everyone."""
    if isinstance(state, Accepted):
        return ACCEPTED
    return RELEASED if isinstance(state, Released) else state


def _can_be_shared(state: object) -> bool:
    """A program may change a state that has fields; that must not be seen on another connection."""
    return state is None or state is ACCEPTED or state is RELEASED


def _cache_tail(tails: dict[bytes, tuple[int, T]], key: bytes, kept: tuple[int, T]) -> None:
    if len(key) > _MAX_TAIL_BYTES:
        return
    if len(tails) >= _MAX_CACHED_TAILS:
        tails.clear()
    tails[key] = kept


def read_disposition(data: bytes, at: int, end: int, limits: Limits) -> tuple[bool, int, int, DispositionTail]:
    """Role, first and last delivery id, and the rest."""
    start = at
    if data[at + 3] != 0xC0 or data[at + 5] < 3:
        return _read_declared_disposition(data, start, end, limits)
    body_end = at + 5 + data[at + 4]
    role = data[at + 6]
    at += 7
    if role == 0x56 and data[at] < 2:  # as the Azure SDK for Python writes a boolean
        role = 0x41 if data[at] else 0x42
        at += 1
    if role == 0x41 or role == 0x42:  # noqa: PLR1714  # a tuple costs more here
        code = data[at]
        if code == 0x70:
            first = _U32(data, at + 1)[0]
            at += 5
        elif code == 0x52:
            first = data[at + 1]
            at += 2
        elif code == 0x43:
            first = 0
            at += 1
        else:
            return _read_declared_disposition(data, start, end, limits)
        code = data[at]
        if code == 0x70:
            last = _U32(data, at + 1)[0]
            at += 5
        elif code == 0x40:
            last = first
            at += 1
        elif code == 0x52:
            last = data[at + 1]
            at += 2
        else:
            return _read_declared_disposition(data, start, end, limits)
        if at <= body_end == end:
            kept = _disposition_tails.get(data[at:body_end])
            if kept is not None and kept[0] == data[start + 5]:
                return role == 0x41, first, last, _copy_state(kept[1])
    return _read_declared_disposition(data, start, end, limits)


def _read_declared_disposition(
    data: bytes, at: int, end: int, limits: Limits
) -> tuple[bool, int, int, DispositionTail]:
    found, stopped = read_performative(data, at, end, limits)
    if not isinstance(found, Disposition) or stopped != end:
        raise DecodeError("a disposition frame that holds something else")
    tail = DispositionTail(found.settled, _shared_state(found.state))
    if _can_be_shared(tail.state) or is_plain_modified(tail.state):
        _cache_disposition_tail(data[at:end], tail)
    return found.role, found.first, found.first if found.last is None else found.last, _copy_state(tail)


def is_plain_modified(state: object) -> bool:
    """Whether it is a modified state that has two flags and nothing else."""
    return isinstance(state, Modified) and not state.message_annotations


def _copy_state(tail: DispositionTail) -> DispositionTail:
    """The same, with a state that the program may change."""
    state = tail.state
    if not isinstance(state, Modified):
        return tail
    copy = Modified(
        delivery_failed=state.delivery_failed,
        undeliverable_here=state.undeliverable_here,
        message_annotations=state.message_annotations,
    )
    return DispositionTail(tail.settled, copy)


def _cache_disposition_tail(body: bytes, tail: DispositionTail) -> None:
    if body[:4] != DISPOSITION_DESCRIPTOR + b"\xc0" or body[5] < 3:
        return
    count, at = open_list(body, 3)
    for _ in range(3):
        at = skip(body, at)
    _cache_tail(_disposition_tails, body[at:], (count, tail))


# --- writing ----------------------------------------------------------------------------------------------------------

_FLAGS: Final = {False: b"\x42", True: b"\x41"}
_TRANSFER_FRONT: Final = struct.Struct(">BBHBBBBBBBIB")
_DISPOSITION_FRONT: Final = struct.Struct(">IBBHBBBBBBBBIBIB")
_BINARY8: Final = 0xA0 << 8
"""Constructor of a short binary, to which its length is added."""


class TransferWriter:
    """Writes transfer frames of one link. What does not change from one delivery to the next is made once."""

    __slots__ = ("_channel", "_handle", "_templates")

    def __init__(self, channel: int, handle: int) -> None:
        """For our channel and our handle."""
        self._channel = channel
        self._handle = handle
        self._templates: dict[tuple[int, int, bool, bool], tuple[struct.Struct, bytes, int, bytes]] = {}

    def head(
        self, delivery_id: int, tag: bytes, message_format: int, *, settled: bool, more: bool, payload_size: int
    ) -> bytes:
        """All of a frame but its payload."""
        key = (len(tag), message_format, settled, more)
        plan = self._templates.get(key)
        if plan is None:
            plan = self._templates[key] = self._make_template(*key)
        layout, front, tag_constructor, tail = plan
        return layout.pack(layout.size + payload_size, front, delivery_id, tag_constructor, tag, tail)

    def _make_template(
        self, tag_size: int, message_format: int, settled: bool, more: bool
    ) -> tuple[struct.Struct, bytes, int, bytes]:
        # All eleven fields, null or not: pyamqp finds the payload by their number.
        tail = struct.pack(">BI", 0x70, message_format) + _FLAGS[settled] + _FLAGS[more] + b"\x40" * 5
        list_size = 1 + 5 + 5 + 2 + tag_size + len(tail)
        front = _TRANSFER_FRONT.pack(
            DATA_OFFSET, 0, self._channel, 0x00, 0x53, TRANSFER, 0xC0, list_size, 11, 0x70, self._handle, 0x70
        )
        layout = struct.Struct(f">I{len(front)}sIH{tag_size}s{len(tail)}s")
        return layout, front, _BINARY8 + tag_size, tail


def disposition_frame(channel: int, role: bool, first: int, last: int, *, settled: bool, state: bytes) -> bytes:
    """A whole disposition frame; `state` is encoded already."""
    size = _DISPOSITION_FRONT.size + len(state) + 1
    list_size = size - 13
    if list_size > 255:
        body = struct.pack(
            ">BBBBIIBBIBIB",
            0x00,
            0x53,
            DISPOSITION,
            0xD0,
            list_size + 3,
            6,
            0x41 if role else 0x42,
            0x70,
            first,
            0x70,
            last,
            0x41 if settled else 0x42,
        )
        return (
            struct.pack(">IBBH", HEADER_SIZE + len(body) + len(state) + 1, DATA_OFFSET, 0, channel)
            + body
            + state
            + b"\x40"
        )
    return (
        _DISPOSITION_FRONT.pack(
            size,
            DATA_OFFSET,
            0,
            channel,
            0x00,
            0x53,
            DISPOSITION,
            0xC0,
            list_size,
            6,
            0x41 if role else 0x42,
            0x70,
            first,
            0x70,
            last,
            0x41 if settled else 0x42,
        )
        + state
        + b"\x40"
    )
