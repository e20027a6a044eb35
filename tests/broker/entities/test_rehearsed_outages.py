"""Rehearsed outages: an entity refuses requests and delivers nothing until the outage ends, and then recovers."""

from __future__ import annotations

import pytest

from tests.broker.consumers import Results
from tests.broker.harness import BrokerHarness
from tests.broker.topic_harness import TopicHarness
from tests.support.parts import local_part
from twinbus.broker.ports.incoming_batch import IncomingBatch
from twinbus.broker.ports.outage import Outage, SilentOutage
from twinbus.model.errors import (
    ArgumentOutOfRange,
    EntityDisabled,
    EntityNotFound,
    ServerBusy,
    ServiceBusError,
    StoreUnavailable,
)
from twinbus.model.outage import ALL_ENTITIES, OutageKind
from twinbus.model.queue import QueueDescription

REFUSE, BUSY, SILENT = OutageKind.REFUSE, OutageKind.BUSY, OutageKind.SILENT


@pytest.mark.parametrize(("kind", "error"), [(REFUSE, StoreUnavailable), (BUSY, ServerBusy), (SILENT, SilentOutage)])
def test_sends_are_refused_and_nothing_is_stored(kind: OutageKind, error: type[ServiceBusError]) -> None:
    harness = BrokerHarness()
    harness.namespace.outages.begin("orders", kind, 60)
    with pytest.raises(error, match=r"'orders' is .*an outage is rehearsed until 2023-11-14T22:14:20Z"):
        harness.send(b"one")
    with pytest.raises(error):
        harness.queue.send_via([b"x"], "elsewhere", Results())
    harness.run_until_idle()
    harness.namespace.outages.end()
    harness.run_until_idle()
    assert harness.counts() == (0, 0, 0, 0)
    harness.send_stored(b"two")


def test_pings_are_refused() -> None:
    harness = BrokerHarness()
    ping, results = IncomingBatch(), Results()
    ping.ping_count = 1
    harness.queue.send(ping, results)
    harness.run_until_idle()
    assert results == [None]
    harness.namespace.outages.begin("orders", REFUSE, 60)
    with pytest.raises(StoreUnavailable):
        harness.queue.send(ping, Results())


def test_an_outage_ends_on_time_whatever_the_wall_clock_does() -> None:
    harness = BrokerHarness()
    harness.namespace.outages.begin("orders", REFUSE, 60)
    harness.clock.set_wall_ms(harness.clock.wall_ms() + 86_400_000)
    harness.advance(59.9)
    with pytest.raises(StoreUnavailable):
        harness.send(b"early")
    harness.advance(0.1)
    harness.send_stored(b"in time")
    assert harness.namespace.outages.all() == []


def test_the_end_of_a_replaced_outage_does_not_end_its_replacement() -> None:
    harness = BrokerHarness()
    harness.namespace.outages.begin("orders", REFUSE, 10)
    harness.namespace.outages.begin("ORDERS", BUSY, 60)
    harness.advance(10)
    with pytest.raises(ServerBusy):
        harness.send(b"one")
    [outage] = harness.namespace.outages.all()
    assert (outage.path, outage.kind) == ("orders", BUSY)
    harness.advance(50)
    harness.send_stored(b"two")


def test_the_expiry_callback_is_called_once_and_not_for_ended_outages() -> None:
    harness = BrokerHarness()
    expired: list[Outage] = []
    harness.namespace.outages.on_expired = expired.append
    first = harness.namespace.outages.begin("orders", REFUSE, 10)
    harness.namespace.outages.end("orders")
    second = harness.namespace.outages.begin("orders", REFUSE, 20)
    harness.advance(30)
    assert expired == [second]
    assert first.is_over


@pytest.mark.parametrize("seconds", [0, 0.9, 3_600.1, -1, float("inf"), float("nan")])
def test_an_invalid_duration_is_refused(seconds: float) -> None:
    harness = BrokerHarness()
    with pytest.raises(ArgumentOutOfRange, match="1 to 3600 s"):
        harness.namespace.outages.begin("orders", REFUSE, seconds)
    harness.send_stored(b"one")


def test_an_outage_of_a_missing_entity_is_refused() -> None:
    harness = BrokerHarness()
    with pytest.raises(EntityNotFound):
        harness.namespace.outages.begin("other", REFUSE, 60)
    assert harness.namespace.outages.end("other") == []


# --- receivers --------------------------------------------------------------------------------------------------------


def test_receivers_get_nothing_during_an_outage_and_everything_afterwards() -> None:
    harness = BrokerHarness()
    harness.send_stored(b"one", b"two")
    consumer = harness.consumer(1)
    assert consumer.bodies == [b"one"]
    harness.namespace.outages.begin("orders", REFUSE, 20)
    consumer.grant(5)
    harness.run_until_idle()
    assert consumer.bodies == [b"one"]
    harness.advance(20)
    assert consumer.bodies == [b"one", b"two"]
    assert consumer.errors == []


def test_a_drain_ends_during_an_outage() -> None:
    harness = BrokerHarness()
    harness.send_stored(b"one")
    harness.namespace.outages.begin("orders", REFUSE, 60)
    consumer = harness.consumer(5)
    consumer.drain()
    harness.advance(0.1)
    assert consumer.drain_count == 1
    assert consumer.bodies == []


def test_locked_messages_can_be_settled_and_renewed_during_an_outage() -> None:
    harness = BrokerHarness(QueueDescription(lock_duration_ms=30_000))
    harness.send_stored(b"one", b"two")
    consumer = harness.consumer(2)
    harness.namespace.outages.begin("orders", SILENT, 600)
    harness.advance(20)
    first, second = consumer.lock_numbers()
    harness.main_fragment.settlement.renew(second)
    results = Results()
    assert harness.main_fragment.settlement.complete([first], results) == []
    harness.advance(20)
    assert harness.main_fragment.settlement.abandon([second], results) == []
    harness.run_until_idle()
    assert results == [None, None]
    assert harness.counts() == (1, 0, 0, 0)


def test_no_session_is_granted_during_an_outage() -> None:
    harness = BrokerHarness(QueueDescription(requires_session=True))
    harness.send_stored(b"one", session="a")
    harness.namespace.outages.begin("orders", REFUSE, 60)
    waiting = harness.accept_session(credit=1)
    assert harness.main_fragment.sessions is not None
    assert harness.main_fragment.sessions.session_locks == {}
    harness.advance(60)
    waiting.grant(0)
    harness.run_until_idle()
    assert waiting.session == b"a"
    assert waiting.bodies == [b"one"]


def test_a_store_that_fails_during_an_outage_recovers() -> None:
    harness = BrokerHarness()
    harness.send_stored(b"one")
    consumer = harness.consumer(1)
    assert consumer.bodies == [b"one"]
    harness.namespace.outages.begin("orders", REFUSE, 60)
    harness.fail_next_sync()
    harness.main_fragment.settlement.complete(consumer.lock_numbers(), Results())
    harness.run_until_idle()
    harness.reopen()
    harness.run_until_idle()
    consumer.grant(1)
    harness.advance(60)
    assert consumer.bodies == [b"one", b"one"]


# --- which entities ---------------------------------------------------------------------------------------------------


def test_an_outage_of_the_namespace_applies_to_all_entities_including_new_ones() -> None:
    harness = TopicHarness()
    harness.namespace.outages.begin(ALL_ENTITIES, REFUSE, 60)
    subscription = harness.subscribe("new")
    for check in (
        harness.queue.check_send_enabled,
        harness.topic.check_send_enabled,
        subscription.check_receive_enabled,
    ):
        with pytest.raises(StoreUnavailable):
            check()
    harness.advance(60)
    harness.publish_stored(b"one")
    assert harness.complete(subscription) == [b"one"]


def test_an_outage_of_a_topic_applies_to_its_subscriptions_only() -> None:
    harness = TopicHarness()
    subscription = harness.subscribe("all")
    harness.namespace.outages.begin("news", REFUSE, 60)
    with pytest.raises(StoreUnavailable):
        harness.publish(b"one")
    with pytest.raises(StoreUnavailable):
        subscription.check_receive_enabled()
    harness.send_stored(b"to the queue")


def test_an_outage_of_a_subscription_does_not_affect_publishing() -> None:
    harness = TopicHarness()
    first, second = harness.subscribe("one"), harness.subscribe("other")
    harness.namespace.outages.begin("news/subscriptions/one", REFUSE, 60)
    harness.publish_stored(b"one")
    assert harness.complete(second) == [b"one"]
    with pytest.raises(StoreUnavailable):
        first.check_receive_enabled()
    harness.advance(60)
    assert harness.complete(first) == [b"one"]


def test_an_outage_of_an_entity_overrides_that_of_the_namespace_until_it_ends() -> None:
    harness = BrokerHarness()
    harness.namespace.outages.begin(ALL_ENTITIES, REFUSE, 60)
    harness.namespace.outages.begin("orders", BUSY, 30)
    with pytest.raises(ServerBusy):
        harness.queue.check_send_enabled()
    harness.advance(30)
    with pytest.raises(StoreUnavailable):
        harness.queue.check_send_enabled()
    assert [outage.path for outage in harness.namespace.outages.end()] == [ALL_ENTITIES]
    harness.queue.check_send_enabled()


def test_a_disabled_queue_reports_that_it_is_disabled_during_an_outage() -> None:
    harness = BrokerHarness(QueueDescription(status="Disabled"))
    harness.namespace.outages.begin("orders", REFUSE, 60)
    with pytest.raises(EntityDisabled):
        harness.queue.check_send_enabled()


def test_forwarded_messages_wait_for_the_end_of_an_outage() -> None:
    harness = BrokerHarness()
    source = harness.add_queue(8, "source", QueueDescription(forward_to="orders"))
    harness.namespace.outages.begin("orders", SILENT, 60)
    harness.send_stored(b"x", to=source)
    assert (harness.main_fragment.active_count, local_part(source).main.active_count) == (0, 1)
    for _ in range(70):
        harness.advance(1)
    assert (harness.main_fragment.active_count, local_part(source).main.active_count) == (1, 0)


# --- silence ----------------------------------------------------------------------------------------------------------


def test_replies_withheld_by_a_silent_outage_are_sent_at_its_end() -> None:
    outages, sent = BrokerHarness().namespace.outages, []
    outage = outages.begin("orders", SILENT, 60)
    outage.defer_reply("a", lambda: sent.append("first"))
    outage.defer_reply("b", lambda: sent.append("second"))
    outage.defer_reply("a", lambda: sent.append("third"))
    outages.discard_replies("b")
    assert sent == []
    outages.end("orders")
    assert sent == ["first", "third"]
    outage.defer_reply("a", lambda: sent.append("too late to wait"))
    assert sent[2:] == ["too late to wait"]


def test_replacing_a_silent_outage_sends_the_withheld_replies() -> None:
    outages, sent = BrokerHarness().namespace.outages, []
    outages.begin("orders", SILENT, 60).defer_reply("a", lambda: sent.append("first"))
    outages.begin("orders", REFUSE, 60)
    assert sent == ["first"]
