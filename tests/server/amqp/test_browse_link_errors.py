"""A browse link that cannot be is refused with what is wrong; one whose queue goes is told so; no right, no link."""

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

NO_NUMBERS = [-1, "1", b"1", 1.0, True, None, [1], {"a": 1}, Described(Symbol("x"), "1"), -(2**63)]
NAMES = ["fragment", "from_sequence_number", "to_sequence_number"]


@pytest.mark.parametrize("name", NAMES)
async def test_a_filter_that_is_no_whole_number_is_refused_by_name(
    server: ServerProcess, queue: str, name: str
) -> None:
    async with connect_raw(server) as client:
        await send_orders(client, queue, [1])
        for value in NO_NUMBERS:
            with pytest.raises(LinkRefused, match=r"com\.microsoft:argument-error") as caught:
                await browse(client, queue, **{name: value})
            assert f"twinbus:{name.replace('_', '-')}" in caught.value.text
        assert message_ids(await client.drain(await browse(client, queue))) == order_ids(1)


@pytest.mark.parametrize("fragment", [1, 15, 2**31, 2**63 - 1])
async def test_a_fragment_that_is_not_there_is_refused(server: ServerProcess, queue: str, fragment: int) -> None:
    async with connect_raw(server) as client:
        with pytest.raises(LinkRefused, match=r"com\.microsoft:argument-error") as caught:
            await browse(client, queue, fragment=fragment)
        assert str(fragment) in caught.value.text


@pytest.mark.parametrize("name", ["twinbus:from", "apache.org:selector-filter:string", "x" * 5_000, SESSION])
async def test_a_filter_that_browse_links_do_not_have_is_refused(server: ServerProcess, queue: str, name: str) -> None:
    """Who filters must not get what was to be left out."""
    source = Source(address=queue, distribution_mode="copy", filter={name: "a"})
    async with connect_raw(server) as client:
        with pytest.raises(LinkRefused, match=r"com\.microsoft:argument-error") as caught:
            await client.attach_receiver(queue, source=source)
        assert name[:40] in caught.value.text
        assert "twinbus:from-sequence-number" in caught.value.text


async def test_one_session_cannot_be_browsed(server: ServerProcess) -> None:
    queue = server.create_queue(RequiresSession="true")
    source = Source(address=queue, distribution_mode="copy", filter={SESSION: "a"})
    async with connect_raw(server) as client:
        with pytest.raises(LinkRefused, match=r"com\.microsoft:argument-error") as caught:
            await client.attach_receiver(queue, source=source)
        assert SESSION in caught.value.text
        await accept_session(client, queue, "a")


@pytest.mark.parametrize("mode", ["move", None])
async def test_any_other_distribution_mode_takes_messages(server: ServerProcess, queue: str, mode: str | None) -> None:
    source = Source(address=queue, distribution_mode=mode)
    async with connect_raw(server) as client:
        await send_orders(client, queue, [1])
        taken = await client.attach_receiver(queue, source=source, settled=True)
        assert message_ids(await client.receive(taken)) == order_ids(1)
        assert server.message_counts(queue) == (0, 0)


async def test_a_queue_that_is_not_there_is_not_found(server: ServerProcess) -> None:
    async with connect_raw(server) as client:
        with pytest.raises(LinkRefused, match="amqp:not-found"):
            await browse(client, "nowhere")


@pytest.mark.parametrize("sub_queue", ["", "/$DeadLetterQueue"], ids=["queue", "dead letters"])
async def test_a_queue_that_is_deleted_ends_its_browsers(server: ServerProcess, queue: str, sub_queue: str) -> None:
    async with connect_raw(server) as client:
        hungry, idle = await browse(client, queue + sub_queue), await browse(client, queue + sub_queue)
        hungry.grant(10)
        server.delete_queue(queue)
        assert await client.detach_condition(hungry) == "amqp:not-found"
        assert await client.detach_condition(idle) == "amqp:not-found"
        with pytest.raises(LinkRefused, match="amqp:not-found"):
            await browse(client, queue + sub_queue)


@pytest.mark.parametrize("sub_queue", ["", "/$DeadLetterQueue"], ids=["queue", "dead letters"])
@pytest.mark.parametrize("status", ["Disabled", "ReceiveDisabled"])
async def test_a_queue_that_is_disabled_ends_its_browsers_until_it_is_active_again(
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


async def test_a_queue_that_is_disabled_for_sending_is_browsed_on(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        await send_orders(client, queue, [1, 2])
        browser = await browse(client, queue)
        assert message_ids(await client.receive(browser)) == order_ids(1)
        set_status(server, queue, "SendDisabled")
        assert message_ids(await client.receive(browser)) == order_ids(2)


async def test_a_browser_that_leaves_or_vanishes_harms_nobody(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        async with connect_raw(server) as vanishing:
            left, cut = await browse(vanishing, queue), await browse(vanishing, queue)
            left.grant(10)
            cut.grant(10)
            await vanishing.detach(left)
            vanishing.peer.transport.abort()
            await vanishing.wait_until_closed()
        staying = await browse(client, queue)
        staying.grant(10)
        await send_orders(client, queue, [1, 2])
        await client.wait_until(lambda: len(client.received(staying)) == 2)
        assert server.message_counts(queue) == (2, 0)


async def test_browsing_needs_the_right_to_listen(tmp_path: Path) -> None:
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
