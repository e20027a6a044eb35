"""WebSocket frames (RFC 6455, part 5): bytes in, payload out. No sockets.

AMQP needs a stream, so the payload of a data frame is passed on as it arrives, also of an incomplete frame: only the
head of a frame, or one control frame, is kept. `websockets` keeps a frame until it is complete, so that each
unauthenticated client could make the server hold the largest one. wsproto passes on incomplete frames as well, but
costs more. Processor time per masked frame, in reads of 64 KB (medians of 9 alternating rounds, CPython 3.11):

    payload     10 B       1 KB      64 KB    ping
    here      0.9 µs     2.9 µs      82 µs    1.5 µs
    wsproto   6.3 µs     8.4 µs      94 µs    5.5 µs

That is wsproto 1.3.2. The 5.5 µs that it adds to a small frame are some 1.4 % of the 400 µs that a server needs for a
message of 1 KB that the Azure SDK sends alone; end to end, on a machine with other work, the difference was within the
noise. It counts for bursts of tiny frames: 512 of them (`socket.PIECE_FRAMES`) would take 3 ms instead of 0.5.

A read can hold tens of thousands of frames without payload. `receive` therefore handles a limited number of frames per
call and holds the rest, so that the socket can look at the clock in between.

Owns: framing, masking, and the limits on what a client may send. Answers are sent by the socket.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import Final

MAX_FRAME_BYTES: Final = 16_777_216
MAX_MESSAGE_BYTES: Final = 67_108_864
"""Nothing of it is kept; but who says that more will come means something else than AMQP."""
MAX_CONTROL_BYTES: Final = 125
MAX_FRAMES_WITHOUT_DATA: Final = 4_096
"""Control frames and empty data frames in a row. Clients send a few pings between two AMQP heartbeats."""

_FIN: Final = 0x80
_RESERVED: Final = 0x70
_OPCODE: Final = 0x0F
_IS_CONTROL: Final = 0x08
_IS_MASKED: Final = 0x80
_LENGTH: Final = 0x7F
_LENGTH_16_BIT: Final = 126
_LENGTH_64_BIT: Final = 127
_MAX_SHORT_LENGTH: Final = 0xFFFF
_SHORT: Final = Struct(">H")
_LONG: Final = Struct(">Q")
_SHORT_HEADER: Final = Struct(">BBH")
_LONG_HEADER: Final = Struct(">BBQ")
_MIN_HEADER_BYTES: Final = 2
_MASK_BYTES: Final = 4
_COLUMN_UNMASK_MIN_BYTES: Final = 400
"""Bytes from which it is faster to unmask every fourth of them with a table than all as one number."""
_EVERY_BYTE: Final = int.from_bytes(range(256))
_XOR_TABLES: Final = tuple((_EVERY_BYTE ^ int.from_bytes([key] * 256)).to_bytes(256) for key in range(256))


class Opcode(IntEnum):
    """What a frame is."""

    CONTINUATION = 0
    TEXT = 1
    BINARY = 2
    CLOSE = 8
    PING = 9
    PONG = 10


class CloseCode(IntEnum):
    """Why a connection ends."""

    NORMAL = 1000
    GOING_AWAY = 1001
    PROTOCOL_ERROR = 1002
    UNSUPPORTED_DATA = 1003
    NO_STATUS = 1005
    """Never sent: a close that says nothing."""
    INVALID_DATA = 1007
    POLICY_VIOLATION = 1008
    TOO_LARGE = 1009


_SENDABLE_CODES: Final = frozenset((*range(1000, 1004), *range(1007, 1015), *range(3000, 5000)))
_WHOLE_MESSAGE: Final = _FIN | int(Opcode.BINARY)
_KNOWN_OPCODES: Final = frozenset(int(opcode) for opcode in Opcode)


class ProtocolViolation(Exception):
    """The client broke a rule: the connection is closed with this code."""

    def __init__(self, code: CloseCode, reason: str) -> None:
        """`reason` is told to the client."""
        super().__init__(reason)
        self.code = code
        self.reason = reason


class FrameReader:
    """What one client sends."""

    def __init__(self) -> None:
        """Nothing has come yet."""
        self.ping: bytes | None = None
        """What the last ping said; whoever answers it sets this to None. Those before it need no answer."""
        self.close_code: int | None = None
        """The client has closed; what comes after it is not read."""
        self.has_pending_input = False
        """The last call stopped at its limit: call `receive` with b"" to handle more of the input."""
        self._pending = b""
        """The beginning of a frame, up to the payload of a data frame; with `has_held_input`, all input not handled."""
        self._payload_left = 0
        """Bytes still to come of a data frame."""
        self._mask = b""
        self._is_within_message = False
        self._message_bytes = 0
        self._frames_without_data = 0

    def append_pending(self, data: bytes) -> None:
        """Append input to the input that is held."""
        self._pending += data

    def receive(self, data: bytes, max_frames: int | None = None) -> bytes:
        """Return the payload of the data frames in the input, in order. Violation.

        After `max_frames` frames the rest of the input is held, and `has_held_input` is True.
        """
        if self._pending:
            data, self._pending = self._pending + data, b""
        self.has_pending_input = False
        pieces: list[bytes | bytearray] = []
        at, end = 0, len(data)
        allowed = end if max_frames is None else max_frames  # a frame has at least one byte
        while at < end and self.close_code is None:
            if not allowed:
                self._pending, self.has_pending_input = data[at:], True
                break
            allowed -= 1
            if not self._payload_left:
                if data[at] == _WHOLE_MESSAGE and (stop := self._read_whole_message(data, at, end, pieces)):
                    at = stop
                    continue
                payload_at = self._begin_frame(data, at)
                if not payload_at:
                    self._pending = data[at:]
                    break
                at = payload_at
            if self._payload_left:
                piece = data[at : at + self._payload_left]
                pieces.append(unmask(piece, self._mask))
                at += len(piece)
                self._payload_left -= len(piece)
                turn = len(piece) % _MASK_BYTES
                self._mask = self._mask[turn:] + self._mask[:turn]
        if pieces:
            self._frames_without_data = 0
        return b"".join(pieces)

    def _read_whole_message(self, data: bytes, at: int, end: int, pieces: list[bytes | bytearray]) -> int:
        """Take a complete message of one frame with 1 byte to 64 KB, as nearly all are: where it ends, or 0."""
        mask_at = at + _MIN_HEADER_BYTES
        if self._is_within_message or end - mask_at < _SHORT.size + _MASK_BYTES or data[at + 1] < _IS_MASKED:
            return 0
        size = data[at + 1] - _IS_MASKED
        if size == _LENGTH_16_BIT:
            size = data[mask_at] << 8 | data[mask_at + 1]
            mask_at += _SHORT.size
            if size < _LENGTH_16_BIT:
                return 0
        start = mask_at + _MASK_BYTES
        stop = start + size
        if size == _LENGTH_64_BIT or stop > end or not size:
            return 0
        pieces.append(unmask(data[start:stop], data[mask_at:start]))
        return stop

    def _begin_frame(self, data: bytes, at: int) -> int:
        """Read the head of a frame, and all of a control frame: where to read on, or 0 where more has to come."""
        size, mask_at = self._read_size(data, at)
        payload_at = mask_at + _MASK_BYTES
        if not mask_at or len(data) < payload_at:
            return 0
        first, mask = data[at], data[mask_at:payload_at]
        if first & _IS_CONTROL:
            if len(data) < payload_at + size:
                return 0
            self._count_without_data()
            self._handle_control(first & _OPCODE, bytes(unmask(data[payload_at : payload_at + size], mask)))
            return payload_at + size
        if not size:
            self._count_without_data()
        self._check_size(size, is_first=first & _OPCODE != Opcode.CONTINUATION)
        self._is_within_message = not first & _FIN
        self._payload_left, self._mask = size, mask
        return payload_at

    def _read_size(self, data: bytes, at: int) -> tuple[int, int]:
        """Bytes of a frame's payload, and where its mask begins: 0 where more has to come."""
        there = len(data) - at
        if there < _MIN_HEADER_BYTES:
            return 0, 0
        self._check_header(data[at], data[at + 1])
        size, mask_at = data[at + 1] & _LENGTH, at + _MIN_HEADER_BYTES
        if size < _LENGTH_16_BIT:
            return size, mask_at
        layout, least = (_SHORT, _LENGTH_16_BIT) if size == _LENGTH_16_BIT else (_LONG, _MAX_SHORT_LENGTH + 1)
        if there < _MIN_HEADER_BYTES + layout.size:
            return 0, 0
        size = layout.unpack_from(data, mask_at)[0]
        if size < least:
            raise _protocol_error(f"a length of {size} is written shorter")
        return size, mask_at + layout.size

    def _check_header(self, first: int, second: int) -> None:
        opcode = first & _OPCODE
        if first & _RESERVED or opcode not in _KNOWN_OPCODES:
            raise _protocol_error(f"a frame that begins with {first:#04x}: no extension was agreed on")
        if not second & _IS_MASKED:
            raise _protocol_error("a frame that is not masked")
        if opcode & _IS_CONTROL:
            if not first & _FIN or second & _LENGTH > MAX_CONTROL_BYTES:
                raise _protocol_error("a control frame is one frame, of up to 125 bytes")
        elif opcode == Opcode.TEXT:
            raise ProtocolViolation(CloseCode.UNSUPPORTED_DATA, "AMQP is binary: a text frame is none of it")
        elif (opcode == Opcode.CONTINUATION) != self._is_within_message:
            raise _protocol_error("a frame that goes on with no message, or begins one within another")

    def _check_size(self, size: int, *, is_first: bool) -> None:
        if is_first:
            self._message_bytes = 0
        if size > MAX_FRAME_BYTES or self._message_bytes + size > MAX_MESSAGE_BYTES:
            limits = f"it can have {MAX_FRAME_BYTES}, and a message {MAX_MESSAGE_BYTES}"
            raise ProtocolViolation(CloseCode.TOO_LARGE, f"a frame of {size} bytes: {limits}")
        self._message_bytes += size

    def _count_without_data(self) -> None:
        self._frames_without_data += 1
        if self._frames_without_data > MAX_FRAMES_WITHOUT_DATA:
            reason = f"more than {MAX_FRAMES_WITHOUT_DATA} control frames or empty frames in a row: send fewer pings"
            raise ProtocolViolation(CloseCode.POLICY_VIOLATION, reason)

    def _handle_control(self, opcode: int, payload: bytes) -> None:
        if opcode == Opcode.PING:
            self.ping = payload
        elif opcode == Opcode.CLOSE:
            self.close_code = _parse_close(payload)


def unmask(data: bytes, mask: bytes) -> bytes | bytearray:
    """What a client meant; or, the same way round, as it sends it."""
    size = len(data)
    if size < _COLUMN_UNMASK_MIN_BYTES:
        keys = (mask * (size // _MASK_BYTES + 1))[:size]
        return (int.from_bytes(data, "big") ^ int.from_bytes(keys, "big")).to_bytes(size, "big")
    columns = bytearray(data)
    for column, key in enumerate(mask):
        columns[column::_MASK_BYTES] = columns[column::_MASK_BYTES].translate(_XOR_TABLES[key])
    return columns


def frame_header(opcode: Opcode, size: int) -> bytes:
    """What stands in front of a payload that a server sends in one frame."""
    if size < _LENGTH_16_BIT:
        return bytes((_FIN | opcode, size))
    if size <= _MAX_SHORT_LENGTH:
        return _SHORT_HEADER.pack(_FIN | opcode, _LENGTH_16_BIT, size)
    return _LONG_HEADER.pack(_FIN | opcode, _LENGTH_64_BIT, size)


def close_frame(code: int, reason: str = "") -> bytes:
    """The last frame, as a server sends it."""
    if code == CloseCode.NO_STATUS:
        return frame_header(Opcode.CLOSE, 0)
    payload = _SHORT.pack(code) + reason.encode("ascii", "replace")[: MAX_CONTROL_BYTES - _SHORT.size]
    return frame_header(Opcode.CLOSE, len(payload)) + payload


def _parse_close(payload: bytes) -> int:
    if not payload:
        return CloseCode.NO_STATUS
    code: int = _SHORT.unpack_from(payload)[0] if len(payload) >= _SHORT.size else 0
    if code not in _SENDABLE_CODES:
        raise _protocol_error("a close without a code that can be sent")
    try:
        payload[_SHORT.size :].decode()
    except UnicodeDecodeError:
        raise ProtocolViolation(CloseCode.INVALID_DATA, "the reason of a close is UTF-8") from None
    return code


def _protocol_error(reason: str) -> ProtocolViolation:
    return ProtocolViolation(CloseCode.PROTOCOL_ERROR, reason)
