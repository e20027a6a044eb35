"""Frames and protocol headers: what stands between the byte stream and a performative.

A frame is 4 bytes of size, 1 of data offset (in words), 1 of type, 2 of channel, an extended header that nobody uses,
a performative, and for a transfer the message's bytes. Owns: this layout. Knows nothing of what a performative does.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from twinbus.amqp.composite import Composite, from_described
from twinbus.amqp.decode import decode_performative
from twinbus.amqp.errors import FRAMING_ERROR, DecodeError, Violation
from twinbus.amqp.types import Described

if TYPE_CHECKING:
    from twinbus.amqp.settings import Limits

AMQP_HEADER: Final = b"AMQP\x00\x01\x00\x00"
SASL_HEADER: Final = b"AMQP\x03\x01\x00\x00"

HEADER_SIZE: Final = 8
FRAME_HEADER: Final = struct.Struct(">IBBH")
DATA_OFFSET: Final = 2
"""In words of 4 bytes: the body of our frames follows the header at once."""
AMQP_FRAME: Final = 0
SASL_FRAME: Final = 1

HEARTBEAT: Final = FRAME_HEADER.pack(HEADER_SIZE, DATA_OFFSET, AMQP_FRAME, 0)


def frame(channel: int, body: bytes, frame_type: int = AMQP_FRAME) -> bytes:
    """A whole frame around an encoded performative."""
    return FRAME_HEADER.pack(HEADER_SIZE + len(body), DATA_OFFSET, frame_type, channel) + body


def read_performative(data: bytes, at: int, end: int, limits: Limits) -> tuple[Composite, int]:
    """The performative of the frame that lies between `at` and `end`, and where it stops."""
    value, stopped = decode_performative(data, at, limits)
    if stopped > end:
        raise DecodeError("a performative runs past the end of its frame")
    found = from_described(value) if isinstance(value, Described) else value
    if not isinstance(found, Composite):
        raise DecodeError(f"a frame that holds {found!r:.60}, not a performative")
    return found, stopped


def bad_frame(size: int, offset: int, frame_type: int, limits: Limits) -> Violation:
    """What is wrong with a frame's header."""
    largest = limits.max_frame_size
    if not HEADER_SIZE <= size <= largest:
        return Violation(FRAMING_ERROR, f"a frame of {size} bytes; frames have {HEADER_SIZE} to {largest}")
    return Violation(FRAMING_ERROR, f"a frame of type {frame_type}, {size} bytes, data offset {offset} words")
