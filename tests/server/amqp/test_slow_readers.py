"""A client that asks for much and reads nothing makes the server hold little; when it reads, it gets everything."""

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
from twinbus.server.amqp.client_connection import MAX_BROWSE_LINKS, Gateway

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
HELD_BYTES = 24_000_000
"""What a server may hold for a client: 16 reads of a megabyte, the socket's high-water mark, and what is under way."""
SETTLED_S = 0.3


class Held:
    """What the server holds for its clients."""

    def __init__(self) -> None:
        self.peers: list[Peer] = []

    @property
    def bytes(self) -> int:
        return sum(one.connection.queued_bytes + one.transport.get_write_buffer_size() for one in self.peers)

    def most(self) -> int:
        """The most there was until nothing has changed for a while."""
        most, last, since = 0, -1, time.monotonic()
        while time.monotonic() - since < SETTLED_S:
            now = self.bytes
            if now != last:
                last, since = now, time.monotonic()
            most = max(most, now)
            time.sleep(0.002)
        return most


@pytest.fixture(scope="module")
def held() -> Held:
    return Held()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, held: Held) -> Iterator[InProcessServer]:
    make_client = Gateway.make_client_connection

    def recorded(gateway: Gateway, peer: Peer) -> ClientConnection:
        held.peers.append(peer)
        return make_client(gateway, peer)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Gateway, "make_client_connection", recorded)
        with run_server_in_process(tmp_path_factory.mktemp("server")) as here:
            yield here


@pytest.fixture
def queue(server: InProcessServer) -> str:
    name = server.create_queue()
    for _ in range(MESSAGES):
        headers = {"Authorization": server.token(name)}
        server.request("POST", f"{name}/messages", "x" * MESSAGE_BYTES, expected=201, headers=headers)
    return name


class Blind:
    """A client that reads only when it is told to."""

    def __init__(self, server: InProcessServer) -> None:
        settings = Settings(container_id="blind", limits=Limits(incoming_window=100_000))
        self.connection = Connection.client(settings, Credentials.plain(server.key_name, server.key), now=0.0)
        self.events: list[Event] = []
        self._names = itertools.count()
        self._socket = socket.create_connection((server.host, server.amqp_port), timeout=20)
        self.read_until(lambda: any(isinstance(one, ConnectionOpened) for one in self.events))
        self.session = self.connection.begin_session()

    def say(self) -> None:
        self._socket.sendall(self.connection.data_to_send())

    def read_until(self, holds: Callable[[], bool]) -> None:
        self.say()
        while not holds():
            data = self._socket.recv(1_048_576)
            assert data, "the server has closed the connection"
            self.events += self.connection.receive_data(data, now=0.0)
            self.say()

    def attach_receiver(self, address: str, *, credit: int, copy: bool = False) -> Receiver:
        source = Source(address=address, distribution_mode="copy" if copy else None)
        link = self.session.attach_receiver(f"in {next(self._names)}", source=source, target=Target(address="answers"))
        link.grant(credit)
        return link

    def received(self, link: Receiver | None = None) -> list[bytes]:
        told = [one for one in self.events if isinstance(one, DeliveriesReceived) and link in (None, one.link)]
        return [delivery.payload for one in told for delivery in one.deliveries]

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def blind(server: InProcessServer) -> Iterator[Blind]:
    client = Blind(server)
    yield client
    client.close()


def test_peeks_of_a_client_that_reads_no_answers_wait(blind: Blind, queue: str, held: Held) -> None:
    blind.attach_receiver(f"{queue}/$management", credit=PEEKS)
    requests = blind.session.attach_sender("out", target=Target(address=f"{queue}/$management"))
    requests.ignores_credit = True
    blind.read_until(lambda: len([one for one in blind.events if isinstance(one, AttachConfirmed)]) == 2)
    for number in range(PEEKS):
        requests.send(
            build(
                properties=Properties(message_id=f"{number}", reply_to="answers"),
                application_properties={"operation": "com.microsoft:peek-message"},
                body=value({"from-sequence-number": 1, "message-count": Int(100)}),
            )
        )
    blind.say()
    assert 1_000_000 < held.most() < 8_000_000  # all answers together have more than 30
    blind.read_until(lambda: len(blind.received()) == PEEKS)
    answers = [Message(payload) for payload in blind.received()]
    assert {one.lookup(Section.APPLICATION_PROPERTIES, "statusCode") for one in answers} == {200}
    ids = [one.properties.correlation_id for one in answers if one.properties is not None]
    assert ids == [f"{number}" for number in range(PEEKS)]


def test_browse_links_of_a_client_that_reads_nothing_share_a_few_reads(blind: Blind, queue: str, held: Held) -> None:
    links = [blind.attach_receiver(queue, credit=1_000, copy=True) for _ in range(LINKS)]
    blind.say()
    assert 1_000_000 < held.most() < HELD_BYTES  # all messages for all of them have 60,000,000
    blind.read_until(lambda: len(blind.received()) == LINKS * MESSAGES)
    assert [len(blind.received(link)) for link in links] == [MESSAGES] * LINKS


def test_a_connection_has_so_many_browse_links_and_no_more(blind: Blind, server: InProcessServer) -> None:
    empty = server.create_queue()
    for _ in range(MAX_BROWSE_LINKS + 1):
        blind.attach_receiver(empty, credit=1, copy=True)
    blind.read_until(lambda: any(isinstance(one, LinkDetached) for one in blind.events))
    (refused,) = [one for one in blind.events if isinstance(one, LinkDetached)]
    assert refused.error is not None
    assert refused.error.condition == "amqp:resource-limit-exceeded"
    blind.events.clear()
    next(iter(blind.session.links.values())).detach()
    blind.read_until(lambda: any(isinstance(one, LinkDetached) for one in blind.events))
    blind.attach_receiver(empty, credit=1, copy=True)
    blind.read_until(lambda: any(isinstance(one, AttachConfirmed) for one in blind.events))
    (confirmed,) = [one for one in blind.events if isinstance(one, AttachConfirmed)]
    assert confirmed.attach.source is not None
