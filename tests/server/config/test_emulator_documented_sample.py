"""The sample of the emulator's documentation works unchanged, with programs written for the emulator."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusAuthenticationError
from azure.servicebus.management import ServiceBusAdministrationClient

from tests.support.server_process import run_server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.server_process import ServerProcess

SAMPLE = Path(__file__).with_name("emulator_sample.json")
CONNECTION_STRING = (
    "Endpoint=sb://localhost;SharedAccessKeyName=RootManageSharedAccessKey;"
    "SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;"
)
TOPIC = "topic.1"


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with run_server(tmp_path_factory.mktemp("emulator"), f"--config={SAMPLE}", "--emulator-key", name=None) as server:
        yield server


def connection_string(server: ServerProcess) -> str:
    """The documented connection string, with the address of `server`, since tests use free ports."""
    return CONNECTION_STRING.replace("localhost", f"{server.host}:{server.amqp_port}")


@pytest.fixture
def client(emulator: ServerProcess) -> Iterator[ServiceBusClient]:
    with ServiceBusClient.from_connection_string(connection_string(emulator), retry_total=0) as client:
        yield client


def receive_exactly(client: ServiceBusClient, subscription: str, count: int) -> list[Any]:
    """Receive `count` messages of a subscription, and check that it has no more."""
    with client.get_subscription_receiver(TOPIC, subscription) as receiver:
        messages = receiver.receive_messages(max_message_count=count, max_wait_time=5) if count else []
        for message in messages:
            receiver.complete_message(message)
        assert receiver.peek_messages(max_message_count=1) == []
    assert len(messages) == count
    return messages


def test_a_message_goes_through_its_queue(client: ServiceBusClient) -> None:
    with client.get_queue_sender("queue.1") as sender:
        sender.send_messages(ServiceBusMessage("Hello, Azure Service Bus!"))
    with client.get_queue_receiver("queue.1") as receiver:
        (message,) = receiver.receive_messages(max_message_count=1, max_wait_time=5)
        assert str(message) == "Hello, Azure Service Bus!"
        receiver.complete_message(message)


def test_a_message_reaches_the_subscriptions_whose_filters_match(client: ServiceBusClient) -> None:
    by_system_properties = ServiceBusMessage(
        "1",
        content_type="application/text",
        correlation_id="id1",
        subject="subject1",
        message_id="msgid1",
        reply_to="someQueue",
        reply_to_session_id="sessionId",
        session_id="session1",
        to="xyz",
    )
    by_own_property = ServiceBusMessage("2", application_properties={"prop1": "value1"})
    by_expression = ServiceBusMessage("4", message_id="123456", application_properties={"userProp1": "value1"})
    with client.get_topic_sender(TOPIC) as sender:
        sender.send_messages([by_own_property, by_expression, ServiceBusMessage("none")])
        sender.send_messages(by_system_properties)
    assert [str(message) for message in receive_exactly(client, "subscription.1", 1)] == ["1"]
    assert [str(message) for message in receive_exactly(client, "subscription.2", 1)] == ["2"]
    assert {str(message) for message in receive_exactly(client, "subscription.3", 4)} == {"1", "2", "4", "none"}
    (changed,) = receive_exactly(client, "subscription.4", 1)
    assert (str(changed), changed.to) == ("4", "Entity")


def test_entities_have_the_properties_of_the_file(emulator: ServerProcess) -> None:
    queue = emulator.request("GET", "queue.1", expected=200)
    described = dict(re.findall(r"<(?:\w+:)?(\w+)>([^<>]+)</", queue))
    properties = json.loads(SAMPLE.read_text())["UserConfig"]["Namespaces"][0]["Queues"][0]["Properties"]
    for name, value in properties.items():
        if value != "":
            assert described[name] == (str(value).lower() if isinstance(value, bool) else str(value))


def test_an_administration_client_needs_the_port_of_https_and_the_authority(emulator: ServerProcess) -> None:
    port = emulator._ports["https"]  # noqa: SLF001  # only this test needs the port
    address = connection_string(emulator).replace(f":{emulator.amqp_port}", f":{port}")
    with ServiceBusAdministrationClient.from_connection_string(address, connection_verify=emulator.ca_file) as client:
        assert client.get_queue("queue.1").max_delivery_count == 3


def test_the_servers_own_key_is_valid_too(emulator: ServerProcess) -> None:
    assert emulator.key != "SAS_KEY_VALUE"
    with (
        ServiceBusClient.from_connection_string(emulator.connection_string, retry_total=0) as client,
        client.get_queue_receiver("queue.1") as receiver,
    ):
        assert receiver.peek_messages() == []


def test_without_the_option_the_emulator_key_is_refused(tmp_path: Path) -> None:
    with (
        run_server(tmp_path, f"--config={SAMPLE}", name=None) as server,
        ServiceBusClient.from_connection_string(connection_string(server), retry_total=0) as client,
        pytest.raises(ServiceBusAuthenticationError),
        client.get_queue_sender("queue.1") as sender,
    ):
        sender.send_messages(ServiceBusMessage("no"))
