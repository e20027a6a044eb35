"""Memory of long connections: ended sessions, detached links and settled messages leave nothing behind."""

from __future__ import annotations

import collections
import random
from typing import TYPE_CHECKING

import pytest

from tests.fuzz.connection_target import memory_held_by
from tests.fuzz.corpus import BEGIN, Conversation, Frame, conversations
from tests.fuzz.output_checker import CLOSE, END
from tests.fuzz.random_program import RandomProgram
from tests.fuzz.synthetic_conversations import (
    OPENING_FRAMES,
    RECEIVER,
    SENDER,
    attach,
    credit,
    disposition,
    encode_conversation,
    partial_transfer,
    transfer,
)
from twinbus.amqp.codec.frames import AMQP_HEADER, frame
from twinbus.amqp.codec.performatives import Detach, End
from twinbus.amqp.connection import Connection
from twinbus.amqp.settings import Limits, Settings

if TYPE_CHECKING:
    from collections.abc import Sequence

SETTINGS = Settings(container_id="ours", limits=Limits(enforce_credit=False))
YOUNG, OLD = 40, 400
"""Number of repetitions at the first and at the second measurement."""
TOLERANCE_BYTES = 2_000
"""Tolerated growth, because dicts and lists grow in steps."""

NOT_REPEATABLE = {"declared-by-name", "many", "narrow", "refuses-a-begin", "too-long-to-answer"}
"""Conversations that close the connection or do not end their sessions."""


class Server:
    """A server with a random program, fed with given bytes."""

    def __init__(self, opening: bytes) -> None:
        self.connection = Connection.server(SETTINGS, now=0.0, require_sasl=False)
        self.seen: collections.Counter[str] = collections.Counter()
        self.program = RandomProgram(self.connection, random.Random(1), self.seen, ())
        self.receive_bytes(opening)

    def receive_bytes(self, data: bytes) -> None:
        self.program.handle_events(self.connection.receive_data(data, now=0.0))
        while self.program.postponed_answers:
            self.program.postponed_answers.pop()()
        self.connection.data_to_send()
        assert not self.connection.is_closing

    def growth(self, repeated: bytes) -> int:
        """Return how much the memory grows between YOUNG and OLD repetitions of `repeated`."""
        for _ in range(YOUNG):
            self.receive_bytes(repeated)
        held = memory_held_by(self.connection)
        for _ in range(OLD - YOUNG):
            self.receive_bytes(repeated)
        return memory_held_by(self.connection) - held


def join(parts: Sequence[bytes | Frame]) -> bytes:
    return b"".join(part if isinstance(part, bytes) else part.recorded for part in parts)


def opening_of(conversation: Conversation) -> bytes:
    """Return the bytes from the AMQP header to the first begin, without SASL."""
    start = conversation.frames.index(AMQP_HEADER)
    return join(conversation.frames[start : conversation.body - 1])


def sessions_of(conversation: Conversation) -> bytes:
    """Return the bytes from the first begin on, without closes, and with an end for each channel."""
    frames = [part for part in conversation.frames[conversation.body - 1 :] if isinstance(part, Frame)]
    channels = sorted({frame.channel for frame in frames if frame.code == BEGIN})
    ends = [frame(channel, End().encode()) for channel in channels]
    return join([*(frame for frame in frames if frame.code not in {CLOSE, END}), *ends])


@pytest.mark.parametrize(
    "conversation",
    [
        pytest.param(recorded, id=recorded.name)
        for recorded in conversations()
        if recorded.from_client
        and recorded.name.removeprefix("synthetic-").removesuffix(".client") not in NOT_REPEATABLE
    ],
)
def test_repeated_sessions_do_not_grow_memory(conversation: Conversation) -> None:
    server = Server(opening_of(conversation))
    assert server.growth(sessions_of(conversation)) < TOLERANCE_BYTES
    assert server.connection.link_count == 0
    assert server.seen["SessionEnded"] >= OLD


def test_repeated_links_do_not_grow_memory() -> None:
    server = Server(encode_conversation(*OPENING_FRAMES))
    links = encode_conversation(
        attach("s0", 0, SENDER),
        transfer(0, 0),
        transfer(0, 1, more=True),
        partial_transfer(0, b"more", more=True),
        partial_transfer(0, b"", aborted=True),
        transfer(0, 2, more=True),
        attach("r0", 1, RECEIVER),
        credit(1, 10),
        disposition(RECEIVER, 0, 1000),
        Detach(handle=0, closed=True),
        Detach(handle=1, closed=True),
    ).removeprefix(AMQP_HEADER)
    assert server.growth(links) < TOLERANCE_BYTES
    assert server.connection.link_count == 0
    assert server.seen["LinkDetached"] >= 2 * OLD


def test_a_message_of_empty_frames_does_not_grow_memory() -> None:
    server = Server(encode_conversation(*OPENING_FRAMES, attach("s0", 0, SENDER), transfer(0, 0, more=True)))
    assert (
        server.growth(encode_conversation(*[partial_transfer(0, b"", more=True)] * 50).removeprefix(AMQP_HEADER))
        < TOLERANCE_BYTES
    )
