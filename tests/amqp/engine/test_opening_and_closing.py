"""Opening and closing: protocol headers, SASL, open, close, heartbeats and timeouts."""

from __future__ import annotations

import pytest

from tests.amqp.engine.engine_pair import EnginePair, SingleEngine
from twinbus.amqp import errors
from twinbus.amqp.codec.frames import AMQP_HEADER, HEARTBEAT, SASL_FRAME, SASL_HEADER, frame
from twinbus.amqp.codec.performatives import Attach, Begin, Close, Error, Open
from twinbus.amqp.connection import Connection
from twinbus.amqp.errors import NOT_ALLOWED, EncodeError, LocalError
from twinbus.amqp.events import (
    ConnectionClosed,
    ConnectionOpened,
    LinkDetached,
    SaslFailed,
    SaslInitReceived,
    SessionEnded,
)
from twinbus.amqp.sasl import (
    ANONYMOUS,
    EXTERNAL,
    MSSBCBS,
    PLAIN,
    USUAL_MECHANISMS,
    Credentials,
    SaslCode,
    SaslInit,
    read_plain,
)
from twinbus.amqp.settings import Limits, Settings

OPEN_FRAME = frame(0, Open(container_id="client").encode())


def test_both_ends_get_the_open_of_the_other() -> None:
    pair = EnginePair()
    assert pair.client.only_event(ConnectionOpened).open.container_id == "server"
    opened = pair.server.only_event(ConnectionOpened).open
    assert (opened.container_id, opened.hostname) == ("client", "contoso")


def test_bytes_may_arrive_one_at_a_time() -> None:
    engine = SingleEngine()
    for byte in AMQP_HEADER + OPEN_FRAME:
        engine.feed_bytes(bytes([byte]))
    assert engine.end.only_event(ConnectionOpened).open.container_id == "client"


@pytest.mark.parametrize(
    "header",
    [b"AMQP\x00\x00\x09\x01", b"AMQP\x02\x01\x00\x00", b"AMQP\x00\x01\x00\x01", b"GET / HTTP/1.1", b"\x16\x03\x01"],
)
def test_a_server_answers_another_protocol_with_its_own_header_and_finishes(header: bytes) -> None:
    connection = Connection.server(Settings(container_id="server"), now=0.0)
    events = connection.receive_data(header, now=0.0)
    assert [type(event) for event in events] == [ConnectionClosed]
    assert connection.data_to_send() == SASL_HEADER
    assert connection.is_finished


def test_sasl_cannot_be_omitted_if_it_is_required() -> None:
    connection = Connection.server(Settings(container_id="server"), now=0.0)
    connection.receive_data(AMQP_HEADER, now=0.0)
    assert (connection.data_to_send(), connection.is_finished) == (SASL_HEADER, True)


def test_sasl_may_be_omitted_if_it_is_not_required() -> None:
    engine = SingleEngine().opened()
    assert len(engine.end.events_of(ConnectionOpened)) == 1


def test_a_client_closes_when_the_server_speaks_another_protocol() -> None:
    client = Connection.client(Settings(container_id="client"), Credentials.anonymous(), now=0.0)
    (event,) = client.receive_data(b"HTTP/1.1 400", now=0.0)
    assert isinstance(event, ConnectionClosed)
    assert client.is_finished


def test_a_bytearray_and_a_memoryview_are_accepted_as_input() -> None:
    engine = SingleEngine()
    for data in (bytearray(AMQP_HEADER), memoryview(OPEN_FRAME)):
        engine.feed_bytes(data)  # type: ignore[arg-type]
    assert len(engine.end.events_of(ConnectionOpened)) == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_frame_size", 511),
        ("max_sessions", 0),
        ("max_sessions", 65_537),
        ("max_handle", 2**32),
        ("incoming_window", 0),
    ],
)
def test_limits_out_of_the_range_of_the_protocol_are_refused(name: str, value: int) -> None:
    with pytest.raises(ValueError, match=name):
        Limits(**{name: value})  # type: ignore[arg-type]  # none of these names is a boolean


def test_settings_that_have_no_encoding_are_refused_at_once() -> None:
    with pytest.raises(EncodeError):
        Connection.server(Settings(container_id="server", properties={"a": object()}), now=0.0)


# --- SASL -------------------------------------------------------------------------------------------------------------


def exchange(client: Connection, server: Connection, code: SaslCode) -> tuple[list[object], list[object]]:
    """Run a SASL exchange that the server ends with `code`; return the events of client and server."""
    client_events: list[object] = []
    server_events: list[object] = []
    for _ in range(4):
        for event in server.receive_data(client.data_to_send(), now=0.0):
            server_events.append(event)
            if isinstance(event, SaslInitReceived):
                server.send_sasl_outcome(code)
        client_events += client.receive_data(server.data_to_send(), now=0.0)
    return client_events, server_events


@pytest.mark.parametrize(
    ("credentials", "mechanism", "response"),
    [
        (Credentials.anonymous("me"), ANONYMOUS, b"me"),
        (Credentials.plain("name", "pässword"), PLAIN, b"\0name\0p\xc3\xa4ssword"),
        (Credentials.external("who"), EXTERNAL, b"who"),
        (Credentials(MSSBCBS, b""), MSSBCBS, b""),
    ],
)
def test_each_mechanism_reaches_the_program(credentials: Credentials, mechanism: str, response: bytes) -> None:
    client = Connection.client(Settings(container_id="c", hostname="contoso"), credentials, now=0.0)
    server = Connection.server(Settings(container_id="s"), now=0.0, mechanisms=(*USUAL_MECHANISMS, EXTERNAL))
    client_events, server_events = exchange(client, server, SaslCode.OK)
    assert server_events[0] == SaslInitReceived(mechanism=mechanism, initial_response=response, hostname="contoso")
    assert isinstance(client_events[-1], ConnectionOpened)


def test_plain_holds_a_name_and_a_password() -> None:
    assert read_plain(b"\0name\0p\xc3\xa4ss") == ("name", "päss")
    for wrong in (None, b"", b"name\0password", b"\0a\0b\0c", b"\0\xff\0x"):
        with pytest.raises(errors.DecodeError):
            read_plain(wrong)
    with pytest.raises(ValueError, match="null"):
        Credentials.plain("a\0b", "c")


def test_a_password_is_never_printed() -> None:
    assert "secret" not in repr(Credentials.plain("name", "secret"))


def test_refused_credentials_finish_both_connections() -> None:
    client = Connection.client(Settings(container_id="c"), Credentials.plain("a", "b"), now=0.0)
    server = Connection.server(Settings(container_id="s"), now=0.0)
    client_events, _ = exchange(client, server, SaslCode.AUTH)
    failed, closed = client_events
    assert isinstance(failed, SaslFailed)
    assert failed.code == SaslCode.AUTH
    assert isinstance(closed, ConnectionClosed)
    assert client.is_finished
    assert server.is_finished


def test_a_mechanism_that_is_not_offered_is_not_used() -> None:
    client = Connection.client(Settings(container_id="c"), Credentials.plain("a", "b"), now=0.0)
    server = Connection.server(Settings(container_id="s"), now=0.0, mechanisms=(ANONYMOUS,))
    client_events, server_events = exchange(client, server, SaslCode.OK)
    failed, closed = client_events
    assert isinstance(failed, SaslFailed)
    assert "ANONYMOUS" in failed.reason
    assert isinstance(closed, ConnectionClosed)
    assert server_events == []  # the password was not sent


def test_challenges_and_responses_are_exchanged() -> None:
    client = Connection.client(Settings(container_id="c"), Credentials(ANONYMOUS, b""), now=0.0)
    server = Connection.server(Settings(container_id="s"), now=0.0)
    server.receive_data(client.data_to_send(), now=0.0)
    client.receive_data(server.data_to_send(), now=0.0)
    server.receive_data(client.data_to_send(), now=0.0)
    server.send_sasl_challenge(b"1+1?")
    (challenged,) = client.receive_data(server.data_to_send(), now=0.0)
    assert challenged.challenge == b"1+1?"  # type: ignore[attr-defined]
    client.send_sasl_response(b"2")
    (answered,) = server.receive_data(client.data_to_send(), now=0.0)
    assert answered.response == b"2"  # type: ignore[attr-defined]
    server.send_sasl_outcome()
    client.receive_data(server.data_to_send(), now=0.0)
    (opened,) = server.receive_data(client.data_to_send(), now=0.0)
    assert isinstance(opened, ConnectionOpened)


def pipelining_server() -> tuple[Connection, bytes]:
    """Return a server that has not sent its SASL outcome, and a client's whole handshake as one string of bytes."""
    handshake = SASL_HEADER + frame(0, SaslInit(mechanism=ANONYMOUS).encode(), SASL_FRAME) + AMQP_HEADER + OPEN_FRAME
    return Connection.server(Settings(container_id="s", limits=Limits(max_pipelined_bytes=1000)), now=0.0), handshake


def test_bytes_pipelined_before_the_sasl_outcome_are_read_after_it() -> None:
    server, handshake = pipelining_server()
    (event,) = server.receive_data(handshake, now=0.0)
    assert isinstance(event, SaslInitReceived)
    readable_before_the_answer = server.has_held_input
    server.send_sasl_outcome()
    assert (readable_before_the_answer, server.has_held_input) == (False, True)
    (opened,) = server.receive_data(b"", now=0.0)
    assert isinstance(opened, ConnectionOpened)


def test_too_many_bytes_pipelined_before_the_sasl_outcome_close_the_connection() -> None:
    server, handshake = pipelining_server()
    server.receive_data(handshake, now=0.0)
    closed = [event for _ in range(20) for event in server.receive_data(bytes(100), now=0.0)]
    assert [type(event) for event in closed] == [ConnectionClosed]
    assert server.is_finished


# --- open -------------------------------------------------------------------------------------------------------------


def test_a_max_frame_size_below_512_is_refused() -> None:
    engine = SingleEngine()
    engine.feed_bytes(AMQP_HEADER)
    engine.send(Open(container_id="client", max_frame_size=511))
    assert engine.condition(Close) == errors.INVALID_FIELD


def test_a_frame_larger_than_agreed_closes_the_connection() -> None:
    engine = SingleEngine(Limits(max_frame_size=1024)).opened()
    engine.feed_bytes((1025).to_bytes(4, "big") + b"\x02\x00\x00\x00")
    assert engine.condition(Close) == errors.FRAMING_ERROR


@pytest.mark.parametrize("header", ["00000007 02000000", "00000009 01000000 00", "00000009 03000000 00"])
def test_an_invalid_frame_header_closes_the_connection(header: str) -> None:
    engine = SingleEngine().opened()
    engine.feed_bytes(bytes.fromhex(header))
    assert engine.condition(Close) == errors.FRAMING_ERROR


def test_an_extended_frame_header_is_skipped() -> None:
    engine = SingleEngine().opened()
    body = Begin(next_outgoing_id=0, incoming_window=1, outgoing_window=1).encode()
    engine.feed_bytes((12 + len(body)).to_bytes(4, "big") + b"\x03\x00\x00\x00" + b"\xff\xff\xff\xff" + body)
    assert len(engine.connection.sessions) == 1


def test_a_channel_above_channel_max_closes_the_connection() -> None:
    engine = SingleEngine(Limits(max_sessions=4)).opened()
    engine.send(Begin(next_outgoing_id=0, incoming_window=1, outgoing_window=1), channel=4)
    assert engine.condition(Close) == errors.FRAMING_ERROR


def test_an_answer_to_a_session_we_did_not_begin_closes_the_connection() -> None:
    engine = SingleEngine().opened()
    engine.send(Begin(remote_channel=7, next_outgoing_id=0, incoming_window=1, outgoing_window=1))
    assert engine.condition(Close) == errors.ILLEGAL_STATE


def test_the_peers_channel_max_is_respected() -> None:
    engine = SingleEngine()
    engine.feed_bytes(AMQP_HEADER)
    engine.send(Open(container_id="client", channel_max=1))
    engine.connection.begin_session()
    engine.connection.begin_session()
    with pytest.raises(LocalError, match="2 sessions"):
        engine.connection.begin_session()


def test_an_answer_larger_than_the_peers_max_frame_size_closes_the_connection() -> None:
    engine = SingleEngine(Limits(max_links=0))
    engine.feed_bytes(AMQP_HEADER)
    engine.send(Open(container_id="client", max_frame_size=512))
    engine.send(Begin(next_outgoing_id=0, incoming_window=1, outgoing_window=1))
    engine.send(
        Attach(name="n" * 600, handle=0, role=False)
    )  # the refusing attach repeats the name and exceeds 512 bytes
    assert engine.condition(Close) == errors.FRAME_SIZE_TOO_SMALL


# --- close ------------------------------------------------------------------------------------------------------------


def test_a_close_is_answered_and_reports_each_end_once() -> None:
    pair = EnginePair()
    pair.sender()
    pair.client.connection.close(Error(condition=errors.INTERNAL_ERROR, description="oops"))
    pair.exchange()
    closed = pair.server.only_event(ConnectionClosed)
    assert closed.by_peer
    assert closed.error is not None
    assert closed.error.description == "oops"
    for end in (pair.client, pair.server):
        assert end.connection.is_finished
        assert (
            len(end.events_of(LinkDetached))
            == len(end.events_of(SessionEnded))
            == len(end.events_of(ConnectionClosed))
            == 1
        )
        assert end.connection.receive_eof() == []


def test_a_lost_socket_reports_each_end_once() -> None:
    pair = EnginePair()
    pair.sender()
    pair.server.events += pair.server.connection.receive_eof()
    assert [type(event) for event in pair.server.events[-3:]] == [LinkDetached, SessionEnded, ConnectionClosed]
    assert pair.server.connection.receive_eof() == []
    assert pair.server.connection.link_count == 0


# --- time -------------------------------------------------------------------------------------------------------------


def test_a_silent_peer_is_closed_after_twice_the_advertised_idle_timeout() -> None:
    engine = SingleEngine(settings=Settings(container_id="s", idle_timeout_ms=1000)).opened()
    assert engine.last(Open).idle_time_out == 1000
    assert engine.connection.tick(1.9) == []
    (closed,) = engine.connection.tick(2.0)
    assert isinstance(closed, ConnectionClosed)
    engine.collect()
    assert engine.condition(Close) == errors.RESOURCE_LIMIT_EXCEEDED


def test_any_byte_keeps_a_connection_alive() -> None:
    engine = SingleEngine(settings=Settings(container_id="s", idle_timeout_ms=1000)).opened()
    engine.connection.receive_data(HEARTBEAT, now=1.9)
    assert engine.connection.tick(3.8) == []
    assert engine.connection.tick(3.9) != []


def test_heartbeats_are_sent_only_if_nothing_else_was_sent() -> None:
    engine = SingleEngine()
    engine.feed_bytes(AMQP_HEADER)
    engine.send(Open(container_id="client", idle_time_out=60_000))
    assert engine.connection.tick_interval_s == 20.0
    engine.connection.tick(20.0)
    assert engine.connection.data_to_send() == b""  # the open was sent in this interval
    engine.connection.tick(40.0)
    assert engine.connection.data_to_send() == HEARTBEAT
    engine.connection.begin_session()
    engine.connection.data_to_send()
    engine.connection.tick(60.0)
    assert engine.connection.data_to_send() == b""


def test_the_time_between_frames_stays_below_the_peers_idle_timeout() -> None:
    engine = SingleEngine()
    engine.feed_bytes(AMQP_HEADER)
    engine.send(Open(container_id="client", idle_time_out=1000))
    now = last_sent = 0.0
    for _ in range(50):
        now += engine.connection.tick_interval_s
        engine.connection.tick(now)
        if engine.connection.data_to_send():
            assert now - last_sent < 1.0
            last_sent = now


@pytest.mark.parametrize(
    ("idle_timeout_ms", "is_accepted"), [(None, True), (0, True), (1, False), (999, False), (1000, True)]
)
def test_a_peer_with_too_short_an_idle_timeout_is_refused(idle_timeout_ms: int | None, is_accepted: bool) -> None:  # noqa: FBT001
    engine = SingleEngine(settings=Settings(container_id="s", min_idle_timeout_ms=1000))
    engine.feed_bytes(AMQP_HEADER)
    engine.send(Open(container_id="client", idle_time_out=idle_timeout_ms))
    assert bool(engine.end.events_of(ConnectionOpened)) == is_accepted
    if not is_accepted:
        error = engine.last(Close).error
        assert error is not None
        assert error.condition == NOT_ALLOWED
        assert f"{idle_timeout_ms} ms" in str(error.description)
        assert "1000 ms" in str(error.description)
        assert engine.connection.tick_interval_s >= 1.0


def test_a_peer_that_never_opens_is_closed_after_the_handshake_timeout() -> None:
    connection = Connection.server(Settings(container_id="s", handshake_timeout_ms=5000), now=0.0)
    assert connection.tick(4.9) == []
    (closed,) = connection.tick(5.0)
    assert isinstance(closed, ConnectionClosed)
    assert connection.is_finished


def test_a_close_that_is_never_answered_finishes_after_the_handshake_timeout() -> None:
    engine = SingleEngine(settings=Settings(container_id="s", handshake_timeout_ms=5000)).opened()
    engine.connection.close()
    assert engine.connection.tick(1.0) == []
    (closed,) = engine.connection.tick(6.0)
    assert isinstance(closed, ConnectionClosed)
    assert engine.connection.is_finished
