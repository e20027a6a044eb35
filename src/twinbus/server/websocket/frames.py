"""WebSocket frames (RFC 6455, section 5): bytes in, payload out, without sockets.

AMQP needs a stream, so the payload of a data frame is passed on as it arrives, even if the frame is incomplete: only
the header of a frame, or one control frame, is buffered. `websockets` buffers a frame until it is complete, so every
unauthenticated client could make the server buffer a frame of the maximum size. wsproto also passes on incomplete
frames, but costs more. CPU time per masked frame, in reads of 64 KB (medians of 9 alternating rounds, CPython 3.11):

    payload     10 B       1 KB      64 KB    ping
    here      0.9 µs     2.9 µs      82 µs    1.5 µs
    wsproto   6.3 µs     8.4 µs      94 µs    5.5 µs

The version is wsproto 1.3.2. It adds 5.5 µs to a small frame, about 1.4 % of the 400 µs that a server needs for a
message of 1 KB that the Azure SDK sends alone. End to end, on a busy machine, the difference was within the noise. The
difference matters for bursts of tiny frames: 512 tiny frames (`socket.MAX_FRAMES_PER_SLICE`) would take 3 ms instead of
0.5 ms.

A read can contain tens of thousands of frames without payload. `receive` therefore handles a limited number of frames
per call and buffers the remaining input, so that the socket can check the clock in between.

Owns: framing, masking, and the limits on what a client may send. The socket sends pongs and closes.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import Final

MAX_FRAME_BYTES: Final = 16_777_216
MAX_MESSAGE_BYTES: Final = 67_108_864
"""The maximum size of a message, to refuse clients that evidently do not send AMQP. Messages are not buffered."""
MAX_CONTROL_BYTES: Final = 125
MAX_FRAMES_WITHOUT_DATA: Final = 4_096
"""The maximum number of consecutive control frames and empty data frames; clients usually send only a few."""

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
"""The size from which unmasking every fourth byte with a table is faster than one XOR of big integers."""
_EVERY_BYTE: Final = int.from_bytes(range(256))
_XOR_TABLES: Final = tuple((_EVERY_BYTE ^ int.from_bytes([key] * 256)).to_bytes(256) for key in range(256))


class Opcode(IntEnum):
    """The type of a frame."""

    CONTINUATION = 0
    TEXT = 1
    BINARY = 2
    CLOSE = 8
    PING = 9
    PONG = 10


class CloseCode(IntEnum):
    """The reason for closing a connection."""

    NORMAL = 1000
    GOING_AWAY = 1001
    PROTOCOL_ERROR = 1002
    UNSUPPORTED_DATA = 1003
    NO_STATUS = 1005
    """The code for a close frame without a code; never sent."""
    INVALID_DATA = 1007
    POLICY_VIOLATION = 1008
    TOO_LARGE = 1009


_SENDABLE_CODES: Final = frozenset((*range(1000, 1004), *range(1007, 1015), *range(3000, 5000)))
_WHOLE_MESSAGE: Final = _FIN | int(Opcode.BINARY)
_KNOWN_OPCODES: Final = frozenset(int(opcode) for opcode in Opcode)


class ProtocolViolation(Exception):
    """A violation of the protocol by the client; the connection is closed with `code`."""

    def __init__(self, code: CloseCode, reason: str) -> None:
        """Create an error; `reason` is sent to the client."""
        super().__init__(reason)
        self.code = code
        self.reason = reason


class FrameReader:
    """The parser for the frames that one client sends."""

    def __init__(self) -> None:
        """Create a parser without input."""
        self.ping: bytes | None = None
        """The payload of the last ping, or None. The caller sends one pong for several pings, and resets `ping`."""
        self.close_code: int | None = None
        """The code of the client's close frame, or None. Input after the close frame is ignored."""
        self.has_pending_input = False
        """Whether the last call stopped at its limit. Call `receive` with b"" to handle more of the input."""
        self._pending = b""
        """An incomplete header or control frame; if `has_pending_input` is True, all unhandled input."""
        self._payload_left = 0
        """Bytes of the current data frame that have not arrived yet."""
        self._mask = b""
        self._is_within_message = False
        self._message_bytes = 0
        self._frames_without_data = 0

    def append_pending(self, data: bytes) -> None:
        """Append data to the pending input."""
        self._pending += data

    def receive(self, data: bytes, max_frames: int | None = None) -> bytes:
        """Return the payload of the data frames in the input, in order. Raise ProtocolViolation.

        After `max_frames` frames, the remaining input is buffered and `has_pending_input` is True.
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
                shift = len(piece) % _MASK_BYTES
                self._mask = self._mask[shift:] + self._mask[:shift]
        if pieces:
            self._frames_without_data = 0
        return b"".join(pieces)

    def _read_whole_message(self, data: bytes, at: int, end: int, pieces: list[bytes | bytearray]) -> int:
        """Parse a complete message in one frame of 1 byte to 64 KB, the usual case; return the end position, or 0."""
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
        """Parse a frame's header, or a whole control frame; return where to continue, or 0 if more input is needed."""
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
        """Return the size of a frame's payload and the position of its mask; both are 0 if the header is incomplete."""
        available = len(data) - at
        if available < _MIN_HEADER_BYTES:
            return 0, 0
        self._check_header(data[at], data[at + 1])
        size, mask_at = data[at + 1] & _LENGTH, at + _MIN_HEADER_BYTES
        if size < _LENGTH_16_BIT:
            return size, mask_at
        layout, least = (_SHORT, _LENGTH_16_BIT) if size == _LENGTH_16_BIT else (_LONG, _MAX_SHORT_LENGTH + 1)
        if available < _MIN_HEADER_BYTES + layout.size:
            return 0, 0
        size = layout.unpack_from(data, mask_at)[0]
        if size < least:
            raise _protocol_error(f"the length {size} is not encoded in the fewest bytes")
        return size, mask_at + layout.size

    def _check_header(self, first: int, second: int) -> None:
        opcode = first & _OPCODE
        if first & _RESERVED or opcode not in _KNOWN_OPCODES:
            raise _protocol_error(f"a frame begins with {first:#04x}, but no extension was negotiated")
        if not second & _IS_MASKED:
            raise _protocol_error("a frame is not masked")
        if opcode & _IS_CONTROL:
            if not first & _FIN or second & _LENGTH > MAX_CONTROL_BYTES:
                raise _protocol_error("a control frame is fragmented or has more than 125 bytes")
        elif opcode == Opcode.TEXT:
            raise ProtocolViolation(CloseCode.UNSUPPORTED_DATA, "a text frame was received: AMQP needs binary frames")
        elif (opcode == Opcode.CONTINUATION) != self._is_within_message:
            raise _protocol_error("a frame continues no message, or begins a message within another")

    def _check_size(self, size: int, *, is_first: bool) -> None:
        if is_first:
            self._message_bytes = 0
        if size > MAX_FRAME_BYTES or self._message_bytes + size > MAX_MESSAGE_BYTES:
            limits = f"limit: {MAX_FRAME_BYTES}, for a message {MAX_MESSAGE_BYTES}"
            raise ProtocolViolation(CloseCode.TOO_LARGE, f"a frame has {size} bytes ({limits})")
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
    """Return the data with the mask applied. The function both masks and unmasks."""
    size = len(data)
    if size < _COLUMN_UNMASK_MIN_BYTES:
        keys = (mask * (size // _MASK_BYTES + 1))[:size]
        return (int.from_bytes(data, "big") ^ int.from_bytes(keys, "big")).to_bytes(size, "big")
    columns = bytearray(data)
    for column, key in enumerate(mask):
        columns[column::_MASK_BYTES] = columns[column::_MASK_BYTES].translate(_XOR_TABLES[key])
    return columns


def frame_header(opcode: Opcode, size: int) -> bytes:
    """Return the header of a complete, unmasked frame with a payload of `size` bytes."""
    if size < _LENGTH_16_BIT:
        return bytes((_FIN | opcode, size))
    if size <= _MAX_SHORT_LENGTH:
        return _SHORT_HEADER.pack(_FIN | opcode, _LENGTH_16_BIT, size)
    return _LONG_HEADER.pack(_FIN | opcode, _LENGTH_64_BIT, size)


def close_frame(code: int, reason: str = "") -> bytes:
    """Return a close frame from the server."""
    if code == CloseCode.NO_STATUS:
        return frame_header(Opcode.CLOSE, 0)
    payload = _SHORT.pack(code) + reason.encode("ascii", "replace")[: MAX_CONTROL_BYTES - _SHORT.size]
    return frame_header(Opcode.CLOSE, len(payload)) + payload


def _parse_close(payload: bytes) -> int:
    if not payload:
        return CloseCode.NO_STATUS
    code: int = _SHORT.unpack_from(payload)[0] if len(payload) >= _SHORT.size else 0
    if code not in _SENDABLE_CODES:
        raise _protocol_error("a close frame has an invalid code")
    try:
        payload[_SHORT.size :].decode()
    except UnicodeDecodeError:
        raise ProtocolViolation(CloseCode.INVALID_DATA, "the reason in a close frame is not UTF-8") from None
    return code


def _protocol_error(reason: str) -> ProtocolViolation:
    return ProtocolViolation(CloseCode.PROTOCOL_ERROR, reason)
