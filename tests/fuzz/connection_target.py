"""Fuzz target: a whole conversation with our server or client, from the first byte to the end of the socket.

Owns: the invariants of a connection during and after its input. It inspects the engine's internals: counters must match
the objects they count, and held memory must stay within limits and in proportion to the input.
"""

# ruff: noqa: SLF001  # this module inspects the engine's internals

from __future__ import annotations

import gc
import random
import sys
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Final

from tests.fuzz.corpus import conversations
from tests.fuzz.finding import require
from tests.fuzz.output_checker import OutputChecker
from tests.fuzz.random_program import RandomProgram
from twinbus.amqp.connection import Connection
from twinbus.amqp.delivery import OVERHEAD_BYTES
from twinbus.amqp.receiver import Receiver
from twinbus.amqp.sasl import Credentials
from twinbus.amqp.settings import Limits, Settings

if TYPE_CHECKING:
    import collections

    from tests.fuzz.mutator import Input
    from twinbus.amqp.session import Session

OPEN_PROPERTIES: Final[tuple[dict[str, object] | None, ...]] = (
    None,
    {"product": "twinbus"},
    {"about": "x" * 600},  # an open larger than the smallest max-frame-size
)
LIMITS: Final = (
    Limits(),
    Limits(enforce_credit=False),
    Limits(
        max_frame_size=1024,
        max_sessions=3,
        max_links=4,
        max_handle=9,
        incoming_window=4,
        max_unsettled=5,
        max_message_size=300,
        max_assembling_bytes=350,
        max_pipelined_bytes=128,
        max_items=40,
        max_depth=6,
        max_string_bytes=400,
    ),
    Limits(incoming_window=3, max_unsettled=3, max_links=8, max_message_size=150, enforce_credit=False),
)
SETTINGS: Final = [
    Settings(container_id="ours", properties=properties, idle_timeout_ms=idle_timeout_ms, limits=limits)
    for limits in LIMITS
    for properties, idle_timeout_ms in zip(OPEN_PROPERTIES, (120_000, 0, 120_000), strict=True)
]
RECORDED: Final = {conversation.name: conversation for conversation in conversations()}
PAUSES_S: Final = (0.5, 5.0, 30.0, 300.0)

OUTPUT_BASE_BYTES: Final = 4_096
OUTPUT_FACTOR: Final = 40
"""Maximum ratio of the engine's own output to its input."""
EVENT_BASE: Final = 50
"""Number of events allowed beyond one event per input byte."""
HELD_BASE: Final = 300_000
HELD_FACTOR: Final = 400
"""Bytes of memory that a connection may hold for each input byte."""
MEASURED: Final = 64
"""Memory is measured for one conversation in 64, because it takes a walk over all objects of the connection."""


def fuzz_connection(fuzz_input: Input, seen: collections.Counter[str]) -> None:
    """Feed the reads of the input to a connection with a random program, then end the socket."""
    rng = random.Random(fuzz_input.random_seed)
    recorded = RECORDED[fuzz_input.conversation]
    connection = _make_connection(fuzz_input.target, rng, has_sasl=recorded.has_sasl)
    program = RandomProgram(connection, rng, seen, recorded.links if connection.is_client else ())
    output = OutputChecker()
    now, input_bytes = 0.0, 0
    program.start()
    output.read(connection.data_to_send(), sys.maxsize)
    for data in fuzz_input.reads:
        input_bytes += len(data)
        waiting_bytes = sum([session.send_queue.waiting_bytes for session in connection.sessions.values()])
        events = connection.receive_data(data, now=now)
        output_bytes = (
            0 if waiting_bytes else sum(map(len, connection._output))
        )  # waiting bytes were sent by the program
        require(
            output_bytes <= OUTPUT_BASE_BYTES + OUTPUT_FACTOR * len(data),
            "the engine's answers are in proportion to the question",
        )
        require(len(events) <= EVENT_BASE + len(data), "events are in proportion to what was sent")
        program.handle_events(events)
        program.act_randomly()
        _read_held_input(connection, program, now)
        if rng.random() < 0.03:
            now += PAUSES_S[int(rng.random() * len(PAUSES_S))]
            program.handle_events(connection.tick(now))
            require(connection.tick_interval_s > 0, "the next tick is due in the future")
        output.read(connection.data_to_send(), connection.remote_max_frame_size)
        check_counters(connection, input_bytes)
        if connection.is_finished:
            break
    if fuzz_input.random_seed % MEASURED == 0:
        require(
            memory_held_by(connection) < HELD_BASE + HELD_FACTOR * input_bytes,
            "memory held is in proportion to what was sent",
        )
    _check_end(connection, program, output, now)


def _make_connection(target: str, rng: random.Random, *, has_sasl: bool) -> Connection:
    settings = SETTINGS[int(rng.random() * len(SETTINGS))]
    if target == "client":
        return Connection.client(settings, Credentials.anonymous("fuzz") if has_sasl else None, now=0.0)
    return Connection.server(settings, now=0.0, require_sasl=has_sasl)


def _read_held_input(connection: Connection, program: RandomProgram, now: float) -> None:
    """Read the held input that the program's answer released."""
    for _ in range(100):
        if not connection.has_held_input:
            return
        program.handle_events(connection.receive_data(b"", now=now))
    require(condition=False, rule="held input gets read")


def _check_end(connection: Connection, program: RandomProgram, output: OutputChecker, now: float) -> None:
    """End the socket, and check that every end is reported once."""
    program.handle_events(connection.receive_eof())
    require(program.is_over, "ConnectionClosed is told in the end")
    require(connection.is_finished, "a connection without a socket is finished")
    output.read(connection.data_to_send(), connection.remote_max_frame_size)
    for events in (
        connection.receive_eof(),
        connection.receive_data(b"\x00\x00\x00\x08\x02\x00\x00\x00", now=now),
        connection.tick(now + 1000),
    ):
        require(not events, "nothing is told after the last event")
    program.answer_late()
    check_counters(connection, sys.maxsize)
    require(connection.link_count == 0, "no link is counted after the end")
    require(connection.unanswered_bytes == 0, "no message waits for an answer after the end")
    require(connection._assembling_bytes == 0, "no message is half here after the end")


def check_counters(connection: Connection, input_bytes: int) -> None:
    """Check that counters are within their limits and match the objects they count."""
    limits = connection.limits
    require(0 <= connection.unanswered_bytes <= OVERHEAD_BYTES // 16 * input_bytes, "unanswered messages were sent")
    require(0 <= connection._assembling_bytes <= limits.max_assembling_bytes, "half messages stay within their limit")
    require(len(connection.sessions) <= limits.max_sessions, "sessions stay within their limit")
    held = sum(map(len, connection._held_input))
    require(held <= max(limits.max_frame_size, limits.max_pipelined_bytes), "input held stays within its limit")
    links = sum([_check_session(session) for session in connection.sessions.values()])
    require(connection.link_count == links, "each link is counted")
    require(links <= 2 * limits.max_links, "links stay within their limit, refused ones included")


def _check_session(session: Session) -> int:
    """Check the counters of one session; return its number of links."""
    limits = session.limits
    require(session.send_queue.window >= 0, "a window is not negative")
    incoming, outgoing = session.unsettled_deliveries.incoming_count, len(session.unsettled_deliveries.outgoing)
    require(incoming <= limits.max_unsettled, "unsettled deliveries stay within their limit")
    links = {*session.links.values(), *session._by_remote_handle.values()}
    unsettled = 0
    for link in links:
        unsettled += link.unsettled_count
        require(0 <= link.credit < 2**32 and 0 <= link.delivery_count < 2**32, "counts are of 32 bits")
        require(link.unsettled_count >= 0, "a count is not negative")
        if isinstance(link, Receiver):
            require(link.unanswered_count >= 0 and link.unanswered_bytes >= 0, "a count is not negative")
    require(unsettled == incoming + outgoing, "each unsettled delivery is counted on its link")
    return len(links)


def memory_held_by(connection: Connection) -> int:
    """Return the size of all objects reachable from a connection, without those that all connections share."""
    seen = {id(connection.settings), id(connection.limits)}
    size = 0
    pending: list[object] = [connection]
    while pending:
        obj = pending.pop()
        if id(obj) in seen or isinstance(obj, type | ModuleType | FunctionType):
            continue
        seen.add(id(obj))
        size += sys.getsizeof(obj)
        pending += gc.get_referents(obj)
    return size
