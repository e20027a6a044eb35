"""Expensive rules: a client with the Listen right can add them, but they do not block other clients."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError
from azure.servicebus.management import AuthorizationRule

from tests.sdk_administration.admin import AdministrationClient

if TYPE_CHECKING:
    from collections.abc import Iterator

    from azure.servicebus import ServiceBusReceiver, ServiceBusSender

    from tests.support.server_process import ServerProcess

SECRET = "a-secret-of-the-listener-and-of-the-sender="
LIKES = " OR ".join(["t LIKE '%_b%'"] * 56)
"""As many conditions as fit in a filter."""
PATTERNS = " OR ".join(["t LIKE p"] * 2)
LONG_PATTERN = "%" + "_".join(chr(1_000 + number) for number in range(60)) + "%"
SIZE = 30_000
MAX_WAIT_S = 1.5
"""Upper limit of a wait. If rules were not evaluated in slices, the server would block for many seconds."""


@pytest.fixture
def topic(server: ServerProcess, name: str) -> Iterator[str]:
    admin = AdministrationClient("sync", server)
    rights = {"listener": ["Listen"], "sender": ["Send"]}
    keys = [
        AuthorizationRule(key_name=key, rights=list(granted), primary_key=SECRET, secondary_key=SECRET)
        for key, granted in rights.items()
    ]
    admin.create_topic(name, authorization_rules=keys)
    admin.create_subscription(name, "s")
    admin.create_queue(f"{name}-honest")
    yield name
    admin.end()


def client(server: ServerProcess, key: str, path: str) -> ServiceBusClient:
    endpoint = server.connection_string.split(";")[0]
    development = ";UseDevelopmentEmulator=true" if "UseDevelopmentEmulator" in server.connection_string else ""
    return ServiceBusClient.from_connection_string(
        f"{endpoint};SharedAccessKeyName={key};SharedAccessKey={SECRET};EntityPath={path}{development}"
    )


def add_rule(receiver: ServiceBusReceiver, name: str, expression: str) -> None:
    """Add a rule over AMQP, like the rule manager of the SDKs for other languages."""
    rule = {"rule-name": name, "rule-description": {"sql-filter": {"expression": expression}}}

    def check_status(status: int, _message: object, description: object, **_: object) -> None:
        if status != 200:
            raise ServiceBusError(str(description))

    receiver._mgmt_request_response_with_retry(b"com.microsoft:add-rule", rule, check_status)  # noqa: SLF001


def send_until(stopped: threading.Event, sender: ServiceBusSender) -> list[float]:
    """Send until stopped; return how long each send took."""
    waits: list[float] = []
    while not stopped.is_set():
        started = time.monotonic()
        sender.send_messages(ServiceBusMessage("honest"))
        waits.append(time.monotonic() - started)
    return waits


def test_expensive_rules_of_a_listener_do_not_delay_other_clients(server: ServerProcess, topic: str) -> None:
    stopped, waits = threading.Event(), list[float]()
    with (
        client(server, "listener", topic) as listening,
        client(server, "sender", topic) as sending,
        ServiceBusClient.from_connection_string(server.connection_string) as honest,
        listening.get_subscription_receiver(topic, "s") as receiver,
        sending.get_topic_sender(topic) as attacker,
        honest.get_queue_sender(f"{topic}-honest") as sender,
    ):
        for number in range(10):
            add_rule(receiver, f"likes{number}", LIKES)
        for number in range(3):
            add_rule(receiver, f"patterns{number}", PATTERNS)
        sender.send_messages(ServiceBusMessage("first"))
        thread = threading.Thread(target=lambda: waits.extend(send_until(stopped, sender)))
        thread.start()
        for number in range(3):
            properties: dict[str | bytes, Any] = {"t": "a" * SIZE, "p": LONG_PATTERN, "n": number}
            attacker.send_messages(ServiceBusMessage("", application_properties=properties))
        stopped.set()
        thread.join()
        received = receiver.receive_messages(max_message_count=3, max_wait_time=5)
        while len(received) < 3:
            received += receiver.receive_messages(max_message_count=3, max_wait_time=5)
    assert max(waits) < MAX_WAIT_S
    assert [message.application_properties[b"n"] for message in received] == [0, 1, 2]  # type: ignore[index]


def test_a_rule_over_the_work_limit_is_refused(server: ServerProcess, topic: str) -> None:
    with (
        client(server, "listener", topic) as listening,
        listening.get_subscription_receiver(topic, "s") as receiver,
        pytest.raises(ServiceBusError, match=r"'dear' takes up to .* units of work"),
    ):
        add_rule(receiver, "dear", " OR ".join(["t LIKE p"] * 3))
