"""`status()` describes a pair: its entities, backlog queues, pumps and alarms."""

from __future__ import annotations

import asyncio
import datetime as dt
from typing import TYPE_CHECKING

import pytest

from tests.client.pairing.observe.fake_pair import (
    QUEUE_0,
    QUEUE_1,
    QUEUE_7,
    WALL_MS,
    FakeBacklog,
    FakePair,
    run_scenario,
)
from twinbus.client.pairing import EntityState, PumpState
from twinbus.client.pairing.backlog import inspection
from twinbus.client.pairing.syphon.syphon import Syphon
from twinbus.model.errors import LinkStolen, QuotaExceeded, ServiceBusError
from twinbus.model.times import datetime_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.client.pairing.syphon.pump import Pump


def test_a_fresh_pair_is_protected_and_empty() -> None:
    async def scenario(pair: FakePair) -> None:
        status = await pair.pairing.status()
        assert (status.primary, status.secondary) == ("127.0.0.1:1", "127.0.0.1:2")
        assert status.is_protected
        assert not any([status.entities, status.pumps, status.alarms, status.extra_backlog_queues])
        assert [queue.path for queue in status.backlog_queues] == [QUEUE_0, QUEUE_1]
        assert all(queue.is_in_rotation and queue.contents.parked == 0 for queue in status.backlog_queues)
        assert all(queue.contents.for_entities == {} for queue in status.backlog_queues)
        assert status.parked == 0
        assert status.spool is None

    run_scenario(scenario)


def test_the_status_of_an_entity_has_its_state_reason_start_and_next_ping() -> None:
    async def scenario(pair: FakePair) -> None:
        pair.pairing.health_of("invoices")
        await asyncio.sleep(100)
        pair.fail_over("orders")
        await asyncio.sleep(10)
        invoices, orders = (await pair.pairing.status()).entities
        assert (invoices.path, invoices.state, invoices.why) == ("invoices", EntityState.HEALTHY, None)
        assert invoices.next_ping is None
        assert (orders.path, orders.state, orders.why) == ("orders", EntityState.FAILED_OVER, "it is gone")
        assert orders.since == datetime_of(WALL_MS + 100_000)
        assert orders.next_ping == orders.since + dt.timedelta(seconds=1800)

    run_scenario(scenario)


def test_the_status_of_a_backlog_queue_has_counts_by_entity_and_the_oldest_message() -> None:
    async def scenario(pair: FakePair) -> None:
        pair.backlog.park(QUEUE_0, "orders", count=3)
        await asyncio.sleep(60)
        pair.backlog.park(QUEUE_0, "ORDERS")
        pair.backlog.park(QUEUE_0, "invoices", count=2)
        pair.backlog.park(QUEUE_0, 17)
        pair.backlog.dead_letters[QUEUE_0] = 5
        status = await pair.pairing.status()
        contents = status.backlog_queues[0].contents
        assert (contents.parked, contents.dead_lettered) == (7, 5)
        assert contents.oldest == datetime_of(WALL_MS)
        assert contents.for_entities == {"orders": 4, "invoices": 2}
        assert contents.without_destination == 1
        assert not contents.is_sample
        assert status.parked == 7

    run_scenario(scenario)


@pytest.mark.parametrize(("count", "is_sample"), [(1_000, False), (1_001, True)])
def test_counts_by_entity_are_a_sample_above_a_thousand_messages(count: int, *, is_sample: bool) -> None:
    async def scenario(pair: FakePair) -> None:
        pair.backlog.park(QUEUE_1, "orders", count=count)
        contents = (await pair.pairing.status()).backlog_queues[1].contents
        assert contents.parked == count
        assert contents.for_entities == {"orders": 1_000}
        assert contents.is_sample is is_sample

    run_scenario(scenario)


def test_status_peeks_messages_only_up_to_a_limit_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection, "PEEK_BATCH_SIZE", 10)
    monkeypatch.setattr(inspection, "MAX_PEEKED_BYTES", 100)

    async def scenario(pair: FakePair) -> None:
        pair.backlog.park(QUEUE_0, "orders", count=50)
        contents = (await pair.pairing.status()).backlog_queues[0].contents
        assert (contents.parked, contents.for_entities, contents.is_sample) == (50, {"orders": 10}, True)

    run_scenario(scenario)


def test_a_queue_out_of_the_rotation_has_a_reason_and_a_start_time() -> None:
    async def scenario(pair: FakePair) -> None:
        await asyncio.sleep(30)
        rotation = pair.pairing.rotation
        rotation.note_failure(rotation.queues[1], QuotaExceeded("it is full"))
        await asyncio.sleep(5)
        kept, pulled = (await pair.pairing.status()).backlog_queues
        assert (kept.is_in_rotation, kept.why_out, kept.out_since) == (True, None, None)
        assert (pulled.is_in_rotation, pulled.why_out) == (False, "it is full")
        assert pulled.out_since == datetime_of(WALL_MS + 30_000)

    run_scenario(scenario)


def test_a_queue_is_in_the_rotation_again_after_its_cool_down() -> None:
    async def scenario(pair: FakePair) -> None:
        rotation = pair.pairing.rotation
        rotation.note_failure(rotation.queues[1], QuotaExceeded("it is full"))
        await asyncio.sleep(31)  # its cool-down is 30 s
        assert rotation.choose(tried=rotation.queues[:1]) is rotation.queues[1], "it is used again"
        _, pulled = (await pair.pairing.status()).backlog_queues
        assert (pulled.is_in_rotation, pulled.why_out, pulled.out_since) == (True, None, None)

    run_scenario(scenario)


def test_r022_an_extra_backlog_queue_is_shown_while_it_has_messages() -> None:
    async def scenario(pair: FakePair) -> None:
        assert (await pair.pairing.status()).extra_backlog_queues == ()
        pair.backlog.park(QUEUE_7, "orders", count=2)
        (extra,) = (await pair.pairing.status()).extra_backlog_queues
        assert (extra.path, extra.contents.parked, extra.contents.for_entities) == (QUEUE_7, 2, {"orders": 2})

    run_scenario(scenario, backlog=FakeBacklog(queues={QUEUE_7: []}))


def become_active(pump: Pump) -> None:
    pump.is_active = True


def be_displaced(pump: Pump) -> None:
    pump.inactive_reason = LinkStolen("another host has it")


def fail(pump: Pump) -> None:
    pump.inactive_reason = ServiceBusError("no answer")


@pytest.mark.parametrize(
    ("change", "state", "why"),
    [
        (lambda _: None, PumpState.STARTING, None),
        (become_active, PumpState.ACTIVE, None),
        (be_displaced, PumpState.STANDING_BY, "another host has it"),
        (fail, PumpState.FAILED, "no answer"),
    ],
)
def test_a_pump_is_starting_active_standing_by_or_failed(
    change: Callable[[Pump], None], state: PumpState, why: str | None
) -> None:
    async def scenario(pair: FakePair) -> None:
        syphon = pair.pairing.syphon = Syphon(pair.pairing)  # not started: the test sets the states of its pumps
        change(syphon.pumps[0])
        first, second = (await pair.pairing.status()).pumps
        assert (first.backlog_queue, first.state, first.why) == (QUEUE_0, state, why)
        assert second.state is PumpState.STARTING

    run_scenario(scenario)


def test_status_changes_nothing() -> None:
    async def scenario(pair: FakePair) -> None:
        pair.backlog.park(QUEUE_0, "orders")
        messages_before = list(pair.backlog.queues[QUEUE_0])
        assert (await pair.pairing.status()).entities == (await pair.pairing.status()).entities
        assert pair.backlog.queues[QUEUE_0] == messages_before
        assert pair.events == []

    run_scenario(scenario)
