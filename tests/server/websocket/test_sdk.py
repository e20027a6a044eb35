"""The unmodified azure-servicebus clients, sync and aio, work over WebSockets with the development CA."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, TransportType
from azure.servicebus.aio import ServiceBusClient as AsyncServiceBusClient
from azure.servicebus.exceptions import ServiceBusConnectionError

from tests.sdk.bus import body_of, receive

if TYPE_CHECKING:
    from collections.abc import Iterator

    from azure.servicebus import ServiceBusReceiver, ServiceBusSender

    from tests.support.server_process import ServerProcess

pytest.importorskip("websocket", reason="websocket-client: the sync client of azure-servicebus needs it")


def options(server: ServerProcess) -> dict[str, Any]:
    return {
        "transport_type": TransportType.AmqpOverWebsocket,
        "custom_endpoint_address": f"https://{server.host}:{server.https_port}",
        "connection_verify": server.ca_file,
        "retry_total": 0,
    }


@contextmanager
def both_ends(server: ServerProcess, queue: str) -> Iterator[tuple[ServiceBusSender, ServiceBusReceiver]]:
    connected = ServiceBusClient.from_connection_string(server.tls_connection_string, **options(server))
    with connected as client, client.get_queue_sender(queue) as sender, client.get_queue_receiver(queue) as receiver:
        yield sender, receiver


def test_the_sync_client_sends_receives_and_settles(server: ServerProcess, queue: str) -> None:
    with both_ends(server, queue) as (sender, receiver):
        sender.send_messages([ServiceBusMessage(f"order {number}") for number in range(50)])
        received = receive(receiver, 50)
        assert [body_of(message) for message in received] == [b"order %d" % number for number in range(50)]
        for message in received:
            receiver.complete_message(message)
    assert server.message_counts(queue) == (0, 0)


def test_large_messages_are_sent_and_received(server: ServerProcess, queue: str) -> None:
    body = bytes(range(256)) * 1_000
    with both_ends(server, queue) as (sender, receiver):
        for _ in range(20):
            sender.send_messages(ServiceBusMessage(body))
        assert {body_of(message) for message in receive(receiver, 20)} == {body}


def test_the_aio_client_sends_receives_and_settles(server: ServerProcess, queue: str) -> None:
    body = bytes(range(256)) * 1_000

    async def run() -> None:
        connected = AsyncServiceBusClient.from_connection_string(server.tls_connection_string, **options(server))
        async with connected as client:
            async with client.get_queue_sender(queue) as sender:
                await sender.send_messages([ServiceBusMessage(f"order {number}") for number in range(50)])
                for _ in range(40):
                    await sender.send_messages(ServiceBusMessage(body))
            async with client.get_queue_receiver(queue) as receiver:
                bodies: list[bytes] = []
                while len(bodies) < 90:
                    for message in await receiver.receive_messages(90 - len(bodies), max_wait_time=20):
                        bodies.append(body_of(message))
                        await receiver.complete_message(message)
                assert bodies == [*(b"order %d" % number for number in range(50)), *([body] * 40)]

    asyncio.run(asyncio.wait_for(run(), 60))
    assert server.message_counts(queue) == (0, 0)


def test_a_wrong_key_is_refused(server: ServerProcess, queue: str) -> None:
    wrong = server.tls_connection_string.replace(server.key, "c2VjcmV0")
    with ServiceBusClient.from_connection_string(wrong, **options(server)) as client:
        sender = client.get_queue_sender(queue)
        with pytest.raises(ServiceBusConnectionError) as refused:  # the SDK raises this for a custom endpoint
            sender.send_messages(ServiceBusMessage("x"))
        assert "the signature does not match" in str(refused.value.inner_exception)
