"""A search of a partitioned entity goes on without the fragments of a failed store, and names them."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.partitioned_namespace import (
    FRAGMENTS,
    fragment_of_message,
    one_per_fragment,
    partitioned_namespace,
    send_all,
)
from twinbus.testing import in_virtual_time


@in_virtual_time
@pytest.mark.parametrize("kind", ["fails", "hangs"])
async def test_the_fragments_of_a_failed_store_are_named_and_the_others_are_searched(kind: str) -> None:
    async with partitioned_namespace() as orders:
        await send_all(orders.client, one_per_fragment())
        outage = orders.namespace.outage
        if kind == "fails":
            await orders.probe_store(1)
        else:
            outage.hang_store(1)
        inspector = orders.factory.create_message_inspector("orders")
        pages = [page async for page in inspector.search_pages()]
        found = {fragment_of_message(message) for page in pages for message in page.messages}
        unavailable = {fragment for page in pages for fragment in page.unavailable_fragments}
        assert unavailable == {1, 5, 9, 13}
        assert found == set(range(FRAGMENTS)) - unavailable
        outage.restore()
        await asyncio.sleep(60)
        assert {fragment_of_message(message) async for message in inspector.search()} == set(range(FRAGMENTS))


@in_virtual_time
async def test_a_bulk_operation_names_the_fragments_that_it_could_not_search() -> None:
    async with partitioned_namespace() as orders:
        await send_all(orders.client, one_per_fragment())
        await orders.probe_store(2)
        progress = await orders.factory.create_message_inspector("orders").delete(filter="1 = 1")
        assert progress.unavailable_fragments == {2, 6, 10, 14}
        assert progress.done_count == FRAGMENTS - 4
