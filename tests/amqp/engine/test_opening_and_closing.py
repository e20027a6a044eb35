"""Headers, open, close, and what time does to a connection."""

from __future__ import annotations

import pytest

from tests.amqp.engine.engine_pair import EnginePair, SingleEngine
from twinbus.amqp import errors
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
from twinbus.amqp.frames import AMQP_HEADER, HEARTBEAT, SASL_FRAME, SASL_HEADER, frame
from twinbus.amqp.performatives import Attach, Begin, Close, Error, Open
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


def test_both_ends_learn_who_the_other_is() -> None:
    pair = EnginePair()
    assert pair.client.only_event(ConnectionOpened).open.container_id == "server"
    opened = pair.server.only_event(ConnectionOpened).open
    assert (opened.container_id, opened.hostname) == ("client", "contoso")


def test_bytes_may_come_one_at_a_time() -> None:
    lone = SingleEngine()
    for byte in AMQP_HEADER + OPEN_FRAME:
        lone.feed_bytes(bytes([byte]))
    assert lone.end.only_event(ConnectionOpened).open.container_id == "client"


@pytest.mark.parametrize(
    "header",
    [b"AMQP\x00\x00\x09\x01", b"AMQP\x02\x01\x00\x00", b"AMQP\x00\x01\x00\x01", b"GET / HTTP/1.1", b"\x16\x03\x01"],
)
def test_a_server_answers_what_is_not_amqp_with_the_header_it_speaks_and_ends(header: bytes) -> None:
    connection = Connection.server(Settings(container_id="server"), now=0.0)
    events = connection.receive_data(header, now=0.0)
    assert [type(event) for event in events] == [ConnectionClosed]
    assert connection.data_to_send() == SASL_HEADER
    assert connection.is_finished


def test_sasl_cannot_be_left_out_where_it_is_required() -> None:
    connection = Connection.server(Settings(container_id="server"), now=0.0)
    connection.receive_data(AMQP_HEADER, now=0.0)
    assert (connection.data_to_send(), connection.is_finished) == (SASL_HEADER, True)


def test_sasl_may_be_left_out_where_it_is_not() -> None:
    lone = SingleEngine().opened()
    assert len(lone.end.events_of(ConnectionOpened)) == 1


def test_a_client_that_meets_another_protocol_is_told() -> None:
    client = Connection.client(Settings(container_id="client"), Credentials.anonymous(), now=0.0)
    (event,) = client.receive_data(b"HTTP/1.1 400", now=0.0)
    assert isinstance(event, ConnectionClosed)
    assert client.is_finished


def test_any_kind_of_bytes_may_be_fed() -> None:
    lone = SingleEngine()
    for data in (bytearray(AMQP_HEADER), memoryview(OPEN_FRAME)):
        lone.feed_bytes(data)  # type: ignore[arg-type]
    assert len(lone.end.events_of(ConnectionOpened)) == 1


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
def test_limits_that_no_peer_could_be_told_are_refused(name: str, value: int) -> None:
    with pytest.raises(ValueError, match=name):
        Limits(**{name: value})  # type: ignore[arg-type]  # none of these names is a boolean


def test_settings_that_have_no_encoding_are_refused_at_once() -> None:
    with pytest.raises(EncodeError):
        Connection.server(Settings(container_id="server", properties={"a": object()}), now=0.0)


# --- SASL -------------------------------------------------------------------------------------------------------------


def exchange(client: Connection, server: Connection, code: SaslCode) -> tuple[list[object], list[object]]:
    """Run a SASL exchange that the server's program ends with `code`."""
    heard: list[object] = []
    seen: list[object] = []
    for _ in range(4):
        for event in server.receive_data(client.data_to_send(), now=0.0):
            seen.append(event)
            if isinstance(event, SaslInitReceived):
                server.send_sasl_outcome(code)
        heard += client.receive_data(server.data_to_send(), now=0.0)
    return heard, seen


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
    heard, seen = exchange(client, server, SaslCode.OK)
    assert seen[0] == SaslInitReceived(mechanism=mechanism, initial_response=response, hostname="contoso")
    assert isinstance(heard[-1], ConnectionOpened)


def test_plain_is_name_and_password() -> None:
    assert read_plain(b"\0name\0p\xc3\xa4ss") == ("name", "päss")
    for wrong in (None, b"", b"name\0password", b"\0a\0b\0c", b"\0\xff\0x"):
        with pytest.raises(errors.DecodeError):
            read_plain(wrong)
    with pytest.raises(ValueError, match="null"):
        Credentials.plain("a\0b", "c")


def test_a_password_is_never_printed() -> None:
    assert "secret" not in repr(Credentials.plain("name", "secret"))


def test_refused_credentials_finish_both_ends() -> None:
    client = Connection.client(Settings(container_id="c"), Credentials.plain("a", "b"), now=0.0)
    server = Connection.server(Settings(container_id="s"), now=0.0)
    heard, _ = exchange(client, server, SaslCode.AUTH)
    failed, closed = heard
    assert isinstance(failed, SaslFailed)
    assert failed.code == SaslCode.AUTH
    assert isinstance(closed, ConnectionClosed)
    assert client.is_finished
    assert server.is_finished


def test_a_mechanism_that_is_not_offered_is_not_used() -> None:
    client = Connection.client(Settings(container_id="c"), Credentials.plain("a", "b"), now=0.0)
    server = Connection.server(Settings(container_id="s"), now=0.0, mechanisms=(ANONYMOUS,))
    heard, seen = exchange(client, server, SaslCode.OK)
    failed, closed = heard
    assert isinstance(failed, SaslFailed)
    assert "ANONYMOUS" in failed.reason
    assert isinstance(closed, ConnectionClosed)
    assert seen == []  # the password was not sent


def test_challenges_and_responses_go_to_and_fro() -> None:
    client = Connection.client(Settings(container_id="c"), Credentials(ANONYMOUS, b""), now=0.0)
    server = Connection.server(Settings(container_id="s"), now=0.0)
    server.receive_data(client.data_to_send(), now=0.0)
    client.receive_data(server.data_to_send(), now=0.0)
    server.receive_data(client.data_to_send(), now=0.0)
    server.send_sasl_challenge(b"1+1?")
    (asked,) = client.receive_data(server.data_to_send(), now=0.0)
    assert asked.challenge == b"1+1?"  # type: ignore[attr-defined]
    client.send_sasl_response(b"2")
    (answered,) = server.receive_data(client.data_to_send(), now=0.0)
    assert answered.response == b"2"  # type: ignore[attr-defined]
    server.send_sasl_outcome()
    client.receive_data(server.data_to_send(), now=0.0)
    (opened,) = server.receive_data(client.data_to_send(), now=0.0)
    assert isinstance(opened, ConnectionOpened)


def pipelining_server() -> tuple[Connection, bytes]:
    """A server before its SASL answer, and all a client has to say in one piece."""
    said = SASL_HEADER + frame(0, SaslInit(mechanism=ANONYMOUS).encode(), SASL_FRAME) + AMQP_HEADER + OPEN_FRAME
    return Connection.server(Settings(container_id="s", limits=Limits(max_pipelined_bytes=1000)), now=0.0), said


def test_what_was_sent_ahead_of_the_sasl_answer_is_read_after_it() -> None:
    server, said = pipelining_server()
    (event,) = server.receive_data(said, now=0.0)
    assert isinstance(event, SaslInitReceived)
    readable_before_the_answer = server.has_held_input
    server.send_sasl_outcome()
    assert (readable_before_the_answer, server.has_held_input) == (False, True)
    (opened,) = server.receive_data(b"", now=0.0)
    assert isinstance(opened, ConnectionOpened)


def test_no_more_than_allowed_is_kept_ahead_of_the_sasl_answer() -> None:
    server, said = pipelining_server()
    server.receive_data(said, now=0.0)
    closed = [event for _ in range(20) for event in server.receive_data(bytes(100), now=0.0)]
    assert [type(event) for event in closed] == [ConnectionClosed]
    assert server.is_finished


# --- open -------------------------------------------------------------------------------------------------------------


def test_a_frame_size_below_the_specifications_floor_is_refused() -> None:
    lone = SingleEngine()
    lone.feed_bytes(AMQP_HEADER)
    lone.send(Open(container_id="client", max_frame_size=511))
    assert lone.condition(Close) == errors.INVALID_FIELD


def test_a_frame_larger_than_agreed_closes_the_connection() -> None:
    lone = SingleEngine(Limits(max_frame_size=1024)).opened()
    lone.feed_bytes((1025).to_bytes(4, "big") + b"\x02\x00\x00\x00")
    assert lone.condition(Close) == errors.FRAMING_ERROR


@pytest.mark.parametrize("header", ["00000007 02000000", "00000009 01000000 00", "00000009 03000000 00"])
def test_a_header_that_does_not_add_up_closes_the_connection(header: str) -> None:
    lone = SingleEngine().opened()
    lone.feed_bytes(bytes.fromhex(header))
    assert lone.condition(Close) == errors.FRAMING_ERROR


def test_an_extended_header_is_passed_over() -> None:
    lone = SingleEngine().opened()
    body = Begin(next_outgoing_id=0, incoming_window=1, outgoing_window=1).encode()
    lone.feed_bytes((12 + len(body)).to_bytes(4, "big") + b"\x03\x00\x00\x00" + b"\xff\xff\xff\xff" + body)
    assert len(lone.connection.sessions) == 1


def test_a_channel_beyond_those_offered_closes_the_connection() -> None:
    lone = SingleEngine(Limits(max_sessions=4)).opened()
    lone.send(Begin(next_outgoing_id=0, incoming_window=1, outgoing_window=1), channel=4)
    assert lone.condition(Close) == errors.FRAMING_ERROR


def test_an_answer_to_a_session_we_did_not_begin_closes_the_connection() -> None:
    lone = SingleEngine().opened()
    lone.send(Begin(remote_channel=7, next_outgoing_id=0, incoming_window=1, outgoing_window=1))
    assert lone.condition(Close) == errors.ILLEGAL_STATE


def test_the_peers_channel_max_is_kept_to() -> None:
    lone = SingleEngine()
    lone.feed_bytes(AMQP_HEADER)
    lone.send(Open(container_id="client", channel_max=1))
    lone.connection.begin_session()
    lone.connection.begin_session()
    with pytest.raises(LocalError, match="2 sessions"):
        lone.connection.begin_session()


def test_an_answer_that_does_not_fit_the_peers_frames_closes_the_connection() -> None:
    lone = SingleEngine(Limits(max_links=0))
    lone.feed_bytes(AMQP_HEADER)
    lone.send(Open(container_id="client", max_frame_size=512))
    lone.send(Begin(next_outgoing_id=0, incoming_window=1, outgoing_window=1))
    lone.send(Attach(name="n" * 600, handle=0, role=False))  # refused by an attach of that name, over 512 bytes
    assert lone.condition(Close) == errors.FRAME_SIZE_TOO_SMALL


# --- close ------------------------------------------------------------------------------------------------------------


def test_a_close_is_answered_and_ends_everything_once() -> None:
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


def test_a_lost_socket_ends_everything_once() -> None:
    pair = EnginePair()
    pair.sender()
    pair.server.events += pair.server.connection.receive_eof()
    assert [type(event) for event in pair.server.events[-3:]] == [LinkDetached, SessionEnded, ConnectionClosed]
    assert pair.server.connection.receive_eof() == []
    assert pair.server.connection.link_count == 0


# --- time -------------------------------------------------------------------------------------------------------------


def test_a_silent_peer_is_given_up_after_twice_the_time_it_was_told() -> None:
    lone = SingleEngine(settings=Settings(container_id="s", idle_timeout_ms=1000)).opened()
    assert lone.last(Open).idle_time_out == 1000
    assert lone.connection.tick(1.9) == []
    (closed,) = lone.connection.tick(2.0)
    assert isinstance(closed, ConnectionClosed)
    lone.collect()
    assert lone.condition(Close) == errors.RESOURCE_LIMIT_EXCEEDED


def test_any_byte_keeps_a_connection_alive() -> None:
    lone = SingleEngine(settings=Settings(container_id="s", idle_timeout_ms=1000)).opened()
    lone.connection.receive_data(HEARTBEAT, now=1.9)
    assert lone.connection.tick(3.8) == []
    assert lone.connection.tick(3.9) != []


def test_heartbeats_go_out_only_when_nothing_else_does() -> None:
    lone = SingleEngine()
    lone.feed_bytes(AMQP_HEADER)
    lone.send(Open(container_id="client", idle_time_out=60_000))
    assert lone.connection.tick_interval_s == 20.0
    lone.connection.tick(20.0)
    assert lone.connection.data_to_send() == b""  # open itself went out in this interval
    lone.connection.tick(40.0)
    assert lone.connection.data_to_send() == HEARTBEAT
    lone.connection.begin_session()
    lone.connection.data_to_send()
    lone.connection.tick(60.0)
    assert lone.connection.data_to_send() == b""


def test_the_time_between_frames_stays_below_what_the_peer_allows() -> None:
    lone = SingleEngine()
    lone.feed_bytes(AMQP_HEADER)
    lone.send(Open(container_id="client", idle_time_out=1000))
    now = last_sent = 0.0
    for _ in range(50):
        now += lone.connection.tick_interval_s
        lone.connection.tick(now)
        if lone.connection.data_to_send():
            assert now - last_sent < 1.0
            last_sent = now


@pytest.mark.parametrize(("asked", "is_taken"), [(None, True), (0, True), (1, False), (999, False), (1000, True)])
def test_a_peer_that_wants_heartbeats_too_often_is_refused(asked: int | None, is_taken: bool) -> None:  # noqa: FBT001
    lone = SingleEngine(settings=Settings(container_id="s", min_idle_timeout_ms=1000))
    lone.feed_bytes(AMQP_HEADER)
    lone.send(Open(container_id="client", idle_time_out=asked))
    assert bool(lone.end.events_of(ConnectionOpened)) == is_taken
    if not is_taken:
        error = lone.last(Close).error
        assert error is not None
        assert error.condition == NOT_ALLOWED
        assert f"{asked} ms" in str(error.description)
        assert "1000 ms" in str(error.description)
        assert lone.connection.tick_interval_s >= 1.0


def test_a_peer_that_never_opens_is_given_up() -> None:
    connection = Connection.server(Settings(container_id="s", handshake_timeout_ms=5000), now=0.0)
    assert connection.tick(4.9) == []
    (closed,) = connection.tick(5.0)
    assert isinstance(closed, ConnectionClosed)
    assert connection.is_finished


def test_a_close_that_is_never_answered_ends_all_the_same() -> None:
    lone = SingleEngine(settings=Settings(container_id="s", handshake_timeout_ms=5000)).opened()
    lone.connection.close()
    assert lone.connection.tick(1.0) == []
    (closed,) = lone.connection.tick(6.0)
    assert isinstance(closed, ConnectionClosed)
    assert lone.connection.is_finished
