"""What a spool's file is made of: records of messages, framed so that damage shows.

A frame is a mark, the length of its content, a CRC-32 and the content. The CRC covers the place in the file, too: a
message that itself holds a piece of such a file is never taken for a record of it, whatever is damaged around it.

Owns: the format, and what can still be read of a file that was cut off or damaged. Pure: bytes in, bytes out.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple
from zlib import crc32

import msgspec

from twinbus.client.pairing.errors import SpoolFailed

if TYPE_CHECKING:
    from collections.abc import Iterator

BEGINNING: Final = b"TWSPOOL1"
"""Of every file; its last digit is the version of the format."""
_FAMILY: Final = BEGINNING[:-1]
_MARK: Final = b"\xf5REC"
_FRAME: Final = struct.Struct(">4sII")
HEAD_BYTES: Final = _FRAME.size
DONE_BYTES: Final = 12
_PLACE: Final = struct.Struct(">QI")
_DONE: Final = struct.Struct(">QI")


class Record(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """A message, or a batch, as it was to be sent."""

    path: str
    message_format: int
    payload: bytes
    """As it would have gone to the primary."""
    may_have_arrived: bool
    """Some attempt at it had no answer."""
    spooled_at_ms: int
    message_ids: list[str]
    session_ids: list[str]
    """Each once; a batch may have several."""


class Found(NamedTuple):
    """A record, and where it is."""

    offset: int
    size: int
    record: Record


class Damage(NamedTuple):
    """Bytes that are no record."""

    offset: int
    end: int
    is_torn: bool
    """They are the beginning of a last record, of which the rest was never written: nobody was told it is safe."""


_to_msgpack: Final = msgspec.msgpack.Encoder()
_from_msgpack: Final = msgspec.msgpack.Decoder(Record)


def content_of(record: Record) -> bytes:
    """What is framed of it."""
    return _to_msgpack.encode(record)


def framed(content: bytes, offset: int) -> bytes:
    """A frame that stands at `offset` of its file."""
    return _FRAME.pack(_MARK, len(content), _checksum(content, offset)) + content


def frame_size(content: bytes) -> int:
    """How many bytes a frame has."""
    return _FRAME.size + len(content)


def frame_end(head: bytes) -> int:
    """How many bytes the frame has that begins with `head`; 0 if no frame begins so."""
    if len(head) < _FRAME.size:
        return 0
    mark, length, _ = _FRAME.unpack_from(head)
    return _FRAME.size + int(length) if mark == _MARK else 0


def read_frame(data: bytes, at: int, offset: int) -> tuple[Record, int] | None:
    """The record at `at` of `data`, which is `offset` of the file, and where it ends; None if there is none."""
    if len(data) - at < _FRAME.size:
        return None
    mark, length, checksum = _FRAME.unpack_from(data, at)
    start, end = at + _FRAME.size, at + _FRAME.size + length
    if mark != _MARK or end > len(data):
        return None
    content = data[start:end]
    if _checksum(content, offset) != checksum:
        return None
    try:
        return _from_msgpack.decode(content), end
    except msgspec.DecodeError:
        return None


def scan(data: bytes, name: str) -> Iterator[Found | Damage]:
    """All that is in a file, in order. SpoolFailed if a newer version has written it."""
    at = 0
    if data.startswith(BEGINNING):
        at = len(BEGINNING)
    elif data.startswith(_FAMILY) and len(data) >= len(BEGINNING):
        raise SpoolFailed(f"{name} was written by a newer version of twinbus: use that one")
    while at < len(data):
        found = read_frame(data, at, at)
        if found is not None:
            record, end = found
            yield Found(at, end - at, record)
            at = end
            continue
        end = _next_frame(data, at + 1)
        yield Damage(at, end, is_torn=end == len(data) and _is_torn(data, at))
        at = end


def _next_frame(data: bytes, at: int) -> int:
    """Where the next good record is; the end of the data if there is none."""
    while True:
        at = data.find(_MARK, at)
        if at < 0:
            return len(data)
        if read_frame(data, at, at) is not None:
            return at
        at += 1


def _is_torn(data: bytes, at: int) -> bool:
    """Whether the bytes from `at` are a frame, or the beginning of a file, that just ends too early."""
    if at == 0:
        return BEGINNING.startswith(data)
    rest = data[at : at + _FRAME.size]
    if len(rest) < _FRAME.size:
        return _MARK.startswith(rest[: len(_MARK)])
    mark, length, _ = _FRAME.unpack(rest)
    return bool(mark == _MARK) and at + _FRAME.size + length > len(data)


def _checksum(content: bytes, offset: int) -> int:
    return crc32(content, crc32(_PLACE.pack(offset, len(content))))


# --- marks ------------------------------------------------------------------------------------------------------------


def done_mark(offset: int) -> bytes:
    """Says that the record at `offset` has gone."""
    return _DONE.pack(offset, crc32(offset.to_bytes(8, "big")))


def read_done_marks(data: bytes) -> set[int]:
    """The offsets that are marked. What is damaged marks nothing: such a message is sent once more."""
    whole = len(data) - len(data) % _DONE.size
    return {offset for offset, check in _DONE.iter_unpack(data[:whole]) if check == crc32(offset.to_bytes(8, "big"))}
