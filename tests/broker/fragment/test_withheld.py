"""Messages that an exclusive receiver withholds stay in their places, and the others go on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.broker.consumers import FakeConsumer, Results
from tests.broker.fragment.test_redelivery import attach_exclusive, detach
from tests.broker.harness import BrokerHarness
from tests.broker.messages import message
from tests.broker.topic_harness import LARGE, TopicHarness
from tests.support.parts import local_part
from twinbus.amqp.encode import encode
from twinbus.amqp.types import Symbol
from twinbus.broker.fragment.dispatcher import Dispatcher
from twinbus.broker.fragment.window import WINDOW_MESSAGES
from twinbus.broker.ports.exclusive_receiver import ExclusiveReceiver
from twinbus.broker.ports.fragment import RemovalCriteria
from twinbus.broker.remote.remote_consumer import RemoteConsumer

if TYPE_CHECKING:
    from twinbus.broker.fragment.fragment import Fragment

LOCK_S = 60
LONG = "x" * 300


def store_with_destination(harness: BrokerHarness, *payloads: bytes) -> None:
    assert harness.send_and_wait(*payloads) == [None]


def store_destinations(harness: BrokerHarness, words: str) -> None:
    """A message for each word: the word is its body, and the word's first letter is its property `to`."""
    store_with_destination(harness, *[message(word.encode(), to=word[0]) for word in words.split()])


def withhold(harness: BrokerHarness, *values: str, name: str = "to", of: Fragment | None = None) -> None:
    """Ask as the operation does."""
    line = (of or harness.main_fragment).dispatcher
    assert isinstance(line, Dispatcher)
    line.withhold(name, values)
    line.dispatch()
    harness.run_until_idle()


def grant(harness: BrokerHarness, consumer: FakeConsumer, credit: int) -> None:
    consumer.grant(credit)
    harness.run_until_idle()


def destinations_of(consumer: FakeConsumer) -> str:
    return b" ".join(consumer.bodies).decode()


def restarted(harness: BrokerHarness) -> BrokerHarness:
    """Another broker on the same disk."""
    harness.crash()
    return harness


# --- order ------------------------------------------------------------------------------------------------------------


def test_other_messages_are_delivered_and_withheld_ones_stay_active() -> None:
    rig = BrokerHarness()
    store_destinations(rig, "a1 b2 a3 b4")
    receiver = attach_exclusive(rig, 1, 0)
    withhold(rig, "a")
    grant(rig, receiver, 10)
    assert destinations_of(receiver) == "b2 b4"
    rig.main_fragment.settlement.complete(receiver.lock_numbers(), Results())
    rig.run_until_idle()
    assert rig.counts() == (2, 0, 0, 0)


def test_released_messages_come_in_order_and_before_later_ones() -> None:
    rig = BrokerHarness()
    store_destinations(rig, "a1 b2 a3 b4")
    receiver = attach_exclusive(rig, 1, 0)
    withhold(rig, "a")
    grant(rig, receiver, 1)
    store_destinations(rig, "a5 b6")
    withhold(rig)
    grant(rig, receiver, 10)
    assert destinations_of(receiver) == "b2 a1 a3 b4 a5 b6"


def test_a_request_replaces_the_one_before() -> None:
    rig = BrokerHarness()
    store_destinations(rig, "a1 b2 c3 a4 b5 c6")
    receiver = attach_exclusive(rig, 1, 0)
    withhold(rig, "a", "b")
    withhold(rig, "b", "c")
    grant(rig, receiver, 10)
    assert destinations_of(receiver) == "a1 a4"
    withhold(rig, "a", name="another property")
    assert destinations_of(receiver) == "a1 a4 b2 c3 b5 c6"


def test_arrivals_with_a_withheld_value_are_skipped_and_others_delivered() -> None:
    rig = BrokerHarness()
    receiver = attach_exclusive(rig, 1, 10)
    withhold(rig, "a")
    store_destinations(rig, "a1 b2")
    store_destinations(rig, "a3")
    store_destinations(rig, "b4 a5")
    assert destinations_of(receiver) == "b2 b4"
    withhold(rig)
    assert destinations_of(receiver) == "b2 b4 a1 a3 a5"


@pytest.mark.parametrize("way", ["release", "abandon", "let the lock expire"])
def test_a_message_that_comes_back_while_it_is_withheld_is_not_delivered_before_its_value_is_released(way: str) -> None:
    rig = BrokerHarness()
    store_destinations(rig, "a1 a2 b3")
    receiver = attach_exclusive(rig, 1, 2)
    withhold(rig, "a")
    if way == "release":
        rig.main_fragment.settlement.release(receiver.lock_numbers(), Results())
    elif way == "abandon":
        rig.main_fragment.settlement.abandon(receiver.lock_numbers(), Results())
    else:
        rig.advance(LOCK_S + 1)
    rig.run_until_idle()
    grant(rig, receiver, 10)
    assert destinations_of(receiver) == "a1 a2 b3"
    withhold(rig)
    assert destinations_of(receiver) == "a1 a2 b3 a1 a2"


def test_more_messages_are_withheld_than_the_window_holds() -> None:
    rig = BrokerHarness()
    count = WINDOW_MESSAGES + 500
    store_destinations(rig, " ".join([f"a{number}" for number in range(count)]) + " b")
    receiver = attach_exclusive(rig, 1, 0)
    withhold(rig, "a")
    grant(rig, receiver, count)
    assert destinations_of(receiver) == "b"
    assert not rig.window.ready
    withhold(rig)
    grant(rig, receiver, 1)
    assert receiver.bodies == [b"b", *[b"a%d" % number for number in range(count)]]


# --- receivers --------------------------------------------------------------------------------------------------------


def test_the_next_receiver_gets_all_messages_in_order() -> None:
    rig = BrokerHarness()
    store_destinations(rig, "a1 b2 a3 b4")
    first = attach_exclusive(rig, 1, 0)
    withhold(rig, "a")
    grant(rig, first, 1)
    detach(rig, first)
    second = attach_exclusive(rig, 2, 10)
    assert destinations_of(second) == "a1 b2 a3 b4"


def test_a_drain_ends_though_messages_are_withheld() -> None:
    rig = BrokerHarness()
    store_destinations(rig, "a1 b2 a3")
    receiver = attach_exclusive(rig, 1, 0)
    withhold(rig, "a")
    receiver.credit = 10
    receiver.drain()
    rig.run_until_idle()
    assert (destinations_of(receiver), receiver.drain_count) == ("b2", 1)


def test_a_receiver_that_deletes_what_it_receives_deletes_nothing_that_is_withheld() -> None:
    rig = BrokerHarness()
    store_destinations(rig, "a1 b2 a3")
    receiver = rig.consumer(deletes=True)
    withhold(rig, "a")
    grant(rig, receiver, 10)
    assert (destinations_of(receiver), rig.counts()[0]) == ("b2", 2)
    withhold(rig)
    assert (destinations_of(receiver), rig.counts()[0]) == ("b2 a1 a3", 0)


def test_withheld_messages_that_were_deleted_are_not_delivered() -> None:
    rig = BrokerHarness()
    store_destinations(rig, "a1 a2 a3")
    receiver = attach_exclusive(rig, 1, 10)
    rig.main_fragment.settlement.release(receiver.lock_numbers(), Results())
    withhold(rig, "a")
    before = len(receiver.deliveries)
    rig.main_fragment.removal.remove_active(RemovalCriteria(max_count=2), lambda _: None)
    rig.run_until_idle()
    withhold(rig)
    assert receiver.bodies[before:] == [b"a3"]


# --- outages ----------------------------------------------------------------------------------------------------------


def test_the_same_values_are_withheld_after_the_store_failed_and_no_message_is_lost() -> None:
    rig = BrokerHarness()
    store_destinations(rig, "a1 b2 a3 b4")
    receiver = attach_exclusive(rig, 1, 0)
    withhold(rig, "a")
    grant(rig, receiver, 1)
    rig.restart()
    grant(rig, receiver, 10)
    assert destinations_of(receiver) == "b2 b2 b4"
    store_destinations(rig, "a5 b6")
    withhold(rig)
    assert destinations_of(receiver) == "b2 b2 b4 b6 a1 a3 a5"


def test_a_restart_of_the_broker_finds_the_messages_that_were_withheld() -> None:
    rig = BrokerHarness()
    store_destinations(rig, "b1 a2 b3 a4 b5")
    receiver = attach_exclusive(rig, 1, 0)
    withhold(rig, "a")
    grant(rig, receiver, 10)
    rig.main_fragment.settlement.complete(receiver.lock_numbers(), Results())
    rig.run_until_idle()
    store_destinations(rig, "b6")
    assert rig.main_fragment.message_table.low_watermark == 2
    other = restarted(rig)
    assert destinations_of(attach_exclusive(other, 2, 10)) == "a2 a4 b6"


def test_the_low_water_mark_moves_on_when_released_messages_are_completed() -> None:
    rig = BrokerHarness()
    store_destinations(rig, "a1 b2 a3")
    receiver = attach_exclusive(rig, 1, 10)
    withhold(rig, "a")
    rig.main_fragment.settlement.release(receiver.lock_numbers(), Results())
    rig.run_until_idle()
    withhold(rig)
    rig.main_fragment.settlement.complete(receiver.lock_numbers()[-3:], Results())
    rig.run_until_idle()
    store_destinations(rig, "b4")
    assert rig.main_fragment.message_table.low_watermark == 4


# --- encodings --------------------------------------------------------------------------------------------------------


def with_long_text(text: str) -> bytes:
    """A message whose property is a string with four bytes for its length, as some clients write short ones."""
    short, long = encode(text), b"\xb1" + len(text).to_bytes(4) + text.encode()
    payload = message(b"long", to=text)
    at = payload.index(encode("to") + short) - 3  # the map's constructor, size and count
    size = payload[at + 1] + 3
    return payload[: at + 1] + bytes([size]) + payload[at + 2 :].replace(short, long)


WITHHELD = {
    "a short string": message(b"", to="a"),
    "a short string with a long length": with_long_text("a"),
    "a long string": message(b"", to=LONG),
    "a symbol": message(b"", to=Symbol("a")),
    "a long symbol": message(b"", to=Symbol(LONG)),
    "a string that is not ASCII": message(b"", to="größe"),
    "a string in upper case": message(b"", to="A"),
    "a string in upper case that is not ASCII": message(b"", to="GRÖßE"),
    "an empty string": message(b"", to=""),
    "one of several properties": message(b"", other="b", number=7, to="a", third=None),
    "a section with a long descriptor": message(b"", to="a").replace(b"\x00\x53\x74", b"\x00\x80" + bytes(7) + b"\x74"),
}
DELIVERED = {
    "no application properties": message(b""),
    "other properties only": message(b"", other="a"),
    "another value": message(b"", to="ab"),
    "a number": message(b"", to=7),
    "null": message(b"", to=None),
    "binary": message(b"", to=b"a"),
}


@pytest.mark.parametrize("name", [*WITHHELD, *DELIVERED])
def test_a_message_is_withheld_if_its_property_is_one_of_the_texts_however_it_is_encoded(name: str) -> None:
    rig = BrokerHarness()
    store_with_destination(rig, (WITHHELD | DELIVERED)[name])
    receiver = attach_exclusive(rig, 1, 0)
    withhold(rig, "a", LONG, "größe", "")
    grant(rig, receiver, 1)
    assert len(receiver.deliveries) == (name in DELIVERED)
    withhold(rig)
    assert len(receiver.deliveries) == 1


def test_messages_of_a_subscription_that_share_their_body_with_another_are_withheld() -> None:
    rig = TopicHarness()
    subscription, _ = rig.subscribe("one"), rig.subscribe("other")
    rig.store_messages(message(LARGE + b"1", to="a"), message(LARGE + b"2", to="b"), to=rig.topic)
    assert rig.shared_body_counts() == (2, 0)
    receiver = rig.consumer(of=local_part(subscription).main)
    withhold(rig, "a", of=local_part(subscription).main)
    grant(rig, receiver, 10)
    assert receiver.bodies == [LARGE + b"2"]
    withhold(rig, of=local_part(subscription).main)
    assert receiver.bodies == [LARGE + b"2", LARGE + b"1"]


def test_a_receiver_that_comes_before_the_messages_of_a_gone_exclusive_one_are_back_gets_all() -> None:
    """A receiver of another process that deletes: those that it has not seen have to be on disk again first."""
    rig = BrokerHarness()
    store_destinations(rig, "a1 b2 b3")
    visitor = RemoteConsumer(1, rig.main_fragment, client_id=1, receive_and_delete=True, notify=lambda _notice: None)
    claim = ExclusiveReceiver()
    claim.assign(visitor, 7, [rig.main_fragment])
    assert isinstance(rig.main_fragment.dispatcher, Dispatcher)
    rig.main_fragment.dispatcher.add(visitor)
    withhold(rig, "a")
    visitor.grant_credit(2)
    rig.run_until_idle()
    visitor.detach(received_count=1)
    claim.release(visitor)
    plain = rig.consumer()
    rig.run_until_idle()
    grant(rig, plain, 10)
    assert destinations_of(plain) == "a1 b3"
