"""The relay makes the faults that a campaign needs, on real sockets: each test's server answers a line with a line."""

from __future__ import annotations

import asyncio
import random
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from tests.support.relay import Direction, Endpoint, Relay

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

HOST = "127.0.0.1"
TIMEOUT_S = 5.0
NOTHING_S = 0.15


class Echo:
    """A server that answers each line with the same line."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.heard = asyncio.Event()
        self.heard_at_s = 0.0
        self.ended: list[asyncio.Event] = []
        """For each connection, in order: it has ended."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ended = asyncio.Event()
        self.ended.append(ended)
        try:
            while line := await reader.readline():
                self.lines.append(line)
                self.heard.set()
                self.heard_at_s = asyncio.get_running_loop().time()
                writer.write(line)
                await writer.drain()
        except OSError:
            pass
        finally:
            ended.set()
            writer.close()

    async def until_has(self, count: int) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while len(self.lines) < count:
                await self.heard.wait()
                self.heard.clear()


class Client:
    """One connection through the relay."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def ask(self, line: bytes = b"ask\n") -> bytes:
        self.writer.write(line)
        return await asyncio.wait_for(self.reader.readline(), TIMEOUT_S)

    async def hears_nothing(self) -> bool:
        try:
            await asyncio.wait_for(self.reader.readline(), NOTHING_S)
        except TimeoutError:
            return True
        return False


class Network:
    """The server, the relay before it, and the clients."""

    def __init__(self, echo: Echo, relay: Relay) -> None:
        self.echo = echo
        self.relay = relay
        self.clients: list[Client] = []

    async def connect(self) -> Client:
        client = Client(*await asyncio.open_connection(self.relay.host, self.relay.port))
        self.clients.append(client)
        assert await client.ask(b"hello\n") == b"hello\n"
        return client


@asynccontextmanager
async def made() -> AsyncIterator[Network]:
    echo = Echo()
    server = await asyncio.start_server(echo.serve, HOST, 0)
    async with Relay(HOST, server.sockets[0].getsockname()[1]) as relay:
        found = Network(echo, relay)
        try:
            yield found
        finally:
            for client in found.clients:
                client.writer.close()
            server.close()
    for ended in echo.ended:
        await asyncio.wait_for(ended.wait(), TIMEOUT_S)


async def test_with_responses_dropped_the_server_works_and_its_client_hears_nothing() -> None:
    async with made() as network:
        echo, relay = network.echo, network.relay
        client = await network.connect()
        relay.drop(Direction.RESPONSES)
        client.writer.write(b"ask\n")
        await echo.until_has(2)
        assert await client.hears_nothing()
        await relay.restore()
        with pytest.raises(ConnectionResetError):  # never a stream with a hole in it
            await client.ask()
        assert await (await network.connect()).ask() == b"ask\n"


async def test_with_requests_dropped_the_server_hears_nothing_and_is_not_told() -> None:
    async with made() as network:
        echo, relay = network.echo, network.relay
        client, idle = await network.connect(), await network.connect()
        relay.drop(Direction.REQUESTS)
        client.writer.write(b"ask\n")
        assert await client.hears_nothing()
        client.writer.close()
        await asyncio.sleep(NOTHING_S)
        assert len(echo.lines) == 2
        assert not echo.ended[0].is_set()
        await relay.restore()
        await asyncio.wait_for(echo.ended[0].wait(), TIMEOUT_S)
        assert await idle.ask() == b"ask\n"  # nothing of it was dropped


async def test_a_delay_holds_for_its_direction() -> None:
    async with made() as network:
        client, loop = await network.connect(), asyncio.get_running_loop()
        network.relay.delay(2 * NOTHING_S, frozenset({Direction.RESPONSES}))
        assert await client.ask() == b"ask\n"
        assert round(loop.time() - network.echo.heard_at_s, 3) >= 2 * NOTHING_S  # the loop's clock has milliseconds


async def test_a_half_open_connection_is_closed_to_one_end_and_the_other_learns_it_later() -> None:
    async with made() as network:
        echo, relay = network.echo, network.relay
        client = await network.connect()
        relay.half_open(Endpoint.SERVER)
        await asyncio.wait_for(echo.ended[0].wait(), TIMEOUT_S)
        client.writer.write(b"ask\n")
        assert await client.hears_nothing()
        assert await (await network.connect()).ask() == b"ask\n"
        await relay.restore()
        assert await client.hears_nothing()
        with pytest.raises(ConnectionResetError):
            await client.ask()


async def test_a_half_open_connection_may_stay_open_at_the_server() -> None:
    async with made() as network:
        echo, relay = network.echo, network.relay
        client = await network.connect()
        relay.half_open(Endpoint.CLIENT)
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(client.reader.read(), TIMEOUT_S)
        await relay.restore()
        await asyncio.sleep(NOTHING_S)
        assert not echo.ended[0].is_set()


async def test_a_connection_is_reset_right_after_a_request_that_the_server_gets() -> None:
    async with made() as network:
        echo, relay = network.echo, network.relay
        rng, heard = random.Random(1), 0
        for _ in range(10):
            client = await network.connect()
            before = len(echo.lines)
            relay.reset_after_requests(rng, 1.0)
            with pytest.raises(ConnectionResetError):
                await client.ask()
            await relay.restore()
            await asyncio.wait_for(echo.ended[-1].wait(), TIMEOUT_S)
            heard += len(echo.lines) - before
        assert heard > 2  # some were reset before the server read them


async def test_with_connections_refused_those_that_are_open_work() -> None:
    async with made() as network:
        relay = network.relay
        client = await network.connect()
        relay.refuse()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(relay.host, relay.port)
        assert await client.ask() == b"ask\n"
        await relay.restore()
        assert await (await network.connect()).ask() == b"ask\n"
