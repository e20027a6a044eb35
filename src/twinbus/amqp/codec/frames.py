"""Frames and protocol headers: the layer between the byte stream and performatives.

A frame has 4 bytes of size, 1 byte of data offset (in words), 1 byte of type, 2 bytes of channel, an extended header
(never used), a performative and, for a transfer, the message's bytes. Owns this layout. Must not know what
performatives do.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from twinbus.amqp.codec.composite import Composite, from_described
from twinbus.amqp.codec.decode import decode_performative
from twinbus.amqp.errors import FRAMING_ERROR, DecodeError, Violation
from twinbus.amqp.types import Described

if TYPE_CHECKING:
    from twinbus.amqp.settings import Limits

AMQP_HEADER: Final = b"AMQP\x00\x01\x00\x00"
SASL_HEADER: Final = b"AMQP\x03\x01\x00\x00"

HEADER_SIZE: Final = 8
FRAME_HEADER: Final = struct.Struct(">IBBH")
DATA_OFFSET: Final = 2
"""Data offset of outgoing frames, in words of 4 bytes: the body follows the frame header directly."""
AMQP_FRAME: Final = 0
SASL_FRAME: Final = 1

HEARTBEAT: Final = FRAME_HEADER.pack(HEADER_SIZE, DATA_OFFSET, AMQP_FRAME, 0)


def frame(channel: int, body: bytes, frame_type: int = AMQP_FRAME) -> bytes:
    """Return a complete frame around the encoded performative `body`."""
    return FRAME_HEADER.pack(HEADER_SIZE + len(body), DATA_OFFSET, frame_type, channel) + body


def read_performative(data: bytes, at: int, end: int, limits: Limits) -> tuple[Composite, int]:
    """Decode the performative of the frame that spans `at` to `end`; return the performative and its end offset."""
    value, performative_end = decode_performative(data, at, limits)
    if performative_end > end:
        raise DecodeError("a performative runs past the end of its frame")
    performative = from_described(value) if isinstance(value, Described) else value
    if not isinstance(performative, Composite):
        raise DecodeError(f"a frame contains {performative!r:.60}, not a performative")
    return performative, performative_end


def bad_frame(size: int, offset: int, frame_type: int, limits: Limits) -> Violation:
    """Return the violation that describes an invalid frame header."""
    largest = limits.max_frame_size
    if not HEADER_SIZE <= size <= largest:
        return Violation(FRAMING_ERROR, f"invalid frame size {size}: a frame has {HEADER_SIZE} to {largest} bytes")
    return Violation(
        FRAMING_ERROR, f"invalid frame header: type {frame_type}, {size} bytes, data offset {offset} words"
    )
