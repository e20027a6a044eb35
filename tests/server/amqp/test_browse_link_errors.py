"""Invalid browse links are refused, deleted and disabled queues detach browse links, and browsing needs Listen."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.entity_operations import (
    SESSION,
    accept_session,
    browse,
    message_ids,
    order_ids,
    send_orders,
    set_status,
)
from tests.support.in_process_server import run_server_in_process
from tests.support.raw_client import LinkRefused, connect_raw
from twinbus.amqp.sasl import Credentials
from twinbus.amqp.terminus import Source
from twinbus.amqp.types import Described, Symbol
from twinbus.server.auth.keys import Key, Right

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.server_process import ServerProcess

NOT_NUMBERS = [-1, "1", b"1", 1.0, True, None, [1], {"a": 1}, Described(Symbol("x"), "1"), -(2**63)]
FILTERS = ["fragment", "from_sequence_number", "to_sequence_number"]


@pytest.mark.parametrize("name", FILTERS)
async def test_a_filter_that_is_not_a_whole_number_is_refused_by_name(
    server: ServerProcess, queue: str, name: str
) -> None:
    async with connect_raw(server) as client:
        await send_orders(client, queue, [1])
        for value in NOT_NUMBERS:
            with pytest.raises(LinkRefused, match=r"com\.microsoft:argument-error") as caught:
                await browse(client, queue, **{name: value})
            assert f"twinbus:{name.replace('_', '-')}" in caught.value.text
        assert message_ids(await client.drain(await browse(client, queue))) == order_ids(1)


@pytest.mark.parametrize("fragment", [1, 15, 2**31, 2**63 - 1])
async def test_an_unknown_fragment_is_refused(server: ServerProcess, queue: str, fragment: int) -> None:
    async with connect_raw(server) as client:
        with pytest.raises(LinkRefused, match=r"com\.microsoft:argument-error") as caught:
            await browse(client, queue, fragment=fragment)
        assert str(fragment) in caught.value.text


@pytest.mark.parametrize("name", ["twinbus:from", "apache.org:selector-filter:string", "x" * 5_000, SESSION])
async def test_an_unknown_filter_is_refused(server: ServerProcess, queue: str, name: str) -> None:
    """Ignoring an unknown filter would deliver messages that the client wants to leave out."""
    source = Source(address=queue, distribution_mode="copy", filter={name: "a"})
    async with connect_raw(server) as client:
        with pytest.raises(LinkRefused, match=r"com\.microsoft:argument-error") as caught:
            await client.attach_receiver(queue, source=source)
        assert name[:40] in caught.value.text
        assert "twinbus:from-sequence-number" in caught.value.text


async def test_a_session_filter_on_a_browse_link_is_refused(server: ServerProcess) -> None:
    queue = server.create_queue(RequiresSession="true")
    source = Source(address=queue, distribution_mode="copy", filter={SESSION: "a"})
    async with connect_raw(server) as client:
        with pytest.raises(LinkRefused, match=r"com\.microsoft:argument-error") as caught:
            await client.attach_receiver(queue, source=source)
        assert SESSION in caught.value.text
        await accept_session(client, queue, "a")


@pytest.mark.parametrize("mode", ["move", None])
async def test_a_receiver_with_any_other_distribution_mode_consumes_messages(
    server: ServerProcess, queue: str, mode: str | None
) -> None:
    source = Source(address=queue, distribution_mode=mode)
    async with connect_raw(server) as client:
        await send_orders(client, queue, [1])
        receiver = await client.attach_receiver(queue, source=source, settled=True)
        assert message_ids(await client.receive(receiver)) == order_ids(1)
        assert server.message_counts(queue) == (0, 0)


async def test_browsing_an_unknown_queue_is_refused(server: ServerProcess) -> None:
    async with connect_raw(server) as client:
        with pytest.raises(LinkRefused, match="amqp:not-found"):
            await browse(client, "nowhere")


@pytest.mark.parametrize("sub_queue", ["", "/$DeadLetterQueue"], ids=["queue", "dead letters"])
async def test_deleting_a_queue_detaches_its_browse_links(server: ServerProcess, queue: str, sub_queue: str) -> None:
    async with connect_raw(server) as client:
        with_credit, without_credit = await browse(client, queue + sub_queue), await browse(client, queue + sub_queue)
        with_credit.grant(10)
        server.delete_queue(queue)
        assert await client.detach_condition(with_credit) == "amqp:not-found"
        assert await client.detach_condition(without_credit) == "amqp:not-found"
        with pytest.raises(LinkRefused, match="amqp:not-found"):
            await browse(client, queue + sub_queue)


@pytest.mark.parametrize("sub_queue", ["", "/$DeadLetterQueue"], ids=["queue", "dead letters"])
@pytest.mark.parametrize("status", ["Disabled", "ReceiveDisabled"])
async def test_disabling_a_queue_detaches_its_browse_links_until_it_is_active_again(
    server: ServerProcess, queue: str, status: str, sub_queue: str
) -> None:
    async with connect_raw(server) as client:
        browser = await browse(client, queue + sub_queue)
        browser.grant(10)
        set_status(server, queue, status)
        assert await client.detach_condition(browser) == "com.microsoft:entity-disabled"
        with pytest.raises(LinkRefused, match=r"com\.microsoft:entity-disabled"):
            await browse(client, queue + sub_queue)
        set_status(server, queue, "Active")
        await send_orders(client, queue, [1])
        expected = [] if sub_queue else order_ids(1)
        assert message_ids(await client.drain(await browse(client, queue + sub_queue))) == expected
        assert client.received(browser) == []


async def test_a_queue_that_is_disabled_for_sending_can_still_be_browsed(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        await send_orders(client, queue, [1, 2])
        browser = await browse(client, queue)
        assert message_ids(await client.receive(browser)) == order_ids(1)
        set_status(server, queue, "SendDisabled")
        assert message_ids(await client.receive(browser)) == order_ids(2)


async def test_a_detached_or_aborted_browse_link_does_not_disturb_others(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        async with connect_raw(server) as vanishing:
            detached, aborted = await browse(vanishing, queue), await browse(vanishing, queue)
            detached.grant(10)
            aborted.grant(10)
            await vanishing.detach(detached)
            vanishing.peer.transport.abort()
            await vanishing.wait_until_closed()
        staying = await browse(client, queue)
        staying.grant(10)
        await send_orders(client, queue, [1, 2])
        await client.wait_until(lambda: len(client.received(staying)) == 2)
        assert server.message_counts(queue) == (2, 0)


async def test_browsing_needs_the_listen_right(tmp_path: Path) -> None:
    keys = [Key("root", "c2VjcmV0")]
    keys += [Key(right.value, "c2VjcmV0", rights=frozenset({right})) for right in (Right.SEND, Right.LISTEN)]
    with run_server_in_process(tmp_path, keys=keys) as server:
        queue = server.create_queue()
        async with connect_raw(server, Credentials.plain(Right.SEND.value, "c2VjcmV0")) as client:
            await send_orders(client, queue, [1])
            with pytest.raises(LinkRefused, match="amqp:unauthorized-access"):
                await browse(client, queue)
        async with connect_raw(server, Credentials.plain(Right.LISTEN.value, "c2VjcmV0")) as client:
            assert message_ids(await client.drain(await browse(client, queue))) == order_ids(1)
