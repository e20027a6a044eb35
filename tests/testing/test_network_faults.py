"""Network faults of a host or one of its ports: refused, hanging, slow and cut connections."""

from __future__ import annotations

import asyncio

import pytest

from tests.testing.test_network_in_memory import HOST, End, connected, turns
from twinbus.testing import Network, in_virtual_time
from twinbus.testing.loop import START_S, fake_time_loop

ALMOST = pytest.approx


def network() -> Network:
    return fake_time_loop().network


async def connect(port: int = 80) -> End:
    _, client = await asyncio.get_running_loop().create_connection(End, HOST, port)
    return client


async def serve(port: int = 80) -> list[End]:
    """Start a server; return its accepted connections."""
    ends: list[End] = []

    def make() -> End:
        ends.append(End())
        return ends[-1]

    await asyncio.get_running_loop().create_server(make, HOST, port)
    return ends


@in_virtual_time
async def test_a_refused_host_loses_its_connections_and_gets_no_new_ones() -> None:
    await serve()
    client = await connect()
    network().refuse(HOST)
    assert isinstance(await client.lost, ConnectionResetError)
    with pytest.raises(ConnectionRefusedError):
        await connect()
    network().restore(HOST)
    assert (await connect()).events == ["made"]


@in_virtual_time
async def test_bytes_in_flight_are_lost_when_a_connection_is_cut() -> None:
    client, served = await connected()
    client.transport.write(b"too late")
    served.transport.write(b"too late")
    network().cut(HOST)
    assert isinstance(await client.lost, ConnectionResetError)
    assert isinstance(await served.lost, ConnectionResetError)
    assert (client.data, served.data) == (b"", b"")


@in_virtual_time
async def test_new_connections_work_after_a_cut() -> None:
    ends = await serve()
    await connect()
    network().cut(HOST)
    client = await connect()
    client.transport.write(b"again")
    await turns()
    assert [end.data for end in ends] == [b"", b"again"]


@in_virtual_time
async def test_bytes_sent_to_a_hanging_host_arrive_when_it_resumes() -> None:
    client, served = await connected()
    network().hang(HOST)
    client.transport.write(b"are you there?")
    served.transport.write(b"and you?")
    await asyncio.sleep(3600)
    assert (client.data, served.data) == (b"", b"")
    network().restore(HOST)
    await turns()
    assert (client.data, served.data) == (b"and you?", b"are you there?")


@in_virtual_time
async def test_held_bytes_are_lost_when_the_connection_is_cut() -> None:
    client, served = await connected()
    network().hang(HOST)
    client.transport.write(b"are you there?")
    network().cut(HOST)
    network().restore(HOST)
    await client.lost
    await served.lost
    assert served.data == b""


@in_virtual_time
async def test_a_disconnect_is_not_noticed_while_the_host_hangs() -> None:
    client, served = await connected()
    network().hang(HOST)
    client.transport.write(b"enough")
    client.transport.abort()
    assert await client.lost is None
    await asyncio.sleep(3600)
    assert not served.lost.done()
    network().restore(HOST)
    await served.lost
    assert served.data == b"enough"


@in_virtual_time
async def test_a_connection_to_a_hanging_host_is_made_when_it_resumes() -> None:
    await serve()
    network().hang(HOST)
    connecting = asyncio.ensure_future(connect())
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(600):
            await asyncio.shield(connecting)
    network().restore(HOST)
    assert (await connecting).events == ["made"]


@in_virtual_time
async def test_a_pending_connection_is_refused_if_the_hanging_host_refuses() -> None:
    await serve()
    network().hang(HOST)
    connecting = asyncio.ensure_future(connect())
    await turns()
    network().refuse(HOST)
    with pytest.raises(ConnectionRefusedError):
        await connecting


@in_virtual_time
async def test_a_slow_network_delays_bytes_and_keeps_their_order() -> None:
    loop = asyncio.get_running_loop()
    (ends) = await serve()
    network().slow(HOST, 2.0)
    client = await connect()
    assert loop.time() == ALMOST(START_S + 4.0)  # a round trip
    client.transport.write(b"first ")
    await asyncio.sleep(1.9)
    assert ends[0].data == b""
    network().restore(HOST)
    client.transport.write(b"second")
    await turns()
    assert ends[0].data == b""
    await asyncio.sleep(0.2)
    assert ends[0].data == b"first second"


@in_virtual_time
async def test_a_fault_of_one_port_does_not_affect_others() -> None:
    await serve(80)
    await serve(81)
    network().refuse(HOST, 80)
    with pytest.raises(ConnectionRefusedError):
        await connect(80)
    assert (await connect(81)).events == ["made"]
    network().restore(HOST)
    assert (await connect(80)).events == ["made"]


@in_virtual_time
async def test_a_switched_off_host_accepts_connections_only_after_a_new_listen() -> None:
    await serve()
    client = await connect()
    network().switch_off(HOST)
    await client.lost
    with pytest.raises(ConnectionRefusedError):
        await connect()
    await serve()
    assert (await connect()).events == ["made"]
