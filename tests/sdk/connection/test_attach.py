"""Handshake of the azure-servicebus client: open, begin, put-token at $cbs, and attach to the entity."""

from __future__ import annotations

import asyncio

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient as AsyncServiceBusClient

from tests.sdk.connection.recording_server import CBS, RecordingServer, address_of, audience_of, run_recording_server
from twinbus.amqp.events import (
    AttachRequested,
    ConnectionClosed,
    ConnectionOpened,
    LinkDetached,
    SaslInitReceived,
    SessionBegun,
)
from twinbus.amqp.message import Section


def connection_string(port: int) -> str:
    return (
        f"Endpoint=sb://localhost:{port};SharedAccessKeyName=reader;SharedAccessKey=c2VjcmV0;"
        "UseDevelopmentEmulator=true"
    )


def send_with_the_sync_client(port: int) -> None:
    with (
        ServiceBusClient.from_connection_string(connection_string(port), retry_total=0) as client,
        client.get_queue_sender("orders") as sender,
    ):
        sender.send_messages(ServiceBusMessage("an order"))


async def send_with_the_aio_client(port: int) -> None:
    async with (
        AsyncServiceBusClient.from_connection_string(connection_string(port), retry_total=0) as client,
        client.get_queue_sender("orders") as sender,
    ):
        await sender.send_messages(ServiceBusMessage("an order"))


def receive_with_the_sync_client(port: int) -> list[object]:
    with (
        ServiceBusClient.from_connection_string(connection_string(port), retry_total=0) as client,
        client.get_queue_receiver("orders") as receiver,
    ):
        return list(receiver.receive_messages(max_wait_time=1))


async def receive_with_the_aio_client(port: int) -> list[object]:
    async with (
        AsyncServiceBusClient.from_connection_string(connection_string(port), retry_total=0) as client,
        client.get_queue_receiver("orders") as receiver,
    ):
        return list(await receiver.receive_messages(max_wait_time=1))


def assert_reached(server: RecordingServer, port: int, *, as_receiver: bool) -> None:
    """Assert the handshake that all these clients perform, in order."""
    assert [init.mechanism for init in server.events_of(SaslInitReceived)] == ["ANONYMOUS"]
    assert [opened.open.hostname for opened in server.events_of(ConnectionOpened)] == ["localhost"]
    assert len(server.events_of(SessionBegun)) == 1
    entity = f"amqps://localhost:{port}/orders"
    attached = [(address_of(request.attach), request.attach.role) for request in server.events_of(AttachRequested)]
    assert attached == [(CBS, True), (CBS, False), (entity, as_receiver)]
    assert [audience_of(request) for request in server.token_requests] == [f"sb://localhost:{port}/orders"]
    assert server.token_requests[0].lookup(Section.APPLICATION_PROPERTIES, "operation") == "put-token"
    assert str(server.token_requests[0].value).startswith("SharedAccessSignature sr=")
    assert len(server.events_of(LinkDetached)) == len(attached)
    assert len(server.events_of(ConnectionClosed)) == 1


async def wait_until_closed(server: RecordingServer) -> None:
    """Wait for the end of the connection, because the SDK does not wait for the answer to its close."""
    async with asyncio.timeout(10):
        await server.peer.lost


@pytest.mark.parametrize("kind", ["sync", "aio"])
async def test_a_sender_attaches_to_its_queue(kind: str) -> None:
    async with run_recording_server() as (port, records):
        if kind == "sync":
            await asyncio.to_thread(send_with_the_sync_client, port)
        else:
            await send_with_the_aio_client(port)
        await wait_until_closed(records[0])
    assert len(records) == 1
    assert_reached(records[0], port, as_receiver=False)
    sent = records[0].sent_to[f"amqps://localhost:{port}/orders"]
    assert [message.data for message in sent] == [[b"an order"]]


@pytest.mark.parametrize("kind", ["sync", "aio"])
async def test_a_receiver_attaches_to_its_queue(kind: str) -> None:
    async with run_recording_server() as (port, records):
        if kind == "sync":
            received = await asyncio.to_thread(receive_with_the_sync_client, port)
        else:
            received = await receive_with_the_aio_client(port)
        await wait_until_closed(records[0])
    assert received == []
    assert len(records) == 1
    assert_reached(records[0], port, as_receiver=True)
