"""The format of a spool's files: message records in frames that make damage detectable.

A frame has a mark, the length of its content, a CRC-32 and the content. The CRC also covers the offset in the file. So
if a message contains part of a spool file, that part is never taken for a record, even if the bytes around it are
damaged.

Owns: the format, and the recovery of records from a truncated or damaged file. All functions are pure: bytes in, bytes
out.
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
"""The header of every file; its last digit is the version of the format."""
_FORMAT_PREFIX: Final = FILE_HEADER[:-1]
_FRAME_MARK: Final = b"\xf5REC"
_FRAME: Final = struct.Struct(">4sII")
FRAME_HEAD_BYTES: Final = _FRAME.size
DONE_MARK_BYTES: Final = 12
_OFFSET_AND_LENGTH: Final = struct.Struct(">QI")
_DONE_MARK: Final = struct.Struct(">QI")


class SpoolRecord(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """A spooled message or batch."""

    path: str
    message_format: int
    payload: bytes
    """The bytes to send to the primary."""
    may_have_arrived: bool
    """Whether an attempt to send the message got no response."""
    spooled_at_ms: int
    message_ids: list[str]
    session_ids: list[str]
    """The distinct session ids; a batch may have several."""


class FoundRecord(NamedTuple):
    """A record and its offset and size in the file."""

    offset: int
    size: int
    record: SpoolRecord


class DamagedBytes(NamedTuple):
    """Bytes that are not a valid record."""

    offset: int
    end: int
    is_torn: bool
    """Whether the bytes are the start of a last record that was never written completely, and so never confirmed."""


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(SpoolRecord)


def encode_record(record: SpoolRecord) -> bytes:
    """Encode a record as the content of a frame."""
    return _encoder.encode(record)


def encode_frame(content: bytes, offset: int) -> bytes:
    """Encode a frame that is written at `offset` of its file."""
    return _FRAME.pack(_FRAME_MARK, len(content), _checksum(content, offset)) + content


def frame_size(content: bytes) -> int:
    """Return the size of a frame with this content."""
    return _FRAME.size + len(content)


def frame_size_of_head(head: bytes) -> int:
    """Return the size of the frame that starts with `head`; 0 if `head` is not the start of a frame."""
    if len(head) < _FRAME.size:
        return 0
    mark, length, _ = _FRAME.unpack_from(head)
    return _FRAME.size + int(length) if mark == _FRAME_MARK else 0


def read_frame(data: bytes, at: int, offset: int) -> tuple[SpoolRecord, int] | None:
    """Read the record at index `at` of `data`.

    Return the record and its end, or None if there is no valid record. `offset` is the offset of the record in the
    file.
    """
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
    """Yield all records and damaged parts of a file, in order. Raise SpoolFailed for a newer version."""
    at = 0
    if data.startswith(FILE_HEADER):
        at = len(FILE_HEADER)
    elif data.startswith(_FORMAT_PREFIX) and len(data) >= len(FILE_HEADER):
        raise SpoolFailed(f"{name} was written by a newer version of twinbus: use that version")
    while at < len(data):
        frame = read_frame(data, at, at)
        if frame is not None:
            record, end = frame
            yield FoundRecord(at, end - at, record)
            at = end
            continue
        end = _next_frame(data, at + 1)
        yield DamagedBytes(at, end, is_torn=end == len(data) and _is_torn(data, at))
        at = end


def _next_frame(data: bytes, at: int) -> int:
    """Return the position of the next valid record; the end of the data if there is none."""
    while True:
        at = data.find(_FRAME_MARK, at)
        if at < 0:
            return len(data)
        if read_frame(data, at, at) is not None:
            return at
        at += 1


def _is_torn(data: bytes, at: int) -> bool:
    """Return whether the bytes from `at` are a frame, or a file header, that was cut off at the end of the file."""
    if at == 0:
        return FILE_HEADER.startswith(data)
    head = data[at : at + _FRAME.size]
    if len(head) < _FRAME.size:
        return _FRAME_MARK.startswith(head[: len(_FRAME_MARK)])
    mark, length, _ = _FRAME.unpack(head)
    return bool(mark == _FRAME_MARK) and at + _FRAME.size + length > len(data)


def _checksum(content: bytes, offset: int) -> int:
    return crc32(content, crc32(_OFFSET_AND_LENGTH.pack(offset, len(content))))


# --- done marks -------------------------------------------------------------------------------------------------------


def encode_done_mark(offset: int) -> bytes:
    """Return the encoded mark that records the removal of the record at `offset`."""
    return _DONE_MARK.pack(offset, crc32(offset.to_bytes(8, "big")))


def read_done_marks(data: bytes) -> set[int]:
    """Return the marked offsets. A damaged mark is ignored, so that its message is sent once more."""
    whole = len(data) - len(data) % _DONE_MARK.size
    return {
        offset for offset, check in _DONE_MARK.iter_unpack(data[:whole]) if check == crc32(offset.to_bytes(8, "big"))
    }
