"""The reply to a receiver's attach names the filters that the server applies, and no others (AMQP 1.0, 3.5.8)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.entity_operations import SESSION, browse, send_orders
from tests.support.raw_client import connect_raw
from twinbus.amqp.terminus import Source
from twinbus.amqp.types import Described, Symbol

if TYPE_CHECKING:
    from tests.support.server_process import ServerProcess
    from twinbus.amqp.receiver import Receiver

SELECTOR = "apache.org:selector-filter:string"


def confirmed_filters(link: Receiver) -> dict[str, object]:
    """Return the filters in the attach reply."""
    source = link.remote_attach.source if link.remote_attach is not None else None
    assert isinstance(source, Source)
    return {str(name): value for name, value in (source.filter or {}).items()}


@pytest.mark.parametrize("value", ["color = 'red'", Described(Symbol(SELECTOR), "color = 'red'")])
async def test_a_selector_is_not_confirmed(server: ServerProcess, queue: str, value: object) -> None:
    async with connect_raw(server) as client:
        await send_orders(client, queue, [1])
        link = await client.attach_receiver(queue, source=Source(address=queue, filter={SELECTOR: value}))
        assert confirmed_filters(link) == {}
        assert len(await client.receive(link)) == 1


async def test_only_the_session_filter_is_confirmed(server: ServerProcess) -> None:
    queue = server.create_queue(RequiresSession="true")
    async with connect_raw(server) as client:
        await send_orders(client, queue, [1], session="a")
        for session_id in (None, "b"):
            source = Source(address=queue, filter={SESSION: session_id, SELECTOR: "color = 'red'"})
            link = await client.attach_receiver(queue, source=source)
            assert confirmed_filters(link) == {SESSION: session_id or "a"}


async def test_the_range_of_a_browse_link_is_confirmed(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        link = await browse(client, queue, from_sequence_number=7)
        assert confirmed_filters(link) == {"twinbus:from-sequence-number": 7}
