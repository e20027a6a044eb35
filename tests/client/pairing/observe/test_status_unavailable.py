"""If the secondary is unavailable, `status()` returns within seconds, and unavailable counts are unknown."""

from __future__ import annotations

import asyncio

from tests.client.pairing.observe.fake_pair import QUEUE_0, QUEUE_7, FakeBacklog, FakePair, run_scenario
from twinbus.client.errors import ConnectionFailed
from twinbus.client.pairing.backlog.inspection import BacklogQueueContents


def test_with_the_secondary_down_counts_are_unknown_and_the_rest_is_reported() -> None:
    async def scenario(pair: FakePair) -> None:
        pair.fail_over("orders")
        pair.backlog.is_down = True
        status = await pair.pairing.status()
        assert [entity.path for entity in status.entities] == ["orders"]
        contents = status.backlog_queues[0].contents
        assert contents == BacklogQueueContents()
        assert status.parked is None

    run_scenario(scenario)


def test_with_a_silent_secondary_status_returns_within_five_seconds() -> None:
    async def scenario(pair: FakePair) -> None:
        pair.backlog.is_silent = True
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        status = await pair.pairing.status()
        assert loop.time() - started_s <= 5.01
        assert all(queue.contents.parked is None for queue in status.backlog_queues)

    run_scenario(scenario)


def test_if_only_the_manager_fails_the_contents_are_still_peeked() -> None:
    async def scenario(pair: FakePair) -> None:
        pair.backlog.park(QUEUE_0, "orders", count=3)

        async def refuse(_: str) -> None:
            raise ConnectionFailed("no HTTP today")

        pair.pairing.options.secondary_namespace_manager.get_queue_runtime = refuse  # type: ignore[method-assign,assignment]
        contents = (await pair.pairing.status()).backlog_queues[0].contents
        assert contents.parked is None
        assert contents.for_entities == {"orders": 3}
        assert contents.oldest is not None

    run_scenario(scenario)


def test_an_extra_queue_that_does_not_respond_is_shown() -> None:
    async def scenario(pair: FakePair) -> None:
        pair.backlog.is_down = True
        (extra,) = (await pair.pairing.status()).extra_backlog_queues
        assert extra.path == QUEUE_7

    run_scenario(scenario, backlog=FakeBacklog(queues={QUEUE_7: []}))


def test_status_works_after_the_factories_are_closed() -> None:
    async def scenario(pair: FakePair) -> None:
        await pair.pairing.close()
        assert (await pair.pairing.status()).backlog_queues[0].path == QUEUE_0

    run_scenario(scenario)
