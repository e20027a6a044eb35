"""Deferred messages stay until a receiver requests them by sequence number."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.broker.consumers import Results
from tests.broker.harness import BrokerHarness
from tests.broker.messages import annotation_of, property_of
from twinbus.amqp.message import Message
from twinbus.model.errors import MessageNotFound, ServiceBusError
from twinbus.model.queue import QueueDescription

if TYPE_CHECKING:
    from twinbus.broker.fragment.deferral import ReceivedMessages

LOCKING = QueueDescription(lock_duration_ms=30_000, max_delivery_count=3)


def harness_with_deferred(*bodies: bytes, description: QueueDescription = LOCKING) -> BrokerHarness:
    harness = BrokerHarness(description)
    harness.send_stored(*bodies)
    consumer = harness.consumer(len(bodies))
    results = Results()
    assert harness.main_fragment.settlement.defer(consumer.lock_numbers(), results) == []
    harness.run_until_idle()
    assert results == [None]
    harness.main_fragment.dispatcher.remove(consumer)
    return harness


def receive(harness: BrokerHarness, *numbers: int, deletes: bool = False) -> ReceivedMessages:
    replies: list[ReceivedMessages | ServiceBusError] = []
    harness.main_fragment.deferral.receive(list(numbers), replies.append, receive_and_delete=deletes)
    harness.run_until_idle()
    [reply] = replies
    if isinstance(reply, ServiceBusError):
        raise reply
    return reply


def test_a_deferred_message_is_not_delivered_to_consumers() -> None:
    harness = harness_with_deferred(b"a", b"b")
    assert harness.counts() == (0, 2, 0, 0)
    assert harness.consumer(9).bodies == []
    harness.restart()
    assert harness.consumer(9).bodies == []
    assert harness.counts() == (0, 2, 0, 0)


def test_a_deferred_message_is_received_by_number_and_completed() -> None:
    harness = harness_with_deferred(b"a", b"b")
    [(payload, token)] = receive(harness, 2)
    assert Message(payload).data == [b"b"]
    results = Results()
    assert harness.main_fragment.settlement.complete(harness.main_fragment.lock_numbers([token]), results) == []
    harness.run_until_idle()
    assert results == [None]
    assert harness.counts() == (0, 1, 0, 0)


def test_deferred_messages_are_received_by_number_and_deleted() -> None:
    harness = harness_with_deferred(b"a", b"b")
    received = receive(harness, 1, 2, deletes=True)
    assert [(Message(payload).data, token) for payload, token in received] == [([b"a"], b""), ([b"b"], b"")]
    assert harness.counts() == (0, 0, 0, 0)


@pytest.mark.parametrize("numbers", [(3,), (1, 99), (2, 3)])
def test_either_all_requested_messages_are_received_or_none(numbers: tuple[int, ...]) -> None:
    harness = harness_with_deferred(b"a", b"b")
    harness.send_stored(b"active")
    with pytest.raises(MessageNotFound):
        receive(harness, *numbers)
    assert len(receive(harness, 1, 2)) == 2


def test_a_locked_deferred_message_is_not_delivered_again() -> None:
    harness = harness_with_deferred(b"a")
    receive(harness, 1)
    with pytest.raises(MessageNotFound, match="locked"):
        receive(harness, 1)


@pytest.mark.parametrize("how", ["abandoned", "lock expired"])
def test_a_returned_message_stays_deferred_with_a_higher_delivery_count(how: str) -> None:
    harness = harness_with_deferred(b"a")
    for delivered in range(2):
        [(payload, token)] = receive(harness, 1)
        header = Message(payload).header
        assert header is not None
        assert header.delivery_count == delivered
        if how == "abandoned":
            harness.main_fragment.settlement.abandon(harness.main_fragment.lock_numbers([token]), Results())
            harness.run_until_idle()
        else:
            harness.advance(31)
    assert harness.counts() == (0, 1, 0, 0)
    assert harness.consumer(5).bodies == []
    [(_, token)] = receive(harness, 1)
    harness.main_fragment.settlement.abandon(harness.main_fragment.lock_numbers([token]), Results())
    harness.run_until_idle()
    assert harness.counts() == (0, 0, 0, 1)
    [dead] = harness.consumer(5, of=harness.dead_letters).messages
    assert property_of(dead, "DeadLetterReason") == "MaxDeliveryCountExceeded"


@pytest.mark.parametrize("deletes", [False, True])
def test_a_deferred_message_has_the_deferred_state_annotation(deletes: bool) -> None:  # noqa: FBT001
    [(payload, _)] = receive(harness_with_deferred(b"a"), 1, deletes=deletes)
    assert annotation_of(Message(payload), "x-opt-message-state") == 1


def test_a_message_can_be_deferred_again_with_properties() -> None:
    harness = harness_with_deferred(b"a")
    [(_, token)] = receive(harness, 1)
    harness.main_fragment.settlement.defer(harness.main_fragment.lock_numbers([token]), Results(), {"why": "not yet"})
    harness.run_until_idle()
    [(payload, _)] = receive(harness, 1)
    assert Message(payload).application_properties == {"why": "not yet"}
    assert harness.counts() == (0, 1, 0, 0)


def test_only_the_holder_of_its_session_receives_a_deferred_message() -> None:
    harness = BrokerHarness(QueueDescription(requires_session=True, lock_duration_ms=30_000))
    harness.send_stored(b"a", session="s")
    consumer = harness.accept_session(b"s", 1)
    harness.main_fragment.settlement.defer(consumer.lock_numbers(), Results())
    harness.run_until_idle()
    replies: list[ReceivedMessages | ServiceBusError] = []
    harness.main_fragment.deferral.receive(
        [1], replies.append, receive_and_delete=False, session_id=b"t", session_locked_until_ms=1
    )
    harness.run_until_idle()
    harness.main_fragment.deferral.receive(
        [1], replies.append, receive_and_delete=False, session_id=b"s", session_locked_until_ms=1
    )
    harness.run_until_idle()
    assert isinstance(replies[0], MessageNotFound)
    assert isinstance(replies[1], list)
    harness.main_fragment.dispatcher.remove(consumer)  # which frees the messages it had locked
    harness.main_fragment.deferral.receive(
        [1], replies.append, receive_and_delete=False, session_id=b"s", session_locked_until_ms=1
    )
    harness.run_until_idle()
    assert isinstance(replies[2], list)


def test_peeking_shows_every_state_in_order() -> None:
    harness = harness_with_deferred(b"deferred")
    harness.send_stored(b"active")
    harness.send_stored(b"scheduled", due_ms=harness.clock.wall_ms() + 60_000)
    harness.send_stored(b"last")
    replies: list[list[bytes] | ServiceBusError] = []
    harness.main_fragment.browser.peek(1, 3, 1_000_000, replies.append)
    harness.main_fragment.browser.peek(4, 3, 1_000_000, replies.append)
    harness.run_until_idle()
    pages = [[Message(payload) for payload in page] for page in replies if isinstance(page, list)]
    assert [[peeked.data[0] for peeked in page] for page in pages] == [
        [b"deferred", b"active", b"scheduled"],
        [b"last"],
    ]
    states = [annotation_of(peeked, "x-opt-message-state") for peeked in pages[0]]
    assert states == [1, None, 2]
