"""Checks that the engine's output follows the protocol.

Owns: the rules of output: whole frames of the right size, nothing before open or after close, no frame on a channel
that has not begun or on a handle that is not attached. The parser is the fuzzer's own, not the engine's.
"""

from __future__ import annotations

from typing import Final

from tests.fuzz.corpus import FRAME_HEADER, HEADER_SIZE, split_fields, value_end
from tests.fuzz.finding import require

OPEN, BEGIN, ATTACH, FLOW, TRANSFER, DISPOSITION, DETACH, END, CLOSE = range(0x10, 0x19)
HANDLE_FIELD: Final = {ATTACH: 1, FLOW: 4, TRANSFER: 0, DETACH: 0}
NULL: Final = b"\x40"


class OutputChecker:
    """Checker of all output of one connection."""

    def __init__(self) -> None:
        self.size = 0
        self.is_amqp = False
        self.is_open = False
        self.is_closed = False
        self.handles: dict[int, set[int]] = {}
        """Attached handles by channel."""

    def read(self, data: bytes, max_frame_size: int) -> None:
        """Check the next output; `max_frame_size` is the limit of the peer."""
        self.size += len(data)
        at, end = 0, len(data)
        while at < end:
            require(not self.is_closed, "nothing is sent after close")
            if data[at : at + 4] == b"AMQP":
                require(not self.is_open and at + HEADER_SIZE <= end, "a protocol header comes first, and whole")
                self.is_amqp = data[at + 4] == 0
                at += HEADER_SIZE
                continue
            require(end - at >= HEADER_SIZE, "whole frames are sent")
            size, offset, frame_type, channel = FRAME_HEADER.unpack_from(data, at)
            require(HEADER_SIZE <= size <= end - at and offset == 2, "whole frames are sent")
            if self.is_amqp:
                require(frame_type == 0, "AMQP follows its header")
                if size > HEADER_SIZE:
                    require(size <= max_frame_size or data[at + 10] == OPEN, "no frame is larger than the peer takes")
                    self.read_performative(data[at + HEADER_SIZE : at + size], channel)
            else:
                require(frame_type == 1, "SASL follows its header")
                require(value_end(data, at + HEADER_SIZE) == at + size, "a SASL frame holds one performative")
            at += size

    def read_performative(self, body: bytes, channel: int) -> None:
        """Check the body of a frame."""
        require(body[:2] == b"\x00\x53", "descriptors are small numbers, which is all that some clients read")
        code = body[2]
        end = value_end(body, 3)
        require(OPEN <= code <= CLOSE, "a frame holds a performative")
        require(end == len(body) or (code == TRANSFER and end < len(body)), "a performative fills its frame")
        if code == OPEN:
            require(not self.is_open, "open is sent once")
            self.is_open = True
            return
        require(self.is_open, "open is sent first")
        if code == CLOSE:
            self.is_closed = True
        elif code == BEGIN:
            require(channel not in self.handles, "a channel begins once")
            self.handles[channel] = set()
        else:
            require(channel in self.handles, "frames are sent between begin and end")
            if code == END:
                del self.handles[channel]
            elif code in HANDLE_FIELD:
                self.check_handle(code, split_fields(body, 3), self.handles[channel])

    @staticmethod
    def check_handle(code: int, fields: list[bytes], attached: set[int]) -> None:
        field = fields[HANDLE_FIELD[code]]
        if field == NULL:
            require(code == FLOW, "a frame of a link names its handle")
            return
        handle = int.from_bytes(field[1:], "big")
        require((handle in attached) != (code == ATTACH), "a handle is used between attach and detach")
        if code == ATTACH:
            attached.add(handle)
        elif code == DETACH:
            attached.remove(handle)
