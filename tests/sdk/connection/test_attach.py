"""The unmodified azure-servicebus client opens, begins, shows its token to $cbs and attaches to its entity."""

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


def assert_reached(record: RecordingServer, port: int, *, as_receiver: bool) -> None:
    """What every one of these clients does, in its order."""
    assert [init.mechanism for init in record.events_of(SaslInitReceived)] == ["ANONYMOUS"]
    assert [opened.open.hostname for opened in record.events_of(ConnectionOpened)] == ["localhost"]
    assert len(record.events_of(SessionBegun)) == 1
    entity = f"amqps://localhost:{port}/orders"
    attached = [(address_of(request.attach), request.attach.role) for request in record.events_of(AttachRequested)]
    assert attached == [(CBS, True), (CBS, False), (entity, as_receiver)]
    assert [audience_of(request) for request in record.token_requests] == [f"sb://localhost:{port}/orders"]
    assert record.token_requests[0].lookup(Section.APPLICATION_PROPERTIES, "operation") == "put-token"
    assert str(record.token_requests[0].value).startswith("SharedAccessSignature sr=")
    assert len(record.events_of(LinkDetached)) == len(attached)
    assert len(record.events_of(ConnectionClosed)) == 1


async def gone(record: RecordingServer) -> None:
    """The SDK does not wait for the answer to its close: the server may still be at it."""
    async with asyncio.timeout(10):
        await record.peer.lost


@pytest.mark.parametrize("kind", ["sync", "aio"])
async def test_a_sender_reaches_its_queue(kind: str) -> None:
    async with run_recording_server() as (port, records):
        if kind == "sync":
            await asyncio.to_thread(send_with_the_sync_client, port)
        else:
            await send_with_the_aio_client(port)
        await gone(records[0])
    assert len(records) == 1
    assert_reached(records[0], port, as_receiver=False)
    sent = records[0].sent_to[f"amqps://localhost:{port}/orders"]
    assert [message.data for message in sent] == [[b"an order"]]


@pytest.mark.parametrize("kind", ["sync", "aio"])
async def test_a_receiver_reaches_its_queue(kind: str) -> None:
    async with run_recording_server() as (port, records):
        if kind == "sync":
            received = await asyncio.to_thread(receive_with_the_sync_client, port)
        else:
            received = await receive_with_the_aio_client(port)
        await gone(records[0])
    assert received == []
    assert len(records) == 1
    assert_reached(records[0], port, as_receiver=True)
