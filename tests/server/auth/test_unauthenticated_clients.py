"""A client without a key or token gets only the resources that it needs to authenticate."""

from __future__ import annotations

import asyncio
import itertools
import socket
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest

from tests.support.raw_client import LinkRefused, connect_raw
from twinbus.amqp.codec.frames import AMQP_HEADER, frame
from twinbus.amqp.codec.performatives import Open, Transfer
from twinbus.amqp.events import ConnectionClosed
from twinbus.amqp.message import Properties, build, value
from twinbus.amqp.sasl import Credentials
from twinbus.amqp.settings import Limits
from twinbus.amqp.terminus import Source
from twinbus.server.amqp.gateway import UNAUTHENTICATED_INPUT_BYTES, unauthenticated_limits

if TYPE_CHECKING:
    from tests.support.raw_client import RawClient
    from tests.support.server_process import ServerProcess
    from twinbus.amqp.receiver import Receiver

LIMITS = unauthenticated_limits(Limits())
LIMIT_EXCEEDED = "amqp:resource-limit-exceeded"


async def attach(client: RawClient, count: int, address: str = "$cbs") -> list[Receiver]:
    return [await client.attach_receiver(address) for _ in range(count)]


async def put_token(client: RawClient, server: ServerProcess, queue: str) -> None:
    audience = f"sb://{server.host}/{queue}"
    properties = {"operation": "put-token", "type": "servicebus.windows.net:sastoken", "name": audience}
    answer = await client.request_status("$cbs", properties, server.token(queue))
    assert answer["status-code"] == 202


@pytest.mark.parametrize("sasl", [True, False])
async def test_the_links_of_an_unauthenticated_client_are_limited(server: ServerProcess, sasl: bool) -> None:  # noqa: FBT001
    async with connect_raw(server, Credentials.anonymous(), sasl=sasl) as client:
        await attach(client, LIMITS.max_links)
        with pytest.raises(LinkRefused, match=LIMIT_EXCEEDED):
            await attach(client, 1)


async def test_a_token_raises_the_limits(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server, Credentials.anonymous()) as client:
        await put_token(client, server, queue)
        await attach(client, LIMITS.max_links + 10, queue)


async def test_a_key_raises_the_limits(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        await attach(client, LIMITS.max_links + 10, queue)


async def test_the_refused_attaches_of_an_unauthenticated_client_are_limited(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server, Credentials.anonymous()) as client:
        for _ in range(LIMITS.max_attaches):
            with pytest.raises(LinkRefused, match="amqp:unauthorized-access"):
                await attach(client, 1, queue)
        client.session.attach_receiver("one more", source=Source(address=queue))
        assert await client.close_condition() == LIMIT_EXCEEDED


async def test_the_sessions_of_an_unauthenticated_client_are_limited(server: ServerProcess) -> None:
    async with connect_raw(server, Credentials.anonymous()) as client:
        for _ in range(LIMITS.max_sessions):  # with its first session, one more than allowed
            client.peer.connection.begin_session()
        assert await client.close_condition() == LIMIT_EXCEEDED


async def test_the_size_of_a_token_is_limited(server: ServerProcess) -> None:
    async with connect_raw(server, Credentials.anonymous()) as client:
        link = await client.attach_sender("$cbs")
        assert link.remote_attach is not None
        assert link.remote_attach.max_message_size == 65_536
        assert await client.send(link, build(body=value("x" * 70_000))) == "amqp:link:message-size-exceeded"


async def test_a_token_request_with_thousands_of_elements_is_refused(server: ServerProcess) -> None:
    async with connect_raw(server, Credentials.anonymous()) as client:
        link = await client.attach_sender("$cbs")
        request = build(
            properties=Properties(message_id="1", reply_to="x"),
            application_properties={"operation": "put-token"},
            body=value([[]] * 2_000),
        )
        assert await client.send(link, request) is not None


async def test_the_partial_messages_of_an_unauthenticated_client_are_limited(server: ServerProcess) -> None:
    async with connect_raw(server, Credentials.anonymous()) as client:
        links = [await client.attach_sender("$cbs") for _ in range(30)]
        for number, link in enumerate(links):
            begun = Transfer(handle=link.handle, delivery_id=number, delivery_tag=b"t", message_format=0, more=True)
            client.peer.connection.write(frame(link.session.channel, begun.encode() + b"x" * 50_000))
        assert await client.close_condition() == LIMIT_EXCEEDED


async def test_the_input_of_all_unauthenticated_clients_is_limited_and_logins_still_work(
    server: ServerProcess, queue: str
) -> None:
    async with AsyncExitStack() as stack:
        unauthenticated = []
        for _ in range(UNAUTHENTICATED_INPUT_BYTES // 1_000_000 + 4):
            client = await stack.enter_async_context(connect_raw(server, Credentials.anonymous()))
            unauthenticated.append((client, [await client.attach_sender("$cbs") for _ in range(20)]))
        for client, links in unauthenticated:
            for number, link in enumerate(links):
                begun = Transfer(handle=link.handle, delivery_id=number, delivery_tag=b"t", message_format=0, more=True)
                client.peer.connection.write(frame(link.session.channel, begun.encode() + b"x" * 50_000))
        closing = [asyncio.ensure_future(client.wait_for_event(ConnectionClosed)) for client, _ in unauthenticated]
        stack.callback(lambda: [task.cancel() for task in closing])
        for task in itertools.islice(asyncio.as_completed(closing), 4):
            end = await task
            assert end.error is not None
            assert end.error.condition == LIMIT_EXCEEDED
            assert f"hold more than {UNAUTHENTICATED_INPUT_BYTES} bytes of input together" in str(end.error.description)
        honest = await stack.enter_async_context(connect_raw(server, Credentials.anonymous()))
        await put_token(honest, server, queue)
        link = await honest.attach_sender(queue)
        assert await honest.send(link, build(body=value("x" * 100_000))) is None


def test_an_idle_timeout_that_is_too_short_is_refused(server: ServerProcess) -> None:
    with socket.create_connection((server.host, server.amqp_port), timeout=10) as client:
        client.sendall(AMQP_HEADER + frame(0, Open(container_id="c", idle_time_out=1).encode()))
        received = b""
        while b"amqp:not-allowed" not in received:
            data = client.recv(10_000)
            assert data, received
            received += data
        assert b"an idle-time-out of 1 ms is too short: ask for 1000 ms or more" in received
