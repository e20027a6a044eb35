"""`pairing.entity` returns the state of an entity at once, without a request to a server."""

from __future__ import annotations

import asyncio
import datetime as dt

from tests.client.pairing.observe.fake_pair import WALL_MS, FakePair, run_scenario
from twinbus.client.pairing import EntityState
from twinbus.model.times import datetime_of


def test_x02_the_state_of_an_entity_is_read_without_a_request() -> None:
    async def scenario(pair: FakePair) -> None:
        pairing = pair.pairing
        await asyncio.sleep(100)
        pair.fail_over("orders")
        await asyncio.sleep(1)
        requests_before = list(pair.backlog.requests)
        orders = pairing.entity("ORDERS")
        assert (orders.path, orders.state, orders.why) == ("orders", EntityState.FAILED_OVER, "it is gone")
        assert orders.since == datetime_of(WALL_MS + 100_000)
        assert orders.next_ping == orders.since + dt.timedelta(seconds=1800)
        assert pairing.entities == (orders,)
        assert pair.backlog.requests == requests_before
        assert pairing.entities == (await pairing.status()).entities
        pairing.mark_path_healthy("orders")
        assert (pairing.entity("orders").state, pairing.entity("orders").why) == (EntityState.HEALTHY, None)

    run_scenario(scenario)


def test_x02_an_entity_without_sends_is_healthy_and_is_not_remembered() -> None:
    async def scenario(pair: FakePair) -> None:
        await asyncio.sleep(100)
        news = pair.pairing.entity("news")
        assert (news.path, news.state, news.why, news.fragments_down) == ("news", EntityState.HEALTHY, None, ())
        assert news.since == datetime_of(WALL_MS)
        assert pair.pairing.entities == ()

    run_scenario(scenario)
