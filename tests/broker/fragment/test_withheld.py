"""Messages that an exclusive receiver withholds keep their positions, and other messages are delivered."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.broker.consumers import FakeConsumer, Results
from tests.broker.fragment.test_redelivery import attach_exclusive, detach
from tests.broker.harness import BrokerHarness
from tests.broker.messages import message
from tests.broker.topic_harness import LARGE, TopicHarness
from tests.support.parts import local_part
from twinbus.amqp.codec.encode import encode
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


def store_payloads(harness: BrokerHarness, *payloads: bytes) -> None:
    assert harness.send_and_wait(*payloads) == [None]


def store_destinations(harness: BrokerHarness, words: str) -> None:
    """Store a message for each word: the word is its body, and the word's first letter its property `to`."""
    store_payloads(harness, *[message(word.encode(), to=word[0]) for word in words.split()])


def withhold(harness: BrokerHarness, *values: str, name: str = "to", of: Fragment | None = None) -> None:
    """Withhold values, as the management operation does."""
    dispatcher = (of or harness.main_fragment).dispatcher
    assert isinstance(dispatcher, Dispatcher)
    dispatcher.withhold(name, values)
    dispatcher.dispatch()
    harness.run_until_idle()


def grant(harness: BrokerHarness, consumer: FakeConsumer, credit: int) -> None:
    consumer.grant(credit)
    harness.run_until_idle()


def destinations_of(consumer: FakeConsumer) -> str:
    return b" ".join(consumer.bodies).decode()


def restarted(harness: BrokerHarness) -> BrokerHarness:
    """Restart the broker on the same disk."""
    harness.crash()
    return harness


# --- order ------------------------------------------------------------------------------------------------------------


def test_other_messages_are_delivered_and_withheld_ones_stay_active() -> None:
    harness = BrokerHarness()
    store_destinations(harness, "a1 b2 a3 b4")
    receiver = attach_exclusive(harness, 1, 0)
    withhold(harness, "a")
    grant(harness, receiver, 10)
    assert destinations_of(receiver) == "b2 b4"
    harness.main_fragment.settlement.complete(receiver.lock_numbers(), Results())
    harness.run_until_idle()
    assert harness.counts() == (2, 0, 0, 0)


def test_released_messages_come_in_order_and_before_later_ones() -> None:
    harness = BrokerHarness()
    store_destinations(harness, "a1 b2 a3 b4")
    receiver = attach_exclusive(harness, 1, 0)
    withhold(harness, "a")
    grant(harness, receiver, 1)
    store_destinations(harness, "a5 b6")
    withhold(harness)
    grant(harness, receiver, 10)
    assert destinations_of(receiver) == "b2 a1 a3 b4 a5 b6"


def test_a_request_replaces_the_previous_one() -> None:
    harness = BrokerHarness()
    store_destinations(harness, "a1 b2 c3 a4 b5 c6")
    receiver = attach_exclusive(harness, 1, 0)
    withhold(harness, "a", "b")
    withhold(harness, "b", "c")
    grant(harness, receiver, 10)
    assert destinations_of(receiver) == "a1 a4"
    withhold(harness, "a", name="another property")
    assert destinations_of(receiver) == "a1 a4 b2 c3 b5 c6"


def test_arrivals_with_a_withheld_value_are_skipped_and_others_delivered() -> None:
    harness = BrokerHarness()
    receiver = attach_exclusive(harness, 1, 10)
    withhold(harness, "a")
    store_destinations(harness, "a1 b2")
    store_destinations(harness, "a3")
    store_destinations(harness, "b4 a5")
    assert destinations_of(receiver) == "b2 b4"
    withhold(harness)
    assert destinations_of(receiver) == "b2 b4 a1 a3 a5"


@pytest.mark.parametrize("way", ["release", "abandon", "let the lock expire"])
def test_a_message_returned_while_withheld_is_delivered_after_its_value_is_released(way: str) -> None:
    harness = BrokerHarness()
    store_destinations(harness, "a1 a2 b3")
    receiver = attach_exclusive(harness, 1, 2)
    withhold(harness, "a")
    if way == "release":
        harness.main_fragment.settlement.release(receiver.lock_numbers(), Results())
    elif way == "abandon":
        harness.main_fragment.settlement.abandon(receiver.lock_numbers(), Results())
    else:
        harness.advance(LOCK_S + 1)
    harness.run_until_idle()
    grant(harness, receiver, 10)
    assert destinations_of(receiver) == "a1 a2 b3"
    withhold(harness)
    assert destinations_of(receiver) == "a1 a2 b3 a1 a2"


def test_more_messages_than_the_window_holds_can_be_withheld() -> None:
    harness = BrokerHarness()
    count = WINDOW_MESSAGES + 500
    store_destinations(harness, " ".join([f"a{number}" for number in range(count)]) + " b")
    receiver = attach_exclusive(harness, 1, 0)
    withhold(harness, "a")
    grant(harness, receiver, count)
    assert destinations_of(receiver) == "b"
    assert not harness.window.ready
    withhold(harness)
    grant(harness, receiver, 1)
    assert receiver.bodies == [b"b", *[b"a%d" % number for number in range(count)]]


# --- receivers --------------------------------------------------------------------------------------------------------


def test_the_next_receiver_gets_all_messages_in_order() -> None:
    harness = BrokerHarness()
    store_destinations(harness, "a1 b2 a3 b4")
    first = attach_exclusive(harness, 1, 0)
    withhold(harness, "a")
    grant(harness, first, 1)
    detach(harness, first)
    second = attach_exclusive(harness, 2, 10)
    assert destinations_of(second) == "a1 b2 a3 b4"


def test_a_drain_ends_although_messages_are_withheld() -> None:
    harness = BrokerHarness()
    store_destinations(harness, "a1 b2 a3")
    receiver = attach_exclusive(harness, 1, 0)
    withhold(harness, "a")
    receiver.credit = 10
    receiver.drain()
    harness.run_until_idle()
    assert (destinations_of(receiver), receiver.drain_count) == ("b2", 1)


def test_receive_and_delete_deletes_no_withheld_messages() -> None:
    harness = BrokerHarness()
    store_destinations(harness, "a1 b2 a3")
    receiver = harness.consumer(deletes=True)
    withhold(harness, "a")
    grant(harness, receiver, 10)
    assert (destinations_of(receiver), harness.counts()[0]) == ("b2", 2)
    withhold(harness)
    assert (destinations_of(receiver), harness.counts()[0]) == ("b2 a1 a3", 0)


def test_withheld_messages_that_were_deleted_are_not_delivered() -> None:
    harness = BrokerHarness()
    store_destinations(harness, "a1 a2 a3")
    receiver = attach_exclusive(harness, 1, 10)
    harness.main_fragment.settlement.release(receiver.lock_numbers(), Results())
    withhold(harness, "a")
    before = len(receiver.deliveries)
    harness.main_fragment.removal.remove_active(RemovalCriteria(max_count=2), lambda _: None)
    harness.run_until_idle()
    withhold(harness)
    assert receiver.bodies[before:] == [b"a3"]


# --- outages ----------------------------------------------------------------------------------------------------------


def test_values_stay_withheld_after_a_store_failure_and_no_message_is_lost() -> None:
    harness = BrokerHarness()
    store_destinations(harness, "a1 b2 a3 b4")
    receiver = attach_exclusive(harness, 1, 0)
    withhold(harness, "a")
    grant(harness, receiver, 1)
    harness.restart()
    grant(harness, receiver, 10)
    assert destinations_of(receiver) == "b2 b2 b4"
    store_destinations(harness, "a5 b6")
    withhold(harness)
    assert destinations_of(receiver) == "b2 b2 b4 b6 a1 a3 a5"


def test_withheld_messages_are_delivered_after_a_restart() -> None:
    harness = BrokerHarness()
    store_destinations(harness, "b1 a2 b3 a4 b5")
    receiver = attach_exclusive(harness, 1, 0)
    withhold(harness, "a")
    grant(harness, receiver, 10)
    harness.main_fragment.settlement.complete(receiver.lock_numbers(), Results())
    harness.run_until_idle()
    store_destinations(harness, "b6")
    assert harness.main_fragment.message_table.low_watermark == 2
    other = restarted(harness)
    assert destinations_of(attach_exclusive(other, 2, 10)) == "a2 a4 b6"


def test_the_low_water_mark_moves_on_when_released_messages_are_completed() -> None:
    harness = BrokerHarness()
    store_destinations(harness, "a1 b2 a3")
    receiver = attach_exclusive(harness, 1, 10)
    withhold(harness, "a")
    harness.main_fragment.settlement.release(receiver.lock_numbers(), Results())
    harness.run_until_idle()
    withhold(harness)
    harness.main_fragment.settlement.complete(receiver.lock_numbers()[-3:], Results())
    harness.run_until_idle()
    store_destinations(harness, "b4")
    assert harness.main_fragment.message_table.low_watermark == 4


# --- encodings --------------------------------------------------------------------------------------------------------


def with_long_text(text: str) -> bytes:
    """Return a message whose property is a short string with a four-byte length, as some clients write it."""
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
def test_withholding_does_not_depend_on_the_encoding_of_the_property(name: str) -> None:
    harness = BrokerHarness()
    store_payloads(harness, (WITHHELD | DELIVERED)[name])
    receiver = attach_exclusive(harness, 1, 0)
    withhold(harness, "a", LONG, "größe", "")
    grant(harness, receiver, 1)
    assert len(receiver.deliveries) == (name in DELIVERED)
    withhold(harness)
    assert len(receiver.deliveries) == 1


def test_messages_with_shared_bodies_are_withheld() -> None:
    harness = TopicHarness()
    subscription, _ = harness.subscribe("one"), harness.subscribe("other")
    harness.store_messages(message(LARGE + b"1", to="a"), message(LARGE + b"2", to="b"), to=harness.topic)
    assert harness.shared_body_counts() == (2, 0)
    receiver = harness.consumer(of=local_part(subscription).main)
    withhold(harness, "a", of=local_part(subscription).main)
    grant(harness, receiver, 10)
    assert receiver.bodies == [LARGE + b"2"]
    withhold(harness, of=local_part(subscription).main)
    assert receiver.bodies == [LARGE + b"2", LARGE + b"1"]


def test_a_receiver_that_attaches_before_an_exclusive_receivers_messages_return_gets_all() -> None:
    """The exclusive receiver is in another process and deletes: undelivered messages must be stored again first."""
    harness = BrokerHarness()
    store_destinations(harness, "a1 b2 b3")
    remote = RemoteConsumer(1, harness.main_fragment, client_id=1, receive_and_delete=True, notify=lambda _notice: None)
    exclusive_receiver = ExclusiveReceiver()
    exclusive_receiver.assign(remote, 7, [harness.main_fragment])
    assert isinstance(harness.main_fragment.dispatcher, Dispatcher)
    harness.main_fragment.dispatcher.add(remote)
    withhold(harness, "a")
    remote.grant_credit(2)
    harness.run_until_idle()
    remote.detach(received_count=1)
    exclusive_receiver.release(remote)
    plain = harness.consumer()
    harness.run_until_idle()
    grant(harness, plain, 10)
    assert destinations_of(plain) == "a1 b3"
