"""The API lists connections with their links, locks and sessions, and closes one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from tests.support.server_process import wait_until

if TYPE_CHECKING:
    from tests.server.api.api_client import ApiClient
    from tests.support.server_process import ServerProcess


def links_to(api: ApiClient, address: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the id of the connection and the link, for all links to an address."""
    found = []
    for connection in api.read("connections?top=1000")["connections"]:
        response = api.get(f"connections/{connection['id']}")
        links = response.content["links"] if response.status == 200 else []
        found += [(connection["id"], link) for link in links if link["address"] == address]
    return found


def test_a_connection_is_shown_with_its_client_and_its_messages(
    server: ServerProcess, queue: str, api: ApiClient, sdk: ServiceBusClient
) -> None:
    with sdk.get_queue_sender(queue) as sender:
        sender.send_messages([ServiceBusMessage("one"), ServiceBusMessage("two")])
        ((connection_id, link),) = links_to(api, queue)
        shown = api.read(f"connections/{connection_id}")
    assert (link["role"], link["messages"], link["unsettled"]) == ("sender", 2, 0)
    assert shown["client"].startswith("127.0.0.")
    assert "python" in shown["product"].lower()
    assert (shown["keys"], shown["protocol"], shown["tls"]) == ([server.key_name], "amqp", None)
    assert (shown["received_messages"], shown["sent_messages"]) == (2, 0)
    assert shown["received_bytes"] > 500
    assert shown["sent_bytes"] > 500


def test_a_lock_is_shown_with_its_holder_and_not_with_its_token(
    queue: str, api: ApiClient, sdk: ServiceBusClient
) -> None:
    with sdk.get_queue_sender(queue) as sender, sdk.get_queue_receiver(queue) as receiver:
        sender.send_messages([ServiceBusMessage("one"), ServiceBusMessage("two")])
        (message,) = receiver.receive_messages(max_message_count=1, max_wait_time=10)
        ((connection_id, link),) = [found for found in links_to(api, queue) if found[1]["role"] == "receiver"]
        response = api.get(f"locks/{queue}")
        (lock,) = response.content["locks"]
        assert lock["sequence_number"] == message.sequence_number
        assert lock["holder"]["connection_id"] == connection_id
        assert lock["holder"]["link"] == link["name"]
        assert lock["locked_since"] < lock["locked_until"]
        assert str(message.lock_token) not in response.text
        assert link["receive_mode"] == "peek-lock"
        assert api.read(f"connections/{connection_id}")["lock_count"] == 1
        receiver.complete_message(message)
        wait_until(lambda: api.read(f"locks/{queue}")["locks"] == [])


def test_locks_of_the_dead_letter_queue_are_listed_in_pages(queue: str, api: ApiClient, sdk: ServiceBusClient) -> None:
    with sdk.get_queue_sender(queue) as sender, sdk.get_queue_receiver(queue) as receiver:
        sender.send_messages([ServiceBusMessage(str(number)) for number in range(5)])
        received: list[Any] = []
        while len(received) < 5:
            received += receiver.receive_messages(max_message_count=5, max_wait_time=10)
        for message in received:
            receiver.dead_letter_message(message)
    with sdk.get_queue_receiver(queue, sub_queue="deadletter") as dead_letters:
        locked: list[Any] = []
        while len(locked) < 5:
            locked += dead_letters.receive_messages(max_message_count=5, max_wait_time=10)
        numbers, after = [], ""
        while True:
            page = api.read(f"locks/{queue}/$deadletterqueue?top=2{after}")
            numbers += [lock["sequence_number"] for lock in page["locks"]]
            if page["next"] is None:
                break
            after = f"&after={page['next']}"
        assert numbers == sorted(message.sequence_number for message in locked)
        assert api.read(f"locks/{queue}")["locks"] == []


def test_a_session_is_shown_with_its_holder(server: ServerProcess, api: ApiClient, sdk: ServiceBusClient) -> None:
    queue = server.create_queue(RequiresSession="true")
    with sdk.get_queue_sender(queue) as sender:
        sender.send_messages([ServiceBusMessage("x", session_id=name) for name in ("alpha", "beta", "gamma")])
    with (
        sdk.get_queue_receiver(queue, session_id="beta") as receiver,
        sdk.get_queue_receiver(queue, session_id="alpha"),
    ):
        receiver.receive_messages(max_message_count=1, max_wait_time=10)
        first = api.read(f"sessions/{queue}?top=1")
        (alpha,) = first["sessions"]
        (beta,) = api.read(f"sessions/{queue}?top=1&after={first['next']}")["sessions"]
        assert (alpha["session_id"], alpha["locked_messages"]) == ("alpha", 0)
        assert (beta["session_id"], beta["locked_messages"]) == ("beta", 1)
        held = {link["session_id"]: connection_id for connection_id, link in links_to(api, queue)}
        assert beta["holder"]["connection_id"] == held["beta"]
        (lock,) = api.read(f"locks/{queue}")["locks"]
        assert lock["session_id"] == "beta"
        assert lock["locked_until"] == beta["locked_until"]


def test_a_closed_connection_ends_with_an_error_that_says_why(
    server: ServerProcess, queue: str, api: ApiClient, sdk: ServiceBusClient, caplog: pytest.LogCaptureFixture
) -> None:
    with sdk.get_queue_receiver(queue) as receiver:
        receiver.receive_messages(max_wait_time=0.1)
        ((connection_id, _),) = links_to(api, queue)
        assert api.request("DELETE", f"/$api/v1/connections/{connection_id}").status == 204
        wait_until(lambda: api.get(f"connections/{connection_id}").status == 404)
        with pytest.raises(ServiceBusError):
            receiver.receive_messages(max_wait_time=5)
    assert "amqp:connection:forced" in caplog.text
    assert "the connection was closed by an administrator of the namespace" in caplog.text
    assert f"connection={connection_id}" in server.log
    gone = api.request("DELETE", f"/$api/v1/connections/{connection_id}")
    assert (gone.status, gone.error) == (
        404,
        f"there is no connection {connection_id!r}: it is closed, or its process does not answer",
    )


def test_connections_are_listed_in_pages(server: ServerProcess, queue: str, api: ApiClient) -> None:
    clients = [ServiceBusClient.from_connection_string(server.connection_string) for _ in range(3)]
    senders = [client.get_queue_sender(queue) for client in clients]
    for sender in senders:
        sender.send_messages(ServiceBusMessage("hello"))
    listed, after = [], ""
    while True:
        page = api.read(f"connections?top=1{after}")
        listed += [connection["id"] for connection in page["connections"]]
        if page["next"] is None:
            break
        after = f"&after={page['next']}"
    assert {connection_id for connection_id, _ in links_to(api, queue)} <= set(listed)
    assert len(listed) == len(set(listed)) >= 3
    for client in clients:
        client.close()
