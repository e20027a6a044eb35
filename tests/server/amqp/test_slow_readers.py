"""The server buffers little for a client that requests much and reads nothing; once it reads, it gets everything."""

from __future__ import annotations

import itertools
import socket
import time
from typing import TYPE_CHECKING

import pytest

from tests.support.in_process_server import run_server_in_process
from twinbus.amqp.connection import Connection
from twinbus.amqp.events import AttachConfirmed, ConnectionOpened, DeliveriesReceived, LinkDetached
from twinbus.amqp.message import Message, Properties, Section, build, value
from twinbus.amqp.sasl import Credentials
from twinbus.amqp.settings import Limits, Settings
from twinbus.amqp.terminus import Source, Target
from twinbus.amqp.types import Int
from twinbus.server.amqp.client_connection import MAX_BROWSE_LINKS
from twinbus.server.amqp.gateway import Gateway

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.in_process_server import InProcessServer
    from twinbus.amqp.aio import Peer
    from twinbus.amqp.events import Event
    from twinbus.amqp.receiver import Receiver
    from twinbus.server.amqp.client_connection import ClientConnection

MESSAGES = 10
MESSAGE_BYTES = 100_000
PEEKS = 60
LINKS = 60
MAX_BUFFERED_BYTES = 24_000_000
"""The limit of buffered data per client: 16 reads of 1 MB, the high-water mark of its socket, and data in transit."""
STABLE_S = 0.3


class ServerBuffers:
    """The bytes that the server buffers for its clients."""

    def __init__(self) -> None:
        self.peers: list[Peer] = []

    @property
    def bytes(self) -> int:
        return sum(peer.connection.queued_bytes + peer.transport.get_write_buffer_size() for peer in self.peers)

    def peak(self) -> int:
        """Return the largest number of bytes seen until it has not changed for a while."""
        most, last, since = 0, -1, time.monotonic()
        while time.monotonic() - since < STABLE_S:
            now = self.bytes
            if now != last:
                last, since = now, time.monotonic()
            most = max(most, now)
            time.sleep(0.002)
        return most


@pytest.fixture(scope="module")
def buffers() -> ServerBuffers:
    return ServerBuffers()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, buffers: ServerBuffers) -> Iterator[InProcessServer]:
    make_client = Gateway.make_client_connection

    def recorded(gateway: Gateway, peer: Peer) -> ClientConnection:
        buffers.peers.append(peer)
        return make_client(gateway, peer)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Gateway, "make_client_connection", recorded)
        with run_server_in_process(tmp_path_factory.mktemp("server")) as running:
            yield running


@pytest.fixture
def queue(server: InProcessServer) -> str:
    name = server.create_queue()
    for _ in range(MESSAGES):
        headers = {"Authorization": server.token(name)}
        server.request("POST", f"{name}/messages", "x" * MESSAGE_BYTES, expected=201, headers=headers)
    return name


class PausedClient:
    """A client that reads only when the test tells it to."""

    def __init__(self, server: InProcessServer) -> None:
        settings = Settings(container_id="blind", limits=Limits(incoming_window=100_000))
        self.connection = Connection.client(settings, Credentials.plain(server.key_name, server.key), now=0.0)
        self.events: list[Event] = []
        self._names = itertools.count()
        self._socket = socket.create_connection((server.host, server.amqp_port), timeout=20)
        self.read_until(lambda: any(isinstance(event, ConnectionOpened) for event in self.events))
        self.session = self.connection.begin_session()

    def flush(self) -> None:
        self._socket.sendall(self.connection.data_to_send())

    def read_until(self, holds: Callable[[], bool]) -> None:
        self.flush()
        while not holds():
            data = self._socket.recv(1_048_576)
            assert data, "the server has closed the connection"
            self.events += self.connection.receive_data(data, now=0.0)
            self.flush()

    def attach_receiver(self, address: str, *, credit: int, copy: bool = False) -> Receiver:
        source = Source(address=address, distribution_mode="copy" if copy else None)
        link = self.session.attach_receiver(f"in {next(self._names)}", source=source, target=Target(address="answers"))
        link.grant(credit)
        return link

    def received(self, link: Receiver | None = None) -> list[bytes]:
        batches = [
            event for event in self.events if isinstance(event, DeliveriesReceived) and link in (None, event.link)
        ]
        return [delivery.payload for event in batches for delivery in event.deliveries]

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def paused_client(server: InProcessServer) -> Iterator[PausedClient]:
    client = PausedClient(server)
    yield client
    client.close()


def test_peek_requests_of_a_client_that_reads_no_responses_wait(
    paused_client: PausedClient, queue: str, buffers: ServerBuffers
) -> None:
    paused_client.attach_receiver(f"{queue}/$management", credit=PEEKS)
    requests = paused_client.session.attach_sender("out", target=Target(address=f"{queue}/$management"))
    requests.ignores_credit = True
    paused_client.read_until(
        lambda: len([event for event in paused_client.events if isinstance(event, AttachConfirmed)]) == 2
    )
    for number in range(PEEKS):
        requests.send(
            build(
                properties=Properties(message_id=f"{number}", reply_to="answers"),
                application_properties={"operation": "com.microsoft:peek-message"},
                body=value({"from-sequence-number": 1, "message-count": Int(100)}),
            )
        )
    paused_client.flush()
    assert 1_000_000 < buffers.peak() < 8_000_000  # all responses together have more than 30 MB
    paused_client.read_until(lambda: len(paused_client.received()) == PEEKS)
    answers = [Message(payload) for payload in paused_client.received()]
    assert {answer.lookup(Section.APPLICATION_PROPERTIES, "statusCode") for answer in answers} == {200}
    ids = [answer.properties.correlation_id for answer in answers if answer.properties is not None]
    assert ids == [f"{number}" for number in range(PEEKS)]


def test_browse_links_of_a_client_that_reads_nothing_buffer_only_a_few_reads(
    paused_client: PausedClient, queue: str, buffers: ServerBuffers
) -> None:
    links = [paused_client.attach_receiver(queue, credit=1_000, copy=True) for _ in range(LINKS)]
    paused_client.flush()
    assert 1_000_000 < buffers.peak() < MAX_BUFFERED_BYTES  # all messages for all links have 60,000,000 bytes
    paused_client.read_until(lambda: len(paused_client.received()) == LINKS * MESSAGES)
    assert [len(paused_client.received(link)) for link in links] == [MESSAGES] * LINKS


def test_the_number_of_browse_links_of_a_connection_is_limited(
    paused_client: PausedClient, server: InProcessServer
) -> None:
    empty = server.create_queue()
    for _ in range(MAX_BROWSE_LINKS + 1):
        paused_client.attach_receiver(empty, credit=1, copy=True)
    paused_client.read_until(lambda: any(isinstance(event, LinkDetached) for event in paused_client.events))
    (refused,) = [event for event in paused_client.events if isinstance(event, LinkDetached)]
    assert refused.error is not None
    assert refused.error.condition == "amqp:resource-limit-exceeded"
    paused_client.events.clear()
    next(iter(paused_client.session.links.values())).detach()
    paused_client.read_until(lambda: any(isinstance(event, LinkDetached) for event in paused_client.events))
    paused_client.attach_receiver(empty, credit=1, copy=True)
    paused_client.read_until(lambda: any(isinstance(event, AttachConfirmed) for event in paused_client.events))
    (confirmed,) = [event for event in paused_client.events if isinstance(event, AttachConfirmed)]
    assert confirmed.attach.source is not None
