"""Unreachable namespaces (refused, unknown, silent or not AMQP): operations fail within their timeouts."""

from __future__ import annotations

import asyncio
import socket
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from twinbus.client import BrokeredMessage, RetryPolicy
from twinbus.client.errors import ConnectionFailed, TimedOut, may_have_happened
from twinbus.model.errors import ServiceBusError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.client.bus import Bus

KEY = "SharedAccessKeyName=Root;SharedAccessKey=c2VjcmV0"


def connection_string(address: str, *, tls: bool = False) -> str:
    return f"Endpoint=sb://{address};{KEY}" + ("" if tls else ";UseDevelopmentEmulator=true")


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@asynccontextmanager
async def run_listener(answer: bytes | None) -> AsyncIterator[int]:
    """Run a server that sends `answer` and closes the connection, or stays silent if it is None."""
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(8)
        if answer is None:
            await ended.wait()
        else:
            writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield int(server.sockets[0].getsockname()[1])
        ended.set()


async def test_a_refused_connection_fails_and_nothing_was_sent(bus: Bus) -> None:
    queue = bus.factory(connection_string(f"127.0.0.1:{free_port()}")).create_queue_client("orders")
    for use in (queue.send(BrokeredMessage("x")), queue.receive(5), queue.peek(), queue.accept_session(timeout=5)):
        with pytest.raises(ConnectionFailed, match="cannot be reached") as raised:
            await use
        assert not may_have_happened(raised.value)


@pytest.mark.parametrize("host", ["no-such-host.invalid", f"{'x' * 70}.invalid"])
async def test_an_unknown_host_raises_connection_failed(bus: Bus, host: str) -> None:
    with pytest.raises(ConnectionFailed):
        await bus.factory(connection_string(host)).create_queue_client("orders").send(BrokeredMessage("x"))


async def test_a_silent_host_takes_no_longer_than_the_operation_timeout(bus: Bus) -> None:
    async with run_listener(None) as port:
        queue = bus.factory(connection_string(f"127.0.0.1:{port}"), operation_timeout=0.5).create_queue_client("orders")
        started = time.monotonic()
        with pytest.raises(ServiceBusError) as raised:
            await queue.send(BrokeredMessage("x"))
        assert not may_have_happened(raised.value)
        with pytest.raises(TimedOut):
            await queue.send(BrokeredMessage("x"), timeout=0.1)
        assert await queue.receive(0.1) is None
        assert time.monotonic() - started < 3


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"AMQP\x00\x09\x09\x09"])
async def test_a_host_that_does_not_speak_amqp_fails_the_send(bus: Bus, answer: bytes) -> None:
    async with run_listener(answer) as port:
        queue = bus.factory(connection_string(f"127.0.0.1:{port}")).create_queue_client("orders")
        with pytest.raises(ServiceBusError) as raised:
            await queue.send(BrokeredMessage("x"))
        assert not may_have_happened(raised.value)


async def test_an_untrusted_certificate_is_refused(bus: Bus) -> None:
    factory = bus.factory(bus.server.tls_connection_string, ca_file=None)
    with pytest.raises(ConnectionFailed, match="certificate"):
        await factory.create_queue_client("orders").send(BrokeredMessage("x"))


async def test_connecting_is_retried_as_the_policy_says(bus: Bus) -> None:
    policy = RetryPolicy(max_retries=2, first_pause_s=0.1, factor=3)
    queue = bus.factory(connection_string(f"127.0.0.1:{free_port()}"), retry_policy=policy).create_queue_client(
        "orders"
    )
    started = time.monotonic()
    with pytest.raises(ConnectionFailed):
        await queue.send(BrokeredMessage("x"))
    assert 0.4 <= time.monotonic() - started < 4


async def test_a_factory_can_be_closed_while_it_connects(bus: Bus) -> None:
    async with run_listener(None) as port:
        factory = bus.factory(connection_string(f"127.0.0.1:{port}"))
        queue = factory.create_queue_client("orders")
        waiting = [asyncio.ensure_future(use) for use in (queue.send(BrokeredMessage("x")), queue.receive(60))]
        await asyncio.sleep(0.1)
        async with asyncio.timeout(3):
            await factory.close()
            outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(outcome).__name__ for outcome in outcomes] == ["ObjectClosed", "NoneType"]
