"""Hand-written codec for transfer and disposition, the two most frequent frames.

The functions here handle the encodings that real clients use; any other legal encoding goes through the declarations
in `performatives`. The tail of a frame, which is the fields after the ids (settled, state and so on), is nearly always
one of a few byte strings. Each distinct tail is therefore decoded once and cached.

Owns the bytes of these two frames. Must not know sessions or links.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from twinbus.amqp.codec.decode import open_list, skip
from twinbus.amqp.codec.frames import DATA_OFFSET, HEADER_SIZE, read_performative
from twinbus.amqp.codec.performatives import Disposition, Transfer
from twinbus.amqp.errors import DecodeError
from twinbus.amqp.outcomes import ACCEPTED, RELEASED, Accepted, Modified, Released

if TYPE_CHECKING:
    from twinbus.amqp.settings import Limits

TRANSFER: Final = 0x14
DISPOSITION: Final = 0x15
TRANSFER_DESCRIPTOR: Final = bytes((0x00, 0x53, TRANSFER))
DISPOSITION_DESCRIPTOR: Final = bytes((0x00, 0x53, DISPOSITION))

T = TypeVar("T")

_U32: Final = struct.Struct(">I").unpack_from
_MAX_CACHED_TAILS: Final = 512
"""Maximum number of tails in each of the two caches, which all connections share. A full cache is cleared and refilled,
so that a peer that sends many different tails cannot keep other peers' tails out of the cache."""
_MAX_TAIL_BYTES: Final = 20


class TransferTail(NamedTuple):
    """Fields of a transfer after its delivery tag."""

    message_format: int
    settled: bool
    more: bool
    state: Any
    aborted: bool
    is_whole: bool
    """True if the transfer is not aborted and no more frames follow: one frame carries the whole message."""


class DispositionTail(NamedTuple):
    """Fields of a disposition after its range of delivery ids."""

    settled: bool
    state: Any


# Encoded tail -> number of fields in the whole list, and the decoded tail. The same bytes in a list with a different
# number of fields mean something else, so a lookup must compare the number.
_transfer_tails: Final[dict[bytes, tuple[int, TransferTail]]] = {}
_disposition_tails: Final[dict[bytes, tuple[int, DispositionTail]]] = {}


def read_transfer(
    data: bytes, at: int, end: int, limits: Limits
) -> tuple[int, int | None, bytes | None, TransferTail, int]:
    """Decode a transfer; return its handle, delivery id, delivery tag, tail, and the offset of the payload.

    `at` is the offset of the descriptor, `end` is the offset of the next frame.
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
    cached = _transfer_tails.get(data[tag_end:body_end])
    if cached is None or cached[0] != count:
        return _read_declared_transfer(data, start, end, limits)
    return handle, delivery_id, data[at + 2 : tag_end], cached[1], body_end


def _read_declared_transfer(
    data: bytes, at: int, end: int, limits: Limits
) -> tuple[int, int | None, bytes | None, TransferTail, int]:
    transfer, payload_at = read_performative(data, at, end, limits)
    if not isinstance(transfer, Transfer):
        raise DecodeError("a transfer frame contains no transfer")
    tail = TransferTail(
        message_format=transfer.message_format or 0,
        settled=bool(transfer.settled),
        more=transfer.more,
        state=_shared_state(transfer.state),
        aborted=transfer.aborted,
        is_whole=not transfer.more and not transfer.aborted,
    )
    if transfer.delivery_tag is not None and _can_be_shared(tail.state):
        _cache_transfer_tail(data[at:payload_at], tail)
    return transfer.handle, transfer.delivery_id, transfer.delivery_tag, tail, payload_at


def _cache_transfer_tail(body: bytes, tail: TransferTail) -> None:
    """Cache the bytes after the delivery tag, found by skipping the three fields before them."""
    if body[:3] != TRANSFER_DESCRIPTOR:
        return
    count, at = open_list(body, 3)
    for _ in range(3):
        at = skip(body, at)
    _cache_tail(_transfer_tails, body[at:], (count, tail))


def _shared_state(state: object) -> object:
    """Return the shared instance of a state that has no fields, or `state` itself."""
    if isinstance(state, Accepted):
        return ACCEPTED
    return RELEASED if isinstance(state, Released) else state


def _can_be_shared(state: object) -> bool:
    """Return whether connections may share the state, which must not have fields that a program could change."""
    return state is None or state is ACCEPTED or state is RELEASED


def _cache_tail(tails: dict[bytes, tuple[int, T]], key: bytes, cached: tuple[int, T]) -> None:
    if len(key) > _MAX_TAIL_BYTES:
        return
    if len(tails) >= _MAX_CACHED_TAILS:
        tails.clear()
    tails[key] = cached


def read_disposition(data: bytes, at: int, end: int, limits: Limits) -> tuple[bool, int, int, DispositionTail]:
    """Decode a disposition; return its role, first and last delivery id, and tail."""
    start = at
    if data[at + 3] != 0xC0 or data[at + 5] < 3:
        return _read_declared_disposition(data, start, end, limits)
    body_end = at + 5 + data[at + 4]
    role = data[at + 6]
    at += 7
    if role == 0x56 and data[at] < 2:  # a boolean as the Azure SDK for Python writes it
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
            cached = _disposition_tails.get(data[at:body_end])
            if cached is not None and cached[0] == data[start + 5]:
                return role == 0x41, first, last, _copy_state(cached[1])
    return _read_declared_disposition(data, start, end, limits)


def _read_declared_disposition(
    data: bytes, at: int, end: int, limits: Limits
) -> tuple[bool, int, int, DispositionTail]:
    disposition, performative_end = read_performative(data, at, end, limits)
    if not isinstance(disposition, Disposition) or performative_end != end:
        raise DecodeError("a disposition frame does not contain exactly one disposition")
    tail = DispositionTail(disposition.settled, _shared_state(disposition.state))
    if _can_be_shared(tail.state) or is_plain_modified(tail.state):
        _cache_disposition_tail(data[at:end], tail)
    return (
        disposition.role,
        disposition.first,
        disposition.first if disposition.last is None else disposition.last,
        _copy_state(tail),
    )


def is_plain_modified(state: object) -> bool:
    """Return whether `state` is a modified state without message annotations."""
    return isinstance(state, Modified) and not state.message_annotations


def _copy_state(tail: DispositionTail) -> DispositionTail:
    """Return `tail`. If the state is a `Modified`, copy the state, because the program may change it."""
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
"""Constructor of a short binary, shifted so that the length can be added."""


class TransferWriter:
    """Writer of transfer frames for one link; caches the parts that are the same for all deliveries."""

    __slots__ = ("_channel", "_handle", "_templates")

    def __init__(self, channel: int, handle: int) -> None:
        """Create a writer for the local `channel` and `handle`."""
        self._channel = channel
        self._handle = handle
        self._templates: dict[tuple[int, int, bool, bool], tuple[struct.Struct, bytes, int, bytes]] = {}

    def head(
        self, delivery_id: int, tag: bytes, message_format: int, *, settled: bool, more: bool, payload_size: int
    ) -> bytes:
        """Return a transfer frame without its payload."""
        key = (len(tag), message_format, settled, more)
        template = self._templates.get(key)
        if template is None:
            template = self._templates[key] = self._make_template(*key)
        layout, front, tag_constructor, tail = template
        return layout.pack(layout.size + payload_size, front, delivery_id, tag_constructor, tag, tail)

    def _make_template(
        self, tag_size: int, message_format: int, settled: bool, more: bool
    ) -> tuple[struct.Struct, bytes, int, bytes]:
        # Write all eleven fields, including nulls: pyamqp locates the payload by the number of fields.
        tail = struct.pack(">BI", 0x70, message_format) + _FLAGS[settled] + _FLAGS[more] + b"\x40" * 5
        list_size = 1 + 5 + 5 + 2 + tag_size + len(tail)
        front = _TRANSFER_FRONT.pack(
            DATA_OFFSET, 0, self._channel, 0x00, 0x53, TRANSFER, 0xC0, list_size, 11, 0x70, self._handle, 0x70
        )
        layout = struct.Struct(f">I{len(front)}sIH{tag_size}s{len(tail)}s")
        return layout, front, _BINARY8 + tag_size, tail


def disposition_frame(channel: int, role: bool, first: int, last: int, *, settled: bool, state: bytes) -> bytes:
    """Return a complete disposition frame; `state` is already encoded."""
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
