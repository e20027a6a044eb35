"""Recorded conversations: the bytes of one end, parsed into frames and fields.

Owns: the files of the corpus and the parsed form that mutations work on. The parser is the fuzzer's own, so that a
fault in the engine's decoder cannot hide itself.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent / "corpus"

HEADER_SIZE: Final = 8
FRAME_HEADER: Final = struct.Struct(">IBBH")
SASL_HEADER: Final = b"AMQP\x03\x01\x00\x00"

BEGIN: Final = 0x11
ATTACH: Final = 0x12
TRANSFER: Final = 0x14

_WIDTHS: Final = {0x4: 0, 0x5: 1, 0x6: 2, 0x7: 4, 0x8: 8, 0x9: 16}


def value_end(data: bytes, at: int) -> int:
    """Return the end offset of the well-formed value at `at`."""
    if data[at] == 0:
        return value_end(data, value_end(data, at + 1))
    category = data[at] >> 4
    if category in _WIDTHS:
        return at + 1 + _WIDTHS[category]
    if category in {0xA, 0xC, 0xE}:
        return at + 2 + data[at + 1]
    return at + 5 + int.from_bytes(data[at + 1 : at + 5], "big")


def split_fields(data: bytes, at: int) -> list[bytes]:
    """Return the encoded elements of the list at `at`."""
    code = data[at]
    if code == 0x45:
        return []
    count, at = (data[at + 2], at + 3) if code == 0xC0 else (int.from_bytes(data[at + 5 : at + 9], "big"), at + 9)
    fields = []
    for _ in range(count):
        end = value_end(data, at)
        fields.append(data[at:end])
        at = end
    return fields


@dataclass(slots=True)
class Frame:
    """A parsed frame that can be changed and encoded again."""

    frame_type: int
    channel: int
    descriptor: bytes
    """Encoded descriptor with the leading zero; empty for a frame without a body."""
    fields: list[bytes]
    payload: bytes
    code: int
    """Numeric descriptor."""
    recorded: bytes
    """Bytes of the frame as recorded."""

    def encode(self) -> bytes:
        """Encode the frame with correct sizes and counts."""
        body = b""
        if self.descriptor:
            inside = b"".join(self.fields)
            if len(inside) < 255 and len(self.fields) <= 255:
                body = self.descriptor + bytes((0xC0, len(inside) + 1, len(self.fields))) + inside
            else:
                body = self.descriptor + struct.pack(">BII", 0xD0, len(inside) + 4, len(self.fields)) + inside
        body += self.payload
        return FRAME_HEADER.pack(HEADER_SIZE + len(body), 2, self.frame_type, self.channel) + body

    def copy(self) -> Frame:
        """Return a copy whose fields can be changed."""
        return Frame(
            self.frame_type, self.channel, self.descriptor, self.fields[:], self.payload, self.code, self.recorded
        )


def read_frame(data: bytes) -> Frame:
    """Parse a well-formed recorded frame."""
    _, offset, frame_type, channel = FRAME_HEADER.unpack_from(data)
    at = offset * 4
    if at == len(data):
        return Frame(frame_type, channel, b"", [], b"", 0, data)
    list_at = value_end(data, at + 1)
    end = value_end(data, list_at)
    return Frame(
        frame_type, channel, data[at:list_at], split_fields(data, list_at), data[end:], data[list_at - 1], data
    )


@dataclass(frozen=True, slots=True)
class LinkName:
    """A link that an end of a conversation attached."""

    name: str
    is_receiver: bool
    """Role of the end that attached the link."""
    channel: int


@dataclass(frozen=True, slots=True)
class Conversation:
    """What one end of a recorded connection sent."""

    name: str
    from_client: bool
    frames: tuple[bytes | Frame, ...]
    """Protocol headers and frames."""
    links: tuple[LinkName, ...]
    body: int
    """Index of the first part after the first begin."""
    opening: int
    """Number of bytes before the first begin."""

    @property
    def has_sasl(self) -> bool:
        """Return whether the conversation starts with the SASL layer."""
        return self.frames[0] == SASL_HEADER

    def __repr__(self) -> str:
        return f"<Conversation {self.name}, {len(self.frames)} parts>"


def parse_conversation(name: str, data: bytes, *, from_client: bool) -> Conversation:
    """Parse a recording into headers and frames."""
    parts: list[bytes | Frame] = []
    at = 0
    while at < len(data):
        if data[at : at + 4] == b"AMQP":
            parts.append(data[at : at + HEADER_SIZE])
            at += HEADER_SIZE
        else:
            size = int.from_bytes(data[at : at + 4], "big")
            parts.append(read_frame(data[at : at + size]))
            at += size
    begins = [index for index, part in enumerate(parts) if isinstance(part, Frame) and part.code == BEGIN]
    first = min(begins, default=len(parts) - 2)
    opening = sum(len(part if isinstance(part, bytes) else part.recorded) for part in parts[:first])
    return Conversation(name, from_client, tuple(parts), tuple(_links_of(parts)), first + 1, opening)


def _links_of(parts: list[bytes | Frame]) -> list[LinkName]:
    links = []
    for part in parts:
        if isinstance(part, Frame) and part.code == ATTACH and part.frame_type == 0:
            name, role = part.fields[0], part.fields[2]
            text = name[2:] if name[0] == 0xA1 else name[5:]
            links.append(LinkName(text.decode(), role in {b"\x41", b"\x56\x01"}, part.channel))
    return links


@cache
def conversations() -> tuple[Conversation, ...]:
    """Return all recordings, always in the same order."""
    return tuple(
        parse_conversation(
            path.name.removesuffix(".bin"), path.read_bytes(), from_client=path.name.endswith(".client.bin")
        )
        for path in sorted(FOLDER.glob("*.bin"))
    )


@cache
def messages() -> tuple[bytes, ...]:
    """Return the messages of the recordings that fit in one frame."""
    payloads = {
        part.payload
        for conversation in conversations()
        for part in conversation.frames
        if isinstance(part, Frame) and part.code == TRANSFER and _is_message(part.payload)
    }
    return tuple(sorted(payloads))


def _is_message(payload: bytes) -> bool:
    at = 0
    while payload[at : at + 2] == b"\x00\x53":
        at = value_end(payload, at)
    return at == len(payload) > 0


def write(name: str, sent_by_client: bytes | bytearray, sent_by_server: bytes | bytearray) -> None:
    """Write a conversation to the corpus."""
    FOLDER.mkdir(exist_ok=True)
    for end, data in (("client", bytes(sent_by_client)), ("server", bytes(sent_by_server))):
        if data:
            parse_conversation(
                name, data, from_client=end == "client"
            )  # a conversation that cannot be parsed is useless
            (FOLDER / f"{name}.{end}.bin").write_bytes(data)
