"""What can be wrong with a network: refused, hanging, slow, cut; of a host, or of one of its ports."""

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
    """Those who have come."""
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
    assert (await connect()).heard == ["made"]


@in_virtual_time
async def test_what_is_on_its_way_when_a_connection_is_cut_is_lost() -> None:
    client, served = await connected()
    client.transport.write(b"too late")
    served.transport.write(b"too late")
    network().cut(HOST)
    assert isinstance(await client.lost, ConnectionResetError)
    assert isinstance(await served.lost, ConnectionResetError)
    assert (client.data, served.data) == (b"", b"")


@in_virtual_time
async def test_a_cut_is_over_at_once() -> None:
    ends = await serve()
    await connect()
    network().cut(HOST)
    client = await connect()
    client.transport.write(b"again")
    await turns()
    assert [end.data for end in ends] == [b"", b"again"]


@in_virtual_time
async def test_what_is_sent_while_a_host_hangs_arrives_when_it_goes_on() -> None:
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
async def test_what_hangs_is_lost_with_its_connection() -> None:
    client, served = await connected()
    network().hang(HOST)
    client.transport.write(b"are you there?")
    network().cut(HOST)
    network().restore(HOST)
    await client.lost
    await served.lost
    assert served.data == b""


@in_virtual_time
async def test_nobody_notices_when_the_other_goes_away_while_the_host_hangs() -> None:
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
async def test_a_host_that_hangs_is_connected_to_when_it_goes_on() -> None:
    await serve()
    network().hang(HOST)
    connecting = asyncio.ensure_future(connect())
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(600):
            await asyncio.shield(connecting)
    network().restore(HOST)
    assert (await connecting).heard == ["made"]


@in_virtual_time
async def test_who_waits_for_a_host_that_hangs_is_refused_when_it_is_gone() -> None:
    await serve()
    network().hang(HOST)
    connecting = asyncio.ensure_future(connect())
    await turns()
    network().refuse(HOST)
    with pytest.raises(ConnectionRefusedError):
        await connecting


@in_virtual_time
async def test_on_a_slow_way_everything_takes_its_time_and_keeps_its_order() -> None:
    loop = asyncio.get_running_loop()
    (ends) = await serve()
    network().slow(HOST, 2.0)
    client = await connect()
    assert loop.time() == ALMOST(START_S + 4.0)  # there and back
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
async def test_a_fault_of_one_port_leaves_the_others_alone() -> None:
    await serve(80)
    await serve(81)
    network().refuse(HOST, 80)
    with pytest.raises(ConnectionRefusedError):
        await connect(80)
    assert (await connect(81)).heard == ["made"]
    network().restore(HOST)
    assert (await connect(80)).heard == ["made"]


@in_virtual_time
async def test_a_host_that_is_switched_off_serves_again_only_if_somebody_listens_again() -> None:
    await serve()
    client = await connect()
    network().switch_off(HOST)
    await client.lost
    with pytest.raises(ConnectionRefusedError):
        await connect()
    await serve()
    assert (await connect()).heard == ["made"]
