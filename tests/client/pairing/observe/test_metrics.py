"""`pairing.metrics()` exports counters and gauges of a pair to Prometheus."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.client.pairing.observe.fake_pair import QUEUE_0, FakeBacklog, FakePair, make_pair, run_scenario
from twinbus.client.errors import ConnectionFailed
from twinbus.client.pairing import EventKind
from twinbus.model.errors import EntityDisabled
from twinbus.model.message import BrokeredMessage

pytest.importorskip("prometheus_client", reason="requirements.lock has it: make setup")

from prometheus_client import CollectorRegistry, generate_latest  # only if it is installed
from prometheus_client.parser import text_string_to_metric_families

from twinbus.client.pairing.observe import metrics

if TYPE_CHECKING:
    from collections.abc import Mapping

    from prometheus_client.samples import Sample


def value_of(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(f"twinbus_pairing_{name}", {"primary": "contoso", **labels})


def test_sends_are_counted_by_entity_and_outcome() -> None:
    async def scenario(pair: FakePair) -> None:
        registry = CollectorRegistry()
        pair.pairing.metrics(registry)
        pair.set_parking_outcomes()
        await pair.sender("orders").send_batch([BrokeredMessage(), BrokeredMessage()])
        await pair.sender("invoices").send(BrokeredMessage())
        with pytest.raises(EntityDisabled):
            await pair.sender("orders", [EntityDisabled("no")]).send(BrokeredMessage())
        await pair.sender("orders", [ConnectionFailed("gone")]).send(BrokeredMessage())
        assert value_of(registry, "sent_total", entity="orders") == 2
        assert value_of(registry, "sent_total", entity="invoices") == 1
        assert value_of(registry, "failed_total", entity="orders", failure="caller's fault") == 1
        assert value_of(registry, "parked_total", entity="orders") == 1
        assert value_of(registry, "entities", state="failed over") == 1
        assert value_of(registry, "entities", state="healthy") == 1

    run_scenario(scenario)


@pytest.mark.parametrize(
    ("kind", "fields", "name", "labels"),
    [
        (EventKind.PINGED, {"path": "orders"}, "pings_total", {"entity": "orders", "outcome": "succeeded"}),
        (EventKind.PINGED, {"path": "q", "reason": "no"}, "pings_total", {"entity": "q", "outcome": "failed"}),
        (EventKind.SPOOLED, {"path": "orders"}, "spooled_total", {"entity": "orders"}),
        (EventKind.MOVED, {"backlog_queue": QUEUE_0}, "moved_total", {"backlog_queue": QUEUE_0}),
        (EventKind.DEFERRED, {"backlog_queue": QUEUE_0}, "deferred_total", {"backlog_queue": QUEUE_0}),
        (EventKind.DEAD_LETTERED, {"backlog_queue": QUEUE_0}, "dead_lettered_total", {"backlog_queue": QUEUE_0}),
    ],
)
def test_events_are_counted(kind: EventKind, fields: Mapping[str, str], name: str, labels: Mapping[str, str]) -> None:
    async def scenario(pair: FakePair) -> None:
        registry = CollectorRegistry()
        pair.pairing.metrics(registry)
        for _ in range(3):
            pair.pairing.event_publisher.emit(kind, **fields)  # type: ignore[arg-type]
        assert value_of(registry, name, **labels) == 3

    run_scenario(scenario)


def test_backlog_gauges_show_the_last_check_and_a_scrape_makes_no_requests() -> None:
    async def scenario(pair: FakePair) -> None:
        registry = CollectorRegistry()
        pair.pairing.metrics(registry)
        assert value_of(registry, "parked_messages", backlog_queue=QUEUE_0) is None
        pair.backlog.park(QUEUE_0, "orders", count=3)
        await asyncio.sleep(100)
        await pair.pairing.observers.alarms.check_backlog()
        pair.backlog.requests.clear()
        await asyncio.sleep(20)
        assert value_of(registry, "parked_messages", backlog_queue=QUEUE_0) == 3
        assert value_of(registry, "oldest_parked_age_seconds", backlog_queue=QUEUE_0) == 120
        assert value_of(registry, "protected") == 1
        assert pair.backlog.requests == []

    run_scenario(scenario)


def test_an_alarm_is_a_gauge() -> None:
    async def scenario(pair: FakePair) -> None:
        registry = CollectorRegistry()
        pair.pairing.metrics(registry)
        pair.backlog.park(QUEUE_0, "orders")
        await asyncio.sleep(1_000)
        assert value_of(registry, "alarms", kind="not_drained") == 0
        for _ in range(2):
            await pair.pairing.observers.alarms.check_backlog()
        assert value_of(registry, "alarms", kind="not_drained") == 1

    run_scenario(scenario)


def test_entities_beyond_the_limit_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "MAX_ENTITY_LABELS", 2)

    async def scenario(pair: FakePair) -> None:
        registry = CollectorRegistry()
        pair.pairing.metrics(registry)
        for path in ("a", "b", "c", "d", "a"):
            await pair.sender(path).send(BrokeredMessage())
        assert value_of(registry, "sent_total", entity="a") == 2
        assert value_of(registry, "sent_total", entity="c") is None
        assert value_of(registry, "sent_total", entity="(others)") == 2

    run_scenario(scenario)


def test_two_pairs_share_a_registry_and_a_closed_one_leaves_it() -> None:
    async def scenario(pair: FakePair) -> None:
        registry = CollectorRegistry()
        other = await make_pair(FakeBacklog())
        other.pairing.primary_name = "fabrikam"
        for member in (pair, other):
            member.pairing.metrics(registry)
        text = generate_latest(registry).decode()
        assert text.count("# TYPE twinbus_pairing_protected gauge") == 1
        assert {sample.labels["primary"] for sample in samples(text)} == {"contoso", "fabrikam"}
        await other.pairing.close()
        assert {sample.labels["primary"] for sample in samples(generate_latest(registry).decode())} == {"contoso"}
        assert not other.pairing.primary.events.listened_kinds

    run_scenario(scenario)


def test_two_pairs_of_one_primary_share_their_series() -> None:
    async def scenario(pair: FakePair) -> None:
        registry = CollectorRegistry()
        other = await make_pair(FakeBacklog())
        for member in (pair, other, pair):
            member.pairing.metrics(registry)
        for member in (pair, other):
            await member.sender("orders").send(BrokeredMessage())
        series = [(sample.name, tuple(sample.labels.items())) for sample in samples(generate_latest(registry).decode())]
        assert len(series) == len(set(series)), "each series is exported once"
        assert value_of(registry, "sent_total", entity="orders") == 2
        assert value_of(registry, "protected") == 1
        await other.pairing.close()

    run_scenario(scenario)


def samples(text: str) -> list[Sample]:
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]
