"""An outage on purpose: an entity refuses and gives nothing out until its time is over, and then all is as it was."""

from __future__ import annotations

import pytest

from tests.broker.consumers import Answers
from tests.broker.rig import Rig
from tests.broker.topics import TopicRig
from tests.parts import part_of
from twinbus.broker.ports.incoming import Parcel
from twinbus.broker.ports.outage import Outage, Silence
from twinbus.model.errors import (
    ArgumentOutOfRange,
    EntityDisabled,
    EntityNotFound,
    ServerBusy,
    ServiceBusError,
    StoreUnavailable,
)
from twinbus.model.outage import EVERYTHING, OutageKind
from twinbus.model.queue import QueueDescription

REFUSE, BUSY, SILENT = OutageKind.REFUSE, OutageKind.BUSY, OutageKind.SILENT


@pytest.mark.parametrize(("kind", "error"), [(REFUSE, StoreUnavailable), (BUSY, ServerBusy), (SILENT, Silence)])
def test_what_is_sent_is_refused_and_nothing_of_it_is_stored(kind: OutageKind, error: type[ServiceBusError]) -> None:
    rig = Rig()
    rig.namespace.outages.begin("orders", kind, 60)
    with pytest.raises(error, match=r"'orders' is .*an outage is rehearsed until 2023-11-14T22:14:20Z"):
        rig.send(b"one")
    with pytest.raises(error):
        rig.queue.send_on([b"x"], "elsewhere", Answers())
    rig.settle()
    rig.namespace.outages.end()
    rig.settle()
    assert rig.counts() == (0, 0, 0, 0)
    rig.stored(b"two")


def test_a_ping_is_refused_too() -> None:
    rig = Rig()
    ping, answers = Parcel(), Answers()
    ping.pings = 1
    rig.queue.send(ping, answers)
    rig.settle()
    assert answers == [None]
    rig.namespace.outages.begin("orders", REFUSE, 60)
    with pytest.raises(StoreUnavailable):
        rig.queue.send(ping, Answers())


def test_it_ends_by_itself_to_the_second_whatever_the_wall_clock_does() -> None:
    rig = Rig()
    rig.namespace.outages.begin("orders", REFUSE, 60)
    rig.clock.set_wall_ms(rig.clock.wall_ms() + 86_400_000)
    rig.wait(59.9)
    with pytest.raises(StoreUnavailable):
        rig.send(b"early")
    rig.wait(0.1)
    rig.stored(b"in time")
    assert rig.namespace.outages.all() == []


def test_the_end_of_one_that_was_replaced_does_not_end_the_other() -> None:
    rig = Rig()
    rig.namespace.outages.begin("orders", REFUSE, 10)
    rig.namespace.outages.begin("ORDERS", BUSY, 60)
    rig.wait(10)
    with pytest.raises(ServerBusy):
        rig.send(b"one")
    [outage] = rig.namespace.outages.all()
    assert (outage.path, outage.kind) == ("orders", BUSY)
    rig.wait(50)
    rig.stored(b"two")


def test_whoever_is_told_of_the_end_is_told_once_and_not_of_one_that_was_ended() -> None:
    rig = Rig()
    over: list[Outage] = []
    rig.namespace.outages.on_over = over.append
    first = rig.namespace.outages.begin("orders", REFUSE, 10)
    rig.namespace.outages.end("orders")
    second = rig.namespace.outages.begin("orders", REFUSE, 20)
    rig.wait(30)
    assert over == [second]
    assert first.is_over


@pytest.mark.parametrize("seconds", [0, 0.9, 3_600.1, -1, float("inf"), float("nan")])
def test_a_time_that_cannot_be_is_refused(seconds: float) -> None:
    rig = Rig()
    with pytest.raises(ArgumentOutOfRange, match="1 to 3600 s"):
        rig.namespace.outages.begin("orders", REFUSE, seconds)
    rig.stored(b"one")


def test_there_is_none_of_an_entity_that_is_not_there() -> None:
    rig = Rig()
    with pytest.raises(EntityNotFound):
        rig.namespace.outages.begin("other", REFUSE, 60)
    assert rig.namespace.outages.end("other") == []


# --- receivers --------------------------------------------------------------------------------------------------------


def test_receivers_get_nothing_meanwhile_and_everything_then() -> None:
    rig = Rig()
    rig.stored(b"one", b"two")
    there = rig.consumer(1)
    assert there.bodies == [b"one"]
    rig.namespace.outages.begin("orders", REFUSE, 20)
    there.grant(5)
    rig.settle()
    assert there.bodies == [b"one"]
    rig.wait(20)
    assert there.bodies == [b"one", b"two"]
    assert there.errors == []


def test_a_drain_is_answered_meanwhile() -> None:
    rig = Rig()
    rig.stored(b"one")
    rig.namespace.outages.begin("orders", REFUSE, 60)
    consumer = rig.consumer(5)
    consumer.drain()
    rig.wait(0.1)
    assert consumer.drains == 1
    assert consumer.bodies == []


def test_what_is_out_can_be_settled_and_renewed() -> None:
    rig = Rig(QueueDescription(lock_duration_ms=30_000))
    rig.stored(b"one", b"two")
    consumer = rig.consumer(2)
    rig.namespace.outages.begin("orders", SILENT, 600)
    rig.wait(20)
    first, second = consumer.numbers()
    rig.main.settlement.renew(second)
    answers = Answers()
    assert rig.main.settlement.complete([first], answers) == []
    rig.wait(20)
    assert rig.main.settlement.abandon([second], answers) == []
    rig.settle()
    assert answers == [None, None]
    assert rig.counts() == (1, 0, 0, 0)


def test_a_session_is_not_given_meanwhile() -> None:
    rig = Rig(QueueDescription(requires_session=True))
    rig.stored(b"one", session="a")
    rig.namespace.outages.begin("orders", REFUSE, 60)
    waiting = rig.accept(credit=1)
    assert rig.main.sessions is not None
    assert rig.main.sessions.holds == {}
    rig.wait(60)
    waiting.grant(0)
    rig.settle()
    assert waiting.session == b"a"
    assert waiting.bodies == [b"one"]


def test_a_store_that_fails_meanwhile_is_found_again() -> None:
    rig = Rig()
    rig.stored(b"one")
    consumer = rig.consumer(1)
    assert consumer.bodies == [b"one"]
    rig.namespace.outages.begin("orders", REFUSE, 60)
    rig.fail()
    rig.main.settlement.complete(consumer.numbers(), Answers())
    rig.settle()
    rig.reopen()
    rig.settle()
    consumer.grant(1)
    rig.wait(60)
    assert consumer.bodies == [b"one", b"one"]


# --- which entities ---------------------------------------------------------------------------------------------------


def test_one_of_the_namespace_is_one_of_all_entities_also_of_new_ones() -> None:
    rig = TopicRig()
    rig.namespace.outages.begin(EVERYTHING, REFUSE, 60)
    subscription = rig.subscribe("new")
    for check in (rig.queue.check_sends, rig.topic.check_sends, subscription.check_receives):
        with pytest.raises(StoreUnavailable):
            check()
    rig.wait(60)
    rig.published(b"one")
    assert rig.complete(subscription) == [b"one"]


def test_one_of_a_topic_is_one_of_its_subscriptions_and_of_nothing_else() -> None:
    rig = TopicRig()
    subscription = rig.subscribe("all")
    rig.namespace.outages.begin("news", REFUSE, 60)
    with pytest.raises(StoreUnavailable):
        rig.publish(b"one")
    with pytest.raises(StoreUnavailable):
        subscription.check_receives()
    rig.stored(b"to the queue")


def test_one_of_a_subscription_does_not_keep_its_topic_from_publishing() -> None:
    rig = TopicRig()
    one, other = rig.subscribe("one"), rig.subscribe("other")
    rig.namespace.outages.begin("news/subscriptions/one", REFUSE, 60)
    rig.published(b"one")
    assert rig.complete(other) == [b"one"]
    with pytest.raises(StoreUnavailable):
        one.check_receives()
    rig.wait(60)
    assert rig.complete(one) == [b"one"]


def test_an_entitys_own_goes_before_the_namespaces_and_that_stays_when_it_ends() -> None:
    rig = Rig()
    rig.namespace.outages.begin(EVERYTHING, REFUSE, 60)
    rig.namespace.outages.begin("orders", BUSY, 30)
    with pytest.raises(ServerBusy):
        rig.queue.check_sends()
    rig.wait(30)
    with pytest.raises(StoreUnavailable):
        rig.queue.check_sends()
    assert [outage.path for outage in rig.namespace.outages.end()] == [EVERYTHING]
    rig.queue.check_sends()


def test_a_disabled_queue_says_so_rather() -> None:
    rig = Rig(QueueDescription(status="Disabled"))
    rig.namespace.outages.begin("orders", REFUSE, 60)
    with pytest.raises(EntityDisabled):
        rig.queue.check_sends()


def test_what_is_forwarded_to_it_waits_and_is_there_then() -> None:
    rig = Rig()
    source = rig.add_queue(8, "source", QueueDescription(forward_to="orders"))
    rig.namespace.outages.begin("orders", SILENT, 60)
    rig.stored(b"x", to=source)
    assert (rig.main.count, part_of(source).main.count) == (0, 1)
    for _ in range(70):
        rig.wait(1)
    assert (rig.main.count, part_of(source).main.count) == (1, 0)


# --- silence ----------------------------------------------------------------------------------------------------------


def test_who_was_not_answered_is_so_in_the_end_unless_it_has_gone() -> None:
    outages, told = Rig().namespace.outages, []
    outage = outages.begin("orders", SILENT, 60)
    outage.hold("a", lambda: told.append("first"))
    outage.hold("b", lambda: told.append("second"))
    outage.hold("a", lambda: told.append("third"))
    outages.forget("b")
    assert told == []
    outages.end("orders")
    assert told == ["first", "third"]
    outage.hold("a", lambda: told.append("too late to wait"))
    assert told[2:] == ["too late to wait"]


def test_one_that_takes_the_place_of_a_silent_one_ends_the_silence() -> None:
    outages, told = Rig().namespace.outages, []
    outages.begin("orders", SILENT, 60).hold("a", lambda: told.append("first"))
    outages.begin("orders", REFUSE, 60)
    assert told == ["first"]
