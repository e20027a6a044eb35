"""Records conversations of real peers over loopback for the corpus: python -m tests.fuzz.record_corpus.

The clients are qpid-proton and the Azure SDK for Python; the servers are qpid-proton and a small server on our engine.
Each conversation becomes two files, NAME.client.bin and NAME.server.bin, with the bytes that each end sent. Keys and
passwords are dummies. This command is needed only to record the corpus again: the fuzzer reads the files.

Owns: the scripts of these conversations. `synthetic_conversations` has those that no available peer would hold.
"""

# ruff: noqa: ANN401  # objects of proton

from __future__ import annotations

import asyncio
import collections
import platform
import socket
import sys
import threading
import uuid
from typing import TYPE_CHECKING, Any
from unittest import mock

from azure.servicebus import ServiceBusClient, ServiceBusMessage
from proton import Condition, LinkException
from proton import Message as ProtonMessage
from proton.handlers import MessagingHandler, TransactionHandler
from proton.reactor import AtLeastOnce, AtMostOnce, Container
from proton.utils import BlockingConnection

from tests.fuzz.corpus import FOLDER, write
from tests.fuzz.synthetic_conversations import CLIENTS, SERVERS
from twinbus.amqp.aio import listen
from twinbus.amqp.codec.composite import Composite
from twinbus.amqp.connection import Connection
from twinbus.amqp.events import AttachRequested, CreditGranted, DeliveriesReceived, SaslInitReceived, SendsUpdated
from twinbus.amqp.message import Message, Properties, build, value
from twinbus.amqp.outcomes import ACCEPTED, Declare, Declared, Rejected
from twinbus.amqp.receiver import Receiver
from twinbus.amqp.sender import Sender
from twinbus.amqp.settings import Limits, Settings
from twinbus.amqp.terminus import Source, Target
from twinbus.amqp.types import Int

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.amqp.aio import Peer
    from twinbus.amqp.delivery import IncomingDelivery
    from twinbus.amqp.events import Event

TIMEOUT_S = 10
SMALL_FRAMES = 512
SETTINGS = Settings(container_id="recorded", limits=Limits(enforce_credit=False))


class RecordingProxy:
    """Proxy for one connection that records the bytes of both ends."""

    def __init__(self, server_port: int) -> None:
        self.sent_by_client = bytearray()
        self.sent_by_server = bytearray()
        self._server_port = server_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._forward, daemon=True)
        self._thread.start()

    def _forward(self) -> None:
        client, _ = self._listener.accept()
        server = socket.create_connection(("127.0.0.1", self._server_port))
        back = threading.Thread(target=_copy, args=(server, client, self.sent_by_server), daemon=True)
        back.start()
        _copy(client, server, self.sent_by_client)
        back.join(TIMEOUT_S)
        client.close()
        server.close()

    def save(self, name: str) -> None:
        """Wait for the end of the conversation and write it to the corpus as `name`."""
        self._thread.join(TIMEOUT_S)
        self._listener.close()
        machine = f"anonymous@{socket.gethostname()}".encode()  # proton sends the host name
        write(name, self.sent_by_client.replace(machine, machine[:10].ljust(len(machine), b"x")), self.sent_by_server)
        sys.stdout.write(f"{name}: {len(self.sent_by_client)} + {len(self.sent_by_server)} bytes\n")


def _copy(source: socket.socket, target: socket.socket, recorded: bytearray) -> None:
    try:
        while data := source.recv(65_536):
            recorded += data
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:  # the Azure SDK disconnects without waiting for the last answers
        return


# --- servers ----------------------------------------------------------------------------------------------------------


class ProtonServer(MessagingHandler):
    """A queue for every address, on qpid-proton. An address that starts with "no" is refused."""

    def __init__(self) -> None:
        super().__init__(prefetch=10)
        self.queues: dict[str | None, collections.deque[Any]] = collections.defaultdict(collections.deque)
        self.port = 0
        self.is_listening = threading.Event()

    def on_start(self, event: Any) -> None:
        acceptor = event.container.acceptor("127.0.0.1", 0)
        self.port = acceptor._selectable.getsockname()[1]  # noqa: SLF001  # the binding has no public attribute for it
        self.is_listening.set()

    def on_link_opening(self, event: Any) -> None:
        link = event.link
        address = link.remote_source.address if link.is_sender else link.remote_target.address
        if address and address.startswith("no"):
            link.condition = Condition("amqp:not-found", "there is no such queue")
            link.close()
            return
        link.source.copy(link.remote_source)
        link.target.copy(link.remote_target)

    def on_message(self, event: Any) -> None:
        self.queues[event.link.target.address].append(event.message)

    def on_sendable(self, event: Any) -> None:
        self.pump(event.link)

    def on_link_flow(self, event: Any) -> None:
        if event.link.is_sender:
            self.pump(event.link)

    def pump(self, link: Any) -> None:
        queue = self.queues[link.source.address]
        while link.credit > 0 and queue:
            link.send(queue.popleft())
        if link.drain_mode:
            link.drained()


class TwinbusServer:
    """A queue for every address, on our engine, with $cbs for the Azure SDK and a coordinator for proton."""

    def __init__(self, peer: Peer) -> None:
        self.connection = peer.connection
        self.queues: dict[object, collections.deque[bytes]] = collections.defaultdict(collections.deque)
        self.senders: dict[object, Sender] = {}

    def on_writable(self) -> None:
        """Do nothing: small conversations never fill a socket."""

    def on_event(self, event: Event) -> None:
        if isinstance(event, SaslInitReceived):
            self.connection.send_sasl_outcome()
        elif isinstance(event, AttachRequested):
            self.accept_link(event)
        elif isinstance(event, DeliveriesReceived):
            for delivery in event.deliveries:
                self.accept_delivery(event.link, delivery)
        elif isinstance(event, CreditGranted):
            self.pump(event.link)
        elif isinstance(event, SendsUpdated) and not event.settled:
            assert isinstance(event.state, Composite)
            is_rejected = isinstance(event.state, Rejected)  # the SDK expects the outcome back without its error
            event.link.settle(event.deliveries, Rejected() if is_rejected else event.state)

    def accept_link(self, event: AttachRequested) -> None:
        link, attach = event.link, event.attach
        link.accept()
        if isinstance(link, Receiver):
            link.context = attach.target.address if isinstance(attach.target, Target) else "coordinator"
            link.keep_credit(100)
        elif isinstance(link, Sender) and isinstance(attach.source, Source):
            link.context = attach.source.address
            self.senders[link.context] = link
            if str(link.context).endswith("filled"):
                self.queues[link.context].extend(build(body=value(f"message {number}")) for number in range(3))

    def accept_delivery(self, link: Receiver, delivery: IncomingDelivery) -> None:
        message = Message(delivery.payload)
        if isinstance(message.value, Declare):
            link.settle([delivery], Declared(txn_id=b"transaction-1"))
            return
        link.settle([delivery], ACCEPTED)
        if link.context == "$cbs":
            assert message.properties is not None
            answer = Properties(correlation_id=message.properties.message_id)
            status = {"status-code": Int(202), "status-description": "Accepted"}
            self.queues["$cbs"].append(build(properties=answer, application_properties=status, body=value(None)))
        else:
            self.queues[link.context].append(delivery.payload)
        if link.context in self.senders:
            self.pump(self.senders[link.context])

    def pump(self, link: Sender) -> None:
        queue = self.queues[link.context]
        for _ in range(min(link.sendable, len(queue))):
            link.send(queue.popleft(), uuid.uuid4().bytes)
        if link.drain_requested:
            link.drained()


def serve_proton() -> int:
    server = ProtonServer()
    threading.Thread(target=Container(server).run, daemon=True).start()
    server.is_listening.wait(TIMEOUT_S)
    return server.port


def serve_twinbus() -> int:
    port: list[int] = []
    is_listening = threading.Event()

    async def serve() -> None:
        listener = await listen(TwinbusServer, lambda now: Connection.server(SETTINGS, now=now))
        port.append(listener.port)
        is_listening.set()
        await asyncio.Event().wait()

    threading.Thread(target=lambda: asyncio.run(serve()), daemon=True).start()
    is_listening.wait(TIMEOUT_S)
    return port[0]


# --- clients ----------------------------------------------------------------------------------------------------------


def connect(port: int, **options: Any) -> Any:
    return BlockingConnection(f"127.0.0.1:{port}", timeout=TIMEOUT_S, **options)


def proton_sends(port: int) -> None:
    connection = connect(port)
    sender = connection.create_sender("orders")
    for number in range(3):
        sender.send(ProtonMessage(body=f"order {number}", id=number, properties={"colour": "red"}))
    sender.close()
    connection.close()


def proton_sends_settled(port: int) -> None:
    connection = connect(port)
    sender = connection.create_sender("orders", options=AtMostOnce())
    for number in range(3):
        sender.send(ProtonMessage(body=[number, {"a": 1.5}]))
    connection.close()


def proton_receives(port: int) -> None:
    connection = connect(port)
    sender = connection.create_sender("stock", options=AtLeastOnce())
    for number in range(5):
        sender.send(ProtonMessage(body=f"item {number}"))
    receiver = connection.create_receiver("stock", credit=5)
    receiver.receive()
    receiver.accept()
    receiver.receive()
    receiver.reject()
    receiver.receive()
    receiver.release(delivered=False)
    receiver.receive()
    receiver.release(delivered=True)
    receiver.close()
    connection.close()


def proton_drains(port: int) -> None:
    connection = connect(port)
    sender = connection.create_sender("few")
    sender.send(ProtonMessage(body="the only one"))
    receiver = connection.create_receiver("few", credit=0)
    receiver.link.drain(5)
    receiver.receive()
    receiver.accept()
    connection.wait(lambda: receiver.link.credit == 0, msg="drained")
    connection.close()


def proton_sends_in_pieces(port: int) -> None:
    connection = connect(port, max_frame_size=SMALL_FRAMES)
    sender = connection.create_sender("large")
    sender.send(ProtonMessage(body=b"x" * 1500))
    receiver = connection.create_receiver("large", credit=1)
    receiver.receive()
    receiver.accept()
    connection.close()


def proton_attaches_many(port: int) -> None:
    connection = connect(port)
    links = [connection.create_sender(f"q{number}", name=f"s{number}") for number in range(4)]
    for sender in links:
        sender.send(ProtonMessage(body="one of many"))
    receivers = [connection.create_receiver(f"q{number}", credit=2, name=f"r{number}") for number in range(4)]
    for receiver in receivers:
        receiver.receive()
        receiver.accept()
    for link in (*links, *receivers):
        link.close()
    connection.close()


def proton_is_refused(port: int) -> None:
    connection = connect(port)
    try:
        connection.create_sender("nowhere")
    except LinkException:
        connection.create_sender("somewhere").close()
    connection.close()


class Transacting(MessagingHandler, TransactionHandler):
    """Sends two messages in a transaction and commits it, then one more and aborts it."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self.port = port
        self.is_second = False

    def on_start(self, event: Any) -> None:
        self.container = event.container
        self.connection = event.container.connect(f"127.0.0.1:{self.port}", reconnect=False)
        self.sender = event.container.create_sender(self.connection, "ledger")
        self.container.declare_transaction(self.connection, handler=self)

    def on_transaction_declared(self, event: Any) -> None:
        event.transaction.send(self.sender, ProtonMessage(body="debit"))
        event.transaction.send(self.sender, ProtonMessage(body="credit"))
        if self.is_second:
            event.transaction.abort()
        else:
            event.transaction.commit()

    def on_transaction_committed(self, _event: Any) -> None:
        self.is_second = True
        self.container.declare_transaction(self.connection, handler=self)

    def on_transaction_aborted(self, _event: Any) -> None:
        self.connection.close()


def proton_transacts(port: int) -> None:
    Container(Transacting(port)).run()


def azure_client(port: int) -> ServiceBusClient:
    return ServiceBusClient.from_connection_string(
        f"Endpoint=sb://localhost:{port};SharedAccessKeyName=dummy;SharedAccessKey=ZHVtbXk=;UseDevelopmentEmulator=true",
        retry_total=0,
    )


def azure_sends(port: int) -> None:
    with azure_client(port) as client, client.get_queue_sender("orders") as sender:
        sender.send_messages(ServiceBusMessage("one", application_properties={"colour": "red"}, subject="s"))
        sender.send_messages([ServiceBusMessage("two"), ServiceBusMessage(b"three")])


def azure_receives(port: int) -> None:
    with azure_client(port) as client, client.get_queue_receiver("filled") as receiver:
        for message, settle in zip(
            receiver.receive_messages(max_message_count=3, max_wait_time=3),
            (receiver.complete_message, receiver.abandon_message, receiver.dead_letter_message),
            strict=True,
        ):
            settle(message)


# --- recording --------------------------------------------------------------------------------------------------------


def record(name: str, server_port: int, run_client: Callable[[int], None]) -> None:
    proxy = RecordingProxy(server_port)
    run_client(proxy.port)
    proxy.save(name)


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob("*.bin"):
        old.unlink()
    proton, ours = serve_proton(), serve_twinbus()
    record("proton-sends", proton, proton_sends)
    record("proton-sends-settled", proton, proton_sends_settled)
    record("proton-receives", proton, proton_receives)
    record("proton-drains", proton, proton_drains)
    record("proton-sends-in-pieces", proton, proton_sends_in_pieces)
    record("proton-attaches-many", proton, proton_attaches_many)
    record("proton-is-refused", proton, proton_is_refused)
    record("proton-and-twinbus", ours, proton_receives)
    record("proton-transacts", ours, proton_transacts)
    with mock.patch.object(platform, "platform", return_value="Linux"):  # not the machine on which it was recorded
        record("azure-sends", ours, azure_sends)
        record("azure-receives", ours, azure_receives)
    write_synthetic()


def write_synthetic() -> None:
    for name, data in CLIENTS.items():
        write(f"synthetic-{name}", data, b"")
    for name, data in SERVERS.items():
        write(f"synthetic-{name}", b"", data)


if __name__ == "__main__":
    main()
