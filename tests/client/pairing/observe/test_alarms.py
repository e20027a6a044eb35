"""When alarms check the backlog, and which alarms stay while the secondary does not respond.

Alarms of a real backlog are in `tests/client/pairing/observe/test_backlog_alarms.py`.
"""

from __future__ import annotations

import asyncio

from tests.client.pairing.observe.fake_pair import QUEUE_0, FakeBacklog, FakePair, run_scenario
from twinbus.client.pairing import AlarmKind, EventKind

AFTER_S = 900.0


def park_one(pair: FakePair) -> None:
    pair.backlog.park(QUEUE_0, "orders")
    pair.pairing.event_publisher.emit(EventKind.PARKED, path="orders", backlog_queue=QUEUE_0)


def kinds(pair: FakePair) -> list[AlarmKind]:
    return [alarm.kind for alarm in pair.pairing.observers.alarms.raised]


def test_an_alarm_stays_while_the_secondary_is_unavailable() -> None:
    async def scenario(pair: FakePair) -> None:
        park_one(pair)
        await asyncio.sleep(3 * AFTER_S)
        pair.backlog.is_down = True
        await asyncio.sleep(3 * AFTER_S)
        assert kinds(pair) == [AlarmKind.NOT_DRAINED]
        assert pair.pairing.observers.alarms.is_checking

    run_scenario(scenario, alarm_after=AFTER_S)


def test_r009_a_healthy_pair_makes_no_requests_to_the_secondary() -> None:
    async def scenario(pair: FakePair) -> None:
        requests_before = list(pair.backlog.requests)
        await pair.sender("orders").send_batch([])
        await asyncio.sleep(10 * AFTER_S)
        assert pair.backlog.requests == requests_before

    run_scenario(scenario, alarm_after=AFTER_S)


def test_the_backlog_is_checked_exactly_three_times_in_alarm_after() -> None:
    async def scenario(pair: FakePair) -> None:
        for _ in range(100):
            park_one(pair)
        pair.backlog.requests.clear()
        await asyncio.sleep(2 * AFTER_S + 1)
        assert pair.backlog.requests.count(f"count {QUEUE_0}") == 6

    run_scenario(scenario, alarm_after=AFTER_S)


def test_an_empty_queue_is_counted_and_not_peeked() -> None:
    async def scenario(pair: FakePair) -> None:
        await pair.pairing.observers.alarms.check_backlog()
        assert not [request for request in pair.backlog.requests if request.startswith("peek")]

    run_scenario(scenario)


def test_q15_an_unprotected_pair_raises_an_alarm_until_the_secondary_is_available() -> None:
    backlog = FakeBacklog(is_down=True)

    async def scenario(pair: FakePair) -> None:
        assert not (await pair.pairing.status()).is_protected
        assert kinds(pair) == [AlarmKind.UNPROTECTED]
        backlog.is_down = False
        await asyncio.sleep(30)
        assert kinds(pair) == []
        assert sorted(pair.event_kinds()) == ["alarm", "alarm over", "protected", "unprotected"]

    run_scenario(scenario, backlog=backlog, require_secondary=False)


def test_a_closed_pair_does_not_check_the_backlog() -> None:
    async def scenario(pair: FakePair) -> None:
        park_one(pair)
        await pair.pairing.close()
        pair.backlog.requests.clear()
        await asyncio.sleep(10 * AFTER_S)
        assert pair.backlog.requests == []

    run_scenario(scenario, alarm_after=AFTER_S)


def test_q11_a_nearly_full_queue_raises_an_alarm() -> None:
    async def scenario(pair: FakePair) -> None:
        pair.backlog.size_bytes = 4_300 * 1_048_576
        park_one(pair)
        await asyncio.sleep(AFTER_S / 2)
        assert set(kinds(pair)) == {AlarmKind.NEARLY_FULL}
        assert "holds 4,300 MB of 5,120" in pair.pairing.observers.alarms.raised[0].reason
        pair.backlog.size_bytes = 0
        await asyncio.sleep(AFTER_S / 2)
        assert AlarmKind.NEARLY_FULL not in kinds(pair)

    run_scenario(scenario, alarm_after=AFTER_S)
