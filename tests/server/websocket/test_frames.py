"""Frames follow RFC 6455; a violation closes the connection with the right code, and no other connection."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.server.websocket.raw_websocket import SASL_HEADER, RawWebSocket, frame
from twinbus.server.websocket import frames
from twinbus.server.websocket.frames import CloseCode, FrameReader, Opcode, unmask

if TYPE_CHECKING:
    from tests.support.server_process import ServerProcess

MASK = b"\x01\x02\x03\x04"


@given(st.binary(max_size=2_000), st.binary(min_size=4, max_size=4))
def test_unmasking_follows_the_rfc(data: bytes, mask: bytes) -> None:
    assert unmask(data, mask) == bytes(byte ^ mask[at % 4] for at, byte in enumerate(data))


@given(st.lists(st.tuples(st.booleans(), st.binary(max_size=700)), max_size=8), st.randoms(use_true_random=False))
def test_a_stream_can_be_split_anywhere(messages: list[tuple[bool, bytes]], dice: random.Random) -> None:
    stream = b""
    for is_split, payload in messages:
        if is_split:
            half = len(payload) // 2
            stream += frame(Opcode.BINARY, payload[:half], fin=False) + frame(Opcode.PING, b"are you there?")
            stream += frame(Opcode.CONTINUATION, payload[half:])
        else:
            stream += frame(Opcode.BINARY, payload)
    reader, received, at = FrameReader(), b"", 0
    while at < len(stream):
        size = dice.choice((1, 2, 3, 7, 50, 5_000))
        received += reader.receive(stream[at : at + size])
        at += size
    assert received == b"".join(payload for _, payload in messages)
    assert reader.ping == (b"are you there?" if any(is_split for is_split, _ in messages) else None)


def test_large_frames_are_passed_on_as_they_arrive() -> None:
    reader, payload = FrameReader(), random.Random(1).randbytes(300_000)
    stream = frame(Opcode.BINARY, payload)
    for at in range(0, len(stream) - 1_000, 1_000):
        assert reader.receive(stream[at : at + 1_000])


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (b"\x82\x08" + SASL_HEADER, CloseCode.PROTOCOL_ERROR),  # not masked
        (frame(Opcode.TEXT, b"AMQP"), CloseCode.UNSUPPORTED_DATA),
        (frame(0x3), CloseCode.PROTOCOL_ERROR),
        (frame(0xB), CloseCode.PROTOCOL_ERROR),
        (frame(Opcode.BINARY | 0x40), CloseCode.PROTOCOL_ERROR),  # compressed, but compression was not negotiated
        (frame(Opcode.CONTINUATION), CloseCode.PROTOCOL_ERROR),
        (frame(Opcode.BINARY, fin=False) + frame(Opcode.BINARY), CloseCode.PROTOCOL_ERROR),
        (frame(Opcode.PING, fin=False), CloseCode.PROTOCOL_ERROR),
        (frame(Opcode.PING, b"x" * 126), CloseCode.PROTOCOL_ERROR),
        (b"\x82\xfe\x00\x05" + MASK + b"hello", CloseCode.PROTOCOL_ERROR),  # a length that is not minimally encoded
        (b"\x82\xff" + (5).to_bytes(8, "big") + MASK + b"hello", CloseCode.PROTOCOL_ERROR),
        (b"\x82\xff" + (2**63 + 5).to_bytes(8, "big") + MASK, CloseCode.TOO_LARGE),
        (b"\x82\xff" + (frames.MAX_FRAME_BYTES + 1).to_bytes(8, "big") + MASK, CloseCode.TOO_LARGE),
        (frame(Opcode.CLOSE, b"\x03"), CloseCode.PROTOCOL_ERROR),
        (frame(Opcode.CLOSE, (1005).to_bytes(2, "big")), CloseCode.PROTOCOL_ERROR),
        (frame(Opcode.CLOSE, (999).to_bytes(2, "big")), CloseCode.PROTOCOL_ERROR),
        (frame(Opcode.CLOSE, b"\x03\xe8\xff\xfe"), CloseCode.INVALID_DATA),
        (frame(Opcode.CLOSE, b"\x03\xe8bye"), CloseCode.NORMAL),
        (frame(Opcode.CLOSE, (4_000).to_bytes(2, "big")), 4_000),
        (frame(Opcode.PONG) * (frames.MAX_FRAMES_WITHOUT_DATA + 1), CloseCode.POLICY_VIOLATION),
    ],
)
def test_an_invalid_or_close_frame_closes_only_its_connection_with_the_right_code(
    server: ServerProcess, sent: bytes, code: int
) -> None:
    with RawWebSocket(server).open() as other, RawWebSocket(server).open() as client:
        client.send(sent)
        assert client.close_code() == code
        other.send(frame(Opcode.BINARY, SASL_HEADER))
        assert other.receive_frame()[1].startswith(SASL_HEADER)


def test_a_message_above_the_size_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "MAX_MESSAGE_BYTES", 1_000)
    reader = FrameReader()
    reader.receive(frame(Opcode.BINARY, b"x" * 500, fin=False))
    reader.receive(frame(Opcode.CONTINUATION, b"x" * 500, fin=False))
    with pytest.raises(frames.ProtocolViolation) as violation:
        reader.receive(frame(Opcode.CONTINUATION, b"x"))
    assert violation.value.code == CloseCode.TOO_LARGE


@pytest.mark.parametrize(
    "useless", [frame(Opcode.PING), frame(Opcode.PONG), frame(Opcode.BINARY), frame(Opcode.BINARY, fin=False)]
)
def test_frames_without_data_are_counted_until_data_comes(useless: bytes) -> None:
    reader, is_fragment = FrameReader(), not useless[0] & 0x80
    rest = frame(Opcode.CONTINUATION, fin=False) if is_fragment else useless
    reader.receive(useless + rest * (frames.MAX_FRAMES_WITHOUT_DATA - 1))
    reader.receive(frame(Opcode.CONTINUATION if is_fragment else Opcode.BINARY, b"x", fin=not is_fragment))
    reader.receive(rest * frames.MAX_FRAMES_WITHOUT_DATA)
    with pytest.raises(frames.ProtocolViolation) as violation:
        reader.receive(rest)
    assert violation.value.code == CloseCode.POLICY_VIOLATION


@given(st.lists(st.binary(max_size=200), max_size=20), st.integers(1, 5))
def test_a_stream_can_be_handled_a_few_frames_at_a_time(messages: list[bytes], max_frames: int) -> None:
    stream = b"".join(frame(Opcode.PING, b"?") + frame(Opcode.BINARY, message) for message in messages)
    reader = FrameReader()
    received = reader.receive(stream[:300], max_frames)
    reader.append_pending(stream[300:])
    while reader.has_pending_input:
        received += reader.receive(b"", max_frames)
    received += reader.receive(b"")
    assert received == b"".join(messages)


def test_pings_within_a_message_are_answered(server: ServerProcess) -> None:
    with RawWebSocket(server).open() as client:
        half = len(SASL_HEADER) // 2
        client.send(frame(Opcode.BINARY, SASL_HEADER[:half], fin=False), frame(Opcode.PING, b"there?"))
        assert client.receive_frame() == (Opcode.PONG, b"there?")
        client.send(frame(Opcode.PONG, b"unasked"), frame(Opcode.CONTINUATION, SASL_HEADER[half:]))
        assert client.receive_frame()[1].startswith(SASL_HEADER)


def test_data_that_is_not_amqp_closes_the_connection(server: ServerProcess) -> None:
    with RawWebSocket(server).open() as client:
        client.send(frame(Opcode.BINARY, b"GET / HTTP/1.1\r\n\r\n"))
        opcode, _ = client.receive_frame()
        while opcode == Opcode.BINARY:
            opcode, _ = client.receive_frame()
        assert opcode == Opcode.CLOSE
        client.send(frame(Opcode.CLOSE, b"\x03\xe8"))
        assert client.is_closed()
