"""Bulk sends: `send_many` behaves like as many single sends; and senders that ignore credit."""

from __future__ import annotations

from tests.amqp.engine.engine_pair import EnginePair
from twinbus.amqp.errors import LocalError
from twinbus.amqp.events import DeliveriesReceived, SendsUpdated
from twinbus.amqp.outcomes import ACCEPTED
from twinbus.amqp.settings import Limits

MESSAGES = [(b"payload %d" % number, b"tag %d" % number) for number in range(50)]


def received(pair: EnginePair) -> list[tuple[bytes, bytes]]:
    events = pair.server.events_of(DeliveriesReceived)
    return [(delivery.payload, delivery.tag) for event in events for delivery in event.deliveries]


def test_a_bulk_send_delivers_all_messages_with_their_tags_and_uses_their_credit() -> None:
    pair = EnginePair()
    sender, receiver = pair.sender(credit=60)
    sender.send_many(MESSAGES, settled=False)
    assert sender.credit == 10
    pair.exchange()
    assert received(pair) == MESSAGES
    assert receiver.credit == 10


def test_a_bulk_send_reports_the_outcome_of_each_message() -> None:
    pair = EnginePair()
    sender, receiver = pair.sender(credit=60)
    sender.send_many(MESSAGES, settled=False)
    pair.exchange()
    for event in pair.server.events_of(DeliveriesReceived):
        receiver.settle(event.deliveries, ACCEPTED)
    pair.exchange()
    updates = pair.client.events_of(SendsUpdated)
    assert [delivery.tag for event in updates for delivery in event.deliveries] == [tag for _, tag in MESSAGES]
    assert sender.unsettled_count == 0


def test_a_settled_bulk_send_waits_for_no_outcome() -> None:
    pair = EnginePair()
    sender, _ = pair.sender(credit=60)
    sender.send_many(MESSAGES, settled=True)
    assert sender.unsettled_count == 0
    pair.exchange()
    assert received(pair) == MESSAGES
    assert all(delivery.settled for event in pair.server.events_of(DeliveriesReceived) for delivery in event.deliveries)


def test_messages_beyond_the_peers_window_follow_later() -> None:
    pair = EnginePair(server=Limits(incoming_window=20))
    sender, _ = pair.sender(credit=60)
    sender.send_many(MESSAGES, settled=False)
    pair.exchange()
    assert received(pair) == MESSAGES


def test_messages_larger_than_a_frame_are_split() -> None:
    pair = EnginePair(server=Limits(max_frame_size=1024))
    sender, _ = pair.sender(credit=10)
    large = [(bytes([number]) * 5_000, b"%d" % number) for number in range(3)]
    sender.send_many([*large, (b"small", b"s")], settled=False)
    pair.exchange()
    assert received(pair) == [*large, (b"small", b"s")]


def test_a_bulk_send_beyond_the_credit_is_refused() -> None:
    pair = EnginePair()
    sender, _ = pair.sender(credit=49)
    try:
        sender.send_many(MESSAGES, settled=False)
    except LocalError as error:
        refusal = str(error)
    assert "no credit" in refusal


def test_a_sender_that_ignores_credit_sends_without_credit() -> None:
    pair = EnginePair(server=Limits(enforce_credit=False))
    sender, _ = pair.sender(credit=1)
    sender.ignores_credit = True
    for payload, tag in MESSAGES[:3]:
        sender.send(payload, tag, settled=True)
    assert sender.credit == 0
    pair.exchange()
    assert received(pair) == MESSAGES[:3]
