"""A client that does not read is throttled, a silent one is disconnected, and a stopping server closes cleanly."""

from __future__ import annotations

import time
from contextlib import ExitStack
from threading import Thread
from typing import TYPE_CHECKING, Any, Self

from azure.servicebus import ServiceBusClient, ServiceBusMessage

from tests.server.websocket.raw_websocket import RawWebSocket, frame
from tests.support.http_client import HttpClient
from tests.support.in_process_server import run_server_in_process
from tests.support.server_process import run_server, wait_until
from twinbus.amqp.codec.frames import HEARTBEAT
from twinbus.amqp.connection import Connection
from twinbus.amqp.events import ConnectionClosed
from twinbus.amqp.sasl import Credentials
from twinbus.amqp.settings import Settings
from twinbus.amqp.terminus import Source
from twinbus.amqp.types import UInt
from twinbus.server.amqp import gateway
from twinbus.server.websocket import socket as websocket
from twinbus.server.websocket.frames import CloseCode, Opcode

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from tests.support.server_process import ServerProcess
    from twinbus.amqp.events import Event

MEGABYTE = 1_048_576


class Client:
    """Our AMQP engine over a WebSocket; it reads only when the test tells it to."""

    def __init__(self, server: ServerProcess, *, receive_buffer: int | None = None) -> None:
        self.socket = RawWebSocket(server, receive_buffer=receive_buffer).open()
        credentials = Credentials.plain(server.key_name, server.key)
        self.connection = Connection.client(Settings(container_id="test"), credentials, now=0.0)
        self.events: list[Event] = []
        self.flush()
        self.read_until(lambda: self.connection.remote_open is not None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.socket.close()

    def flush(self) -> None:
        data = self.connection.data_to_send()
        if data:
            self.socket.send(frame(Opcode.BINARY, data))

    def read_until(self, condition: Any) -> None:  # noqa: ANN401  # a callable
        while not condition():
            opcode, payload = self.socket.receive_frame()
            assert opcode == Opcode.BINARY, payload
            self.events += self.connection.receive_data(payload, now=0.0)
            self.flush()


def fill(server: ServerProcess, queue: str, megabytes: int) -> None:
    connected = ServiceBusClient.from_connection_string(server.connection_string)
    with connected as client, client.get_queue_sender(queue) as sender:
        for _ in range(megabytes * 5):
            sender.send_messages(ServiceBusMessage(b"x" * 200_000))


def test_a_client_that_does_not_read_gets_only_what_fits_and_others_get_the_rest(tmp_path: Path) -> None:
    with run_server_in_process(tmp_path) as server, ExitStack() as stack:
        queue = server.create_queue()
        fill(server, queue, 60)
        client = stack.enter_context(Client(server, receive_buffer=4_096))
        session = client.connection.begin_session()
        session.attach_receiver("slow", source=Source(address=queue)).grant(1_000)
        client.flush()
        fragment = server.namespace.find_receivable(queue).parts[0].main
        wait_until(lambda: fragment.dispatcher.consumers)
        (consumer,) = fragment.dispatcher.consumers
        peer = consumer._backpressure._peer  # type: ignore[attr-defined]  # noqa: SLF001  # the server's end
        wait_until(lambda: not peer.is_writable)
        time.sleep(0.5)
        assert isinstance(peer.transport, websocket.WebSocket)
        assert peer.transport.get_write_buffer_size() < 20 * MEGABYTE
        assert len(fragment.local.in_flight.locks) < 120, "of 300: messages that do not fit are not locked"
        assert len(HttpClient(server).receive_and_delete(queue).body) == 200_000, "another client gets the next message"
        client.socket.send(frame(Opcode.PING, b"there?") * 1_000)
        time.sleep(0.2)
        assert peer.transport.get_write_buffer_size() < 20 * MEGABYTE
        locked = len(fragment.local.in_flight.locks)
        client.socket.receive_frame()
        for _ in range(30):
            opcode, _ = client.socket.receive_frame()
            assert opcode in {Opcode.BINARY, Opcode.PONG}
        wait_until(lambda: len(fragment.local.in_flight.locks) > locked)


def test_a_silent_client_is_disconnected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        gateway, "Settings", lambda **given: Settings(**given, idle_timeout_ms=500, handshake_timeout_ms=500)
    )
    monkeypatch.setattr(websocket, "CLOSE_GRACE_S", 0.5)
    with run_server_in_process(tmp_path) as server:
        with RawWebSocket(server).open() as never_speaks:
            assert opcode_at_end(never_speaks) == Opcode.CLOSE
        with Client(server) as falls_silent:
            falls_silent.socket.send(frame(Opcode.BINARY, HEARTBEAT[:3]))  # an incomplete frame: the rest never arrives
            assert opcode_at_end(falls_silent.socket) == Opcode.CLOSE


def test_q17_an_exclusive_receiver_that_exceeds_its_silence_limit_is_disconnected(server: ServerProcess) -> None:
    queue = server.create_queue()
    properties: dict[str, object] = {"com.microsoft:epoch": 7, "twinbus:silence-limit": UInt(1_000)}
    with Client(server) as client:
        link = client.connection.begin_session().attach_receiver(
            "alone", source=Source(address=queue), properties=properties
        )
        client.flush()
        client.read_until(lambda: link.is_attached)
        began_s = time.monotonic()
        time.sleep(0.6)
        client.socket.send(frame(Opcode.BINARY, HEARTBEAT))
        assert client.socket.receive_frame() == (Opcode.BINARY, HEARTBEAT)
        client.read_until(lambda: any(isinstance(event, ConnectionClosed) for event in client.events))
        assert 0.6 + 1.0 < time.monotonic() - began_s < 15


def opcode_at_end(client: RawWebSocket) -> int:
    """Read up to the close frame, and return its opcode; the server then closes the connection by itself."""
    opcode, _ = client.receive_frame()
    while opcode != Opcode.CLOSE:
        opcode, _ = client.receive_frame()
    assert client.is_closed()
    return opcode


def test_pings_alone_do_not_keep_a_connection_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway, "Settings", lambda **given: Settings(**given, handshake_timeout_ms=500))
    monkeypatch.setattr(websocket, "CLOSE_GRACE_S", 0.5)
    with run_server_in_process(tmp_path) as server, RawWebSocket(server).open() as client:
        opcode = Opcode.PONG
        deadline = time.monotonic() + 20
        while opcode != Opcode.CLOSE:
            assert time.monotonic() < deadline
            client.send(frame(Opcode.PING))
            opcode = Opcode(client.receive_frame()[0])


def test_a_stopping_server_closes_amqp_first_and_then_the_websocket(tmp_path: Path) -> None:
    with run_server(tmp_path) as server, Client(server) as client:
        began = time.monotonic()
        stopping = Thread(target=server.stop)
        stopping.start()
        client.read_until(lambda: any(isinstance(event, ConnectionClosed) for event in client.events))
        opcode, payload = client.socket.receive_frame()
        assert (opcode, int.from_bytes(payload, "big")) == (Opcode.CLOSE, CloseCode.NORMAL)
        client.socket.send(frame(Opcode.CLOSE, payload))
        assert client.socket.is_closed()
        stopping.join()
        assert time.monotonic() - began < 4
        server.start()
