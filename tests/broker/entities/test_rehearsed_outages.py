"""An outage on purpose: an entity refuses and gives nothing out until its time is over, and then all is as it was."""

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
def test_what_is_sent_is_refused_and_nothing_of_it_is_stored(kind: OutageKind, error: type[ServiceBusError]) -> None:
    rig = BrokerHarness()
    rig.namespace.outages.begin("orders", kind, 60)
    with pytest.raises(error, match=r"'orders' is .*an outage is rehearsed until 2023-11-14T22:14:20Z"):
        rig.send(b"one")
    with pytest.raises(error):
        rig.queue.send_via([b"x"], "elsewhere", Results())
    rig.run_until_idle()
    rig.namespace.outages.end()
    rig.run_until_idle()
    assert rig.counts() == (0, 0, 0, 0)
    rig.send_stored(b"two")


def test_a_ping_is_refused_too() -> None:
    rig = BrokerHarness()
    ping, answers = IncomingBatch(), Results()
    ping.ping_count = 1
    rig.queue.send(ping, answers)
    rig.run_until_idle()
    assert answers == [None]
    rig.namespace.outages.begin("orders", REFUSE, 60)
    with pytest.raises(StoreUnavailable):
        rig.queue.send(ping, Results())


def test_it_ends_by_itself_to_the_second_whatever_the_wall_clock_does() -> None:
    rig = BrokerHarness()
    rig.namespace.outages.begin("orders", REFUSE, 60)
    rig.clock.set_wall_ms(rig.clock.wall_ms() + 86_400_000)
    rig.advance(59.9)
    with pytest.raises(StoreUnavailable):
        rig.send(b"early")
    rig.advance(0.1)
    rig.send_stored(b"in time")
    assert rig.namespace.outages.all() == []


def test_the_end_of_one_that_was_replaced_does_not_end_the_other() -> None:
    rig = BrokerHarness()
    rig.namespace.outages.begin("orders", REFUSE, 10)
    rig.namespace.outages.begin("ORDERS", BUSY, 60)
    rig.advance(10)
    with pytest.raises(ServerBusy):
        rig.send(b"one")
    [outage] = rig.namespace.outages.all()
    assert (outage.path, outage.kind) == ("orders", BUSY)
    rig.advance(50)
    rig.send_stored(b"two")


def test_whoever_is_told_of_the_end_is_told_once_and_not_of_one_that_was_ended() -> None:
    rig = BrokerHarness()
    over: list[Outage] = []
    rig.namespace.outages.on_expired = over.append
    first = rig.namespace.outages.begin("orders", REFUSE, 10)
    rig.namespace.outages.end("orders")
    second = rig.namespace.outages.begin("orders", REFUSE, 20)
    rig.advance(30)
    assert over == [second]
    assert first.is_over


@pytest.mark.parametrize("seconds", [0, 0.9, 3_600.1, -1, float("inf"), float("nan")])
def test_a_time_that_cannot_be_is_refused(seconds: float) -> None:
    rig = BrokerHarness()
    with pytest.raises(ArgumentOutOfRange, match="1 to 3600 s"):
        rig.namespace.outages.begin("orders", REFUSE, seconds)
    rig.send_stored(b"one")


def test_there_is_none_of_an_entity_that_is_not_there() -> None:
    rig = BrokerHarness()
    with pytest.raises(EntityNotFound):
        rig.namespace.outages.begin("other", REFUSE, 60)
    assert rig.namespace.outages.end("other") == []


# --- receivers --------------------------------------------------------------------------------------------------------


def test_receivers_get_nothing_meanwhile_and_everything_then() -> None:
    rig = BrokerHarness()
    rig.send_stored(b"one", b"two")
    there = rig.consumer(1)
    assert there.bodies == [b"one"]
    rig.namespace.outages.begin("orders", REFUSE, 20)
    there.grant(5)
    rig.run_until_idle()
    assert there.bodies == [b"one"]
    rig.advance(20)
    assert there.bodies == [b"one", b"two"]
    assert there.errors == []


def test_a_drain_is_answered_meanwhile() -> None:
    rig = BrokerHarness()
    rig.send_stored(b"one")
    rig.namespace.outages.begin("orders", REFUSE, 60)
    consumer = rig.consumer(5)
    consumer.drain()
    rig.advance(0.1)
    assert consumer.drain_count == 1
    assert consumer.bodies == []


def test_what_is_out_can_be_settled_and_renewed() -> None:
    rig = BrokerHarness(QueueDescription(lock_duration_ms=30_000))
    rig.send_stored(b"one", b"two")
    consumer = rig.consumer(2)
    rig.namespace.outages.begin("orders", SILENT, 600)
    rig.advance(20)
    first, second = consumer.lock_numbers()
    rig.main_fragment.settlement.renew(second)
    answers = Results()
    assert rig.main_fragment.settlement.complete([first], answers) == []
    rig.advance(20)
    assert rig.main_fragment.settlement.abandon([second], answers) == []
    rig.run_until_idle()
    assert answers == [None, None]
    assert rig.counts() == (1, 0, 0, 0)


def test_a_session_is_not_given_meanwhile() -> None:
    rig = BrokerHarness(QueueDescription(requires_session=True))
    rig.send_stored(b"one", session="a")
    rig.namespace.outages.begin("orders", REFUSE, 60)
    waiting = rig.accept_session(credit=1)
    assert rig.main_fragment.sessions is not None
    assert rig.main_fragment.sessions.session_locks == {}
    rig.advance(60)
    waiting.grant(0)
    rig.run_until_idle()
    assert waiting.session == b"a"
    assert waiting.bodies == [b"one"]


def test_a_store_that_fails_meanwhile_is_found_again() -> None:
    rig = BrokerHarness()
    rig.send_stored(b"one")
    consumer = rig.consumer(1)
    assert consumer.bodies == [b"one"]
    rig.namespace.outages.begin("orders", REFUSE, 60)
    rig.fail_next_sync()
    rig.main_fragment.settlement.complete(consumer.lock_numbers(), Results())
    rig.run_until_idle()
    rig.reopen()
    rig.run_until_idle()
    consumer.grant(1)
    rig.advance(60)
    assert consumer.bodies == [b"one", b"one"]


# --- which entities ---------------------------------------------------------------------------------------------------


def test_one_of_the_namespace_is_one_of_all_entities_also_of_new_ones() -> None:
    rig = TopicHarness()
    rig.namespace.outages.begin(ALL_ENTITIES, REFUSE, 60)
    subscription = rig.subscribe("new")
    for check in (rig.queue.check_send_enabled, rig.topic.check_send_enabled, subscription.check_receive_enabled):
        with pytest.raises(StoreUnavailable):
            check()
    rig.advance(60)
    rig.publish_stored(b"one")
    assert rig.complete(subscription) == [b"one"]


def test_one_of_a_topic_is_one_of_its_subscriptions_and_of_nothing_else() -> None:
    rig = TopicHarness()
    subscription = rig.subscribe("all")
    rig.namespace.outages.begin("news", REFUSE, 60)
    with pytest.raises(StoreUnavailable):
        rig.publish(b"one")
    with pytest.raises(StoreUnavailable):
        subscription.check_receive_enabled()
    rig.send_stored(b"to the queue")


def test_one_of_a_subscription_does_not_keep_its_topic_from_publishing() -> None:
    rig = TopicHarness()
    one, other = rig.subscribe("one"), rig.subscribe("other")
    rig.namespace.outages.begin("news/subscriptions/one", REFUSE, 60)
    rig.publish_stored(b"one")
    assert rig.complete(other) == [b"one"]
    with pytest.raises(StoreUnavailable):
        one.check_receive_enabled()
    rig.advance(60)
    assert rig.complete(one) == [b"one"]


def test_an_entitys_own_goes_before_the_namespaces_and_that_stays_when_it_ends() -> None:
    rig = BrokerHarness()
    rig.namespace.outages.begin(ALL_ENTITIES, REFUSE, 60)
    rig.namespace.outages.begin("orders", BUSY, 30)
    with pytest.raises(ServerBusy):
        rig.queue.check_send_enabled()
    rig.advance(30)
    with pytest.raises(StoreUnavailable):
        rig.queue.check_send_enabled()
    assert [outage.path for outage in rig.namespace.outages.end()] == [ALL_ENTITIES]
    rig.queue.check_send_enabled()


def test_a_disabled_queue_says_so_rather() -> None:
    rig = BrokerHarness(QueueDescription(status="Disabled"))
    rig.namespace.outages.begin("orders", REFUSE, 60)
    with pytest.raises(EntityDisabled):
        rig.queue.check_send_enabled()


def test_what_is_forwarded_to_it_waits_and_is_there_then() -> None:
    rig = BrokerHarness()
    source = rig.add_queue(8, "source", QueueDescription(forward_to="orders"))
    rig.namespace.outages.begin("orders", SILENT, 60)
    rig.send_stored(b"x", to=source)
    assert (rig.main_fragment.active_count, local_part(source).main.active_count) == (0, 1)
    for _ in range(70):
        rig.advance(1)
    assert (rig.main_fragment.active_count, local_part(source).main.active_count) == (1, 0)


# --- silence ----------------------------------------------------------------------------------------------------------


def test_who_was_not_answered_is_so_in_the_end_unless_it_has_gone() -> None:
    outages, told = BrokerHarness().namespace.outages, []
    outage = outages.begin("orders", SILENT, 60)
    outage.defer_reply("a", lambda: told.append("first"))
    outage.defer_reply("b", lambda: told.append("second"))
    outage.defer_reply("a", lambda: told.append("third"))
    outages.discard_replies("b")
    assert told == []
    outages.end("orders")
    assert told == ["first", "third"]
    outage.defer_reply("a", lambda: told.append("too late to wait"))
    assert told[2:] == ["too late to wait"]


def test_one_that_takes_the_place_of_a_silent_one_ends_the_silence() -> None:
    outages, told = BrokerHarness().namespace.outages, []
    outages.begin("orders", SILENT, 60).defer_reply("a", lambda: told.append("first"))
    outages.begin("orders", REFUSE, 60)
    assert told == ["first"]
