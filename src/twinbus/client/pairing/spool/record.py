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

FILE_HEADER: Final = b"TWSPOOL1"
"""Of every file; its last digit is the version of the format."""
_FORMAT_PREFIX: Final = FILE_HEADER[:-1]
_FRAME_MARK: Final = b"\xf5REC"
_FRAME: Final = struct.Struct(">4sII")
FRAME_HEAD_BYTES: Final = _FRAME.size
DONE_MARK_BYTES: Final = 12
_OFFSET_AND_LENGTH: Final = struct.Struct(">QI")
_DONE_MARK: Final = struct.Struct(">QI")


class SpoolRecord(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
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


class FoundRecord(NamedTuple):
    """A record, and where it is."""

    offset: int
    size: int
    record: SpoolRecord


class DamagedBytes(NamedTuple):
    """Bytes that are no record."""

    offset: int
    end: int
    is_torn: bool
    """They are the beginning of a last record, of which the rest was never written: nobody was told it is safe."""


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(SpoolRecord)


def encode_record(record: SpoolRecord) -> bytes:
    """What is framed of it."""
    return _encoder.encode(record)


def encode_frame(content: bytes, offset: int) -> bytes:
    """A frame that stands at `offset` of its file."""
    return _FRAME.pack(_FRAME_MARK, len(content), _checksum(content, offset)) + content


def frame_size(content: bytes) -> int:
    """How many bytes a frame has."""
    return _FRAME.size + len(content)


def frame_size_of_head(head: bytes) -> int:
    """How many bytes the frame has that begins with `head`; 0 if no frame begins so."""
    if len(head) < _FRAME.size:
        return 0
    mark, length, _ = _FRAME.unpack_from(head)
    return _FRAME.size + int(length) if mark == _FRAME_MARK else 0


def read_frame(data: bytes, at: int, offset: int) -> tuple[SpoolRecord, int] | None:
    """The record at `at` of `data`, which is `offset` of the file, and where it ends; None if there is none."""
    if len(data) - at < _FRAME.size:
        return None
    mark, length, checksum = _FRAME.unpack_from(data, at)
    start, end = at + _FRAME.size, at + _FRAME.size + length
    if mark != _FRAME_MARK or end > len(data):
        return None
    content = data[start:end]
    if _checksum(content, offset) != checksum:
        return None
    try:
        return _decoder.decode(content), end
    except msgspec.DecodeError:
        return None


def scan(data: bytes, name: str) -> Iterator[FoundRecord | DamagedBytes]:
    """All that is in a file, in order. SpoolFailed if a newer version has written it."""
    at = 0
    if data.startswith(FILE_HEADER):
        at = len(FILE_HEADER)
    elif data.startswith(_FORMAT_PREFIX) and len(data) >= len(FILE_HEADER):
        raise SpoolFailed(f"{name} was written by a newer version of twinbus: use that one")
    while at < len(data):
        found = read_frame(data, at, at)
        if found is not None:
            record, end = found
            yield FoundRecord(at, end - at, record)
            at = end
            continue
        end = _next_frame(data, at + 1)
        yield DamagedBytes(at, end, is_torn=end == len(data) and _is_torn(data, at))
        at = end


def _next_frame(data: bytes, at: int) -> int:
    """Where the next good record is; the end of the data if there is none."""
    while True:
        at = data.find(_FRAME_MARK, at)
        if at < 0:
            return len(data)
        if read_frame(data, at, at) is not None:
            return at
        at += 1


def _is_torn(data: bytes, at: int) -> bool:
    """Whether the bytes from `at` are a frame, or the beginning of a file, that just ends too early."""
    if at == 0:
        return FILE_HEADER.startswith(data)
    rest = data[at : at + _FRAME.size]
    if len(rest) < _FRAME.size:
        return _FRAME_MARK.startswith(rest[: len(_FRAME_MARK)])
    mark, length, _ = _FRAME.unpack(rest)
    return bool(mark == _FRAME_MARK) and at + _FRAME.size + length > len(data)


def _checksum(content: bytes, offset: int) -> int:
    return crc32(content, crc32(_OFFSET_AND_LENGTH.pack(offset, len(content))))


# --- marks ------------------------------------------------------------------------------------------------------------


def encode_done_mark(offset: int) -> bytes:
    """Says that the record at `offset` has gone."""
    return _DONE_MARK.pack(offset, crc32(offset.to_bytes(8, "big")))


def read_done_marks(data: bytes) -> set[int]:
    """The offsets that are marked. What is damaged marks nothing: such a message is sent once more."""
    whole = len(data) - len(data) % _DONE_MARK.size
    return {
        offset for offset, check in _DONE_MARK.iter_unpack(data[:whole]) if check == crc32(offset.to_bytes(8, "big"))
    }
