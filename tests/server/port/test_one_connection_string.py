"""One connection string, of the AMQP port, serves messaging and administration in every client."""

from __future__ import annotations

import json
import subprocess
import uuid
from typing import TYPE_CHECKING

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, TransportType
from azure.servicebus.aio import ServiceBusClient as AsyncServiceBusClient
from azure.servicebus.aio.management import ServiceBusAdministrationClient as AsyncServiceBusAdministrationClient
from azure.servicebus.management import ServiceBusAdministrationClient
from proton import Message

from tests.support.multi_process_server import run_multi_process_server
from tests.support.proton_client import TIMEOUT_S, connect_proton
from twinbus.client import BrokeredMessage, MessagingFactory
from twinbus.client.connection_string import ConnectionString
from twinbus.client.management import NamespaceManager

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.server_process import ServerProcess

WAIT_S = 20


@pytest.fixture(scope="module", params=[1, 2], ids=["one process", "two workers"])
def bus(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server of one process, which other tests share, or of two workers."""
    if request.param == 1:
        yield request.getfixturevalue("running_server")
        return
    with run_multi_process_server(tmp_path_factory.mktemp("workers"), "--stores=2", workers=2) as server:
        yield server


def new_queue() -> str:
    return f"queue-{uuid.uuid4().hex}"


def test_the_connection_string_names_the_port_of_all_protocols(bus: ServerProcess) -> None:
    parsed = ConnectionString.parse(bus.connection_string)
    assert (parsed.port, parsed.is_emulator) == (bus.amqp_port, True)


def test_the_sync_sdk_for_python_creates_a_queue_and_sends_and_receives(bus: ServerProcess) -> None:
    queue = new_queue()
    with ServiceBusAdministrationClient.from_connection_string(
        bus.connection_string, connection_verify=bus.ca_file
    ) as administration:
        administration.create_queue(queue)
        with (
            ServiceBusClient.from_connection_string(bus.connection_string) as client,
            client.get_queue_sender(queue) as sender,
            client.get_queue_receiver(queue, max_wait_time=WAIT_S) as receiver,
        ):
            sender.send_messages(ServiceBusMessage("hello"))
            (message,) = receiver.receive_messages(1)
            assert str(message) == "hello"
            receiver.complete_message(message)
        assert administration.get_queue_runtime_properties(queue).total_message_count == 0


async def test_the_aio_sdk_for_python_creates_a_queue_and_sends_and_receives(bus: ServerProcess) -> None:
    queue = new_queue()
    async with AsyncServiceBusAdministrationClient.from_connection_string(
        bus.connection_string, connection_verify=bus.ca_file
    ) as administration:
        await administration.create_queue(queue)
        async with (
            AsyncServiceBusClient.from_connection_string(bus.connection_string) as client,
            client.get_queue_sender(queue) as sender,
            client.get_queue_receiver(queue, max_wait_time=WAIT_S) as receiver,
        ):
            await sender.send_messages(ServiceBusMessage("hello"))
            (message,) = await receiver.receive_messages(1)
            assert str(message) == "hello"
            await receiver.complete_message(message)
        assert (await administration.get_queue_runtime_properties(queue)).total_message_count == 0


async def test_our_client_creates_a_queue_and_sends_and_receives(bus: ServerProcess) -> None:
    queue = new_queue()
    async with (
        NamespaceManager.from_connection_string(bus.connection_string) as manager,
        MessagingFactory.from_connection_string(bus.connection_string) as factory,
    ):
        await manager.create_queue(queue)
        client = factory.create_queue_client(queue)
        await client.send(BrokeredMessage("hello"))
        message = await client.receive(WAIT_S)
        assert message is not None
        assert message.body == b"hello"
        await client.complete(message)


def test_curl_reads_health_with_and_without_tls(bus: ServerProcess) -> None:
    for url in (f"http://{bus.host}:{bus.amqp_port}/health", f"https://{bus.host}:{bus.amqp_port}/health"):
        command = ["curl", "--silent", "--show-error", "--fail", "--max-time", "20", "--cacert", bus.ca_file, url]
        output = subprocess.run(command, capture_output=True, check=True).stdout
        assert json.loads(output)["status"] == "ok"


@pytest.mark.parametrize("tls", [False, True])
def test_proton_sends_and_receives_with_and_without_tls(bus: ServerProcess, *, tls: bool) -> None:
    queue = bus.create_queue()
    with connect_proton(bus, tls=tls, port=bus.amqp_port) as connection:
        connection.create_sender(queue).send(Message(body="hello"), timeout=TIMEOUT_S)
        receiver = connection.create_receiver(queue)
        assert receiver.receive(timeout=TIMEOUT_S).body == "hello"
        receiver.accept()


def test_the_sdk_for_python_sends_over_websockets_on_the_same_port(server: ServerProcess, queue: str) -> None:
    pytest.importorskip("websocket", reason="websocket-client: the sync client of azure-servicebus needs it")
    client = ServiceBusClient.from_connection_string(
        server.tls_connection_string,
        transport_type=TransportType.AmqpOverWebsocket,
        custom_endpoint_address=f"https://{server.host}:{server.amqp_port}",
        connection_verify=server.ca_file,
    )
    with client, client.get_queue_sender(queue) as sender:
        sender.send_messages(ServiceBusMessage("hello"))
    assert server.message_counts(queue) == (1, 0)
