"""Faults between two hosts, in one direction, or after some bytes, do not affect other connections."""

from __future__ import annotations

import asyncio

import pytest

from tests.testing.test_network_faults import connect, network, serve
from tests.testing.test_network_in_memory import HOST, End, connected, turns
from twinbus.testing import Direction, in_virtual_time, on_host
from twinbus.testing.loop import START_S, fake_time_loop


async def connect_from(host: str) -> End:
    with on_host(host):
        return await connect()


@in_virtual_time
async def test_a_connection_comes_from_the_host_that_made_it() -> None:
    ends = await serve()
    await connect_from("app-1")
    await connect_from("app-2")
    await turns()
    first, second = [end.transport.get_extra_info("peername")[0] for end in ends]
    assert first == network().add_host("app-1") != second == network().add_host("app-2")


@in_virtual_time
async def test_a_partition_between_two_hosts_does_not_affect_others() -> None:
    ends = await serve()
    first, second = await connect_from("app-1"), await connect_from("app-2")
    network().hang(HOST, peer="app-1")
    first.transport.write(b"1")
    second.transport.write(b"2")
    await turns()
    assert [end.data for end in ends] == [b"", b"2"]
    assert (await connect_from("app-3")).events == ["made"]
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(60):
            await connect_from("app-1")
    network().restore(HOST, peer="app-1")
    await turns()
    assert [end.data for end in ends[:2]] == [b"1", b"2"]


@in_virtual_time
async def test_a_fault_of_a_client_affects_all_its_connections() -> None:
    await serve(80)
    network().refuse("app-1")
    with pytest.raises(ConnectionRefusedError):
        await connect_from("app-1")
    assert (await connect_from("app-2")).events == ["made"]


@in_virtual_time
async def test_held_responses_are_lost_with_the_connection() -> None:
    client, served = await connected()
    network().hang(HOST, direction=Direction.FROM)
    client.transport.write(b"request")
    await turns()
    assert served.data == b"request"
    served.transport.write(b"answer")
    await asyncio.sleep(3600)
    network().cut(HOST)
    network().restore(HOST)
    await client.lost
    assert client.data == b""


@in_virtual_time
async def test_held_responses_arrive_late() -> None:
    client, served = await connected()
    network().hang(HOST, direction=Direction.FROM)
    served.transport.write(b"answer")
    await asyncio.sleep(60)
    network().restore(HOST)
    await turns()
    assert client.data == b"answer"


@in_virtual_time
async def test_responses_arrive_while_requests_are_held() -> None:
    client, served = await connected()
    network().hang(HOST, direction=Direction.TO)
    client.transport.write(b"request")
    served.transport.write(b"news")
    await turns()
    assert (client.data, served.data) == (b"news", b"")


@in_virtual_time
async def test_a_connection_is_cut_after_the_given_number_of_bytes() -> None:
    client, served = await connected()
    network().cut_after(HOST, 5)
    client.transport.write(b"123")
    await turns()
    served.transport.write(b"answers are not counted")
    await turns()
    assert not client.lost.done()
    client.transport.write(b"45678")
    assert isinstance(await client.lost, ConnectionResetError)
    assert isinstance(await served.lost, ConnectionResetError)
    assert served.data == b"12345"


@in_virtual_time
async def test_new_connections_are_cut_after_the_same_number_of_bytes_until_restored() -> None:
    ends = await serve()
    network().cut_after(HOST, 2, direction=Direction.FROM)
    for _ in range(2):
        client = await connect()
        await turns()
        ends[-1].transport.write(b"answer")
        await client.lost
        assert client.data == b"an"
    network().restore(HOST)
    client = await connect()
    await turns()
    ends[-1].transport.write(b"answer")
    await turns()
    assert client.data == b"answer"


@in_virtual_time
async def test_the_bytes_of_both_directions_cannot_be_counted_together() -> None:
    with pytest.raises(ValueError, match="one direction"):
        network().cut_after(HOST, 5, direction=Direction.BOTH)


@in_virtual_time
async def test_a_power_loss_is_not_noticed_by_the_other_end() -> None:
    ends = await serve()
    client = await connect_from("app-1")
    client.transport.write(b"lost on its way")
    network().unplug("app-1")
    await turns()
    ends[0].transport.write(b"are you there?")
    await asyncio.sleep(3600)
    assert (ends[0].data, client.data) == (b"", b"")
    assert not ends[0].lost.done()
    assert (await connect_from("app-1")).events == ["made"]  # the host was started again


@in_virtual_time
async def test_the_connections_of_a_killed_client_are_cut() -> None:
    ends = await serve()
    await connect_from("app-1")
    await turns()
    network().switch_off("app-1")
    assert isinstance(await ends[0].lost, ConnectionResetError)


@in_virtual_time
async def test_the_latency_of_the_network_delays_all_traffic() -> None:
    ends = await serve()
    network().latency_s = 0.5
    client = await connect()
    assert fake_time_loop().time() == pytest.approx(START_S + 1.0)
    client.transport.write(b"hello")
    await asyncio.sleep(0.4)
    assert ends[0].data == b""
    await asyncio.sleep(0.2)
    assert ends[0].data == b"hello"
