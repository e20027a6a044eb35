"""Peeking shows every message of all fragments once, over any number of pages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.broker.consumers import Results
from tests.broker.harness import PARTITIONED, STORES, BrokerHarness
from tests.broker.messages import key_for_fragment, message
from twinbus.amqp.message import Message, Section
from twinbus.model.description import FRAGMENT_COUNT
from twinbus.model.errors import InvalidOperation
from twinbus.model.path import SubQueue
from twinbus.server.amqp.management.arguments import Arguments
from twinbus.server.amqp.management.partitioned_operations import PARTITIONED_OPERATIONS
from twinbus.server.amqp.management.request_context import RequestContext

if TYPE_CHECKING:
    from twinbus.server.amqp.request_link import Response

PEEK = "com.microsoft:peek-message"


def request(
    harness: BrokerHarness, operation: str, sub_queue: SubQueue = SubQueue.MAIN, **arguments: object
) -> Response:
    administration: Any = None
    context = RequestContext(
        harness.namespace, administration, harness.queue, sub_queue, lambda *_: None, lambda _: False
    )
    replies: list[Response] = []
    values = {name.replace("_", "-"): value for name, value in arguments.items()}
    PARTITIONED_OPERATIONS[operation](context, Arguments(values, max_id_characters=128), replies.append)
    harness.run_until_idle()
    (reply,) = replies
    return reply


def peek(harness: BrokerHarness, start: int, count: int, sub_queue: SubQueue = SubQueue.MAIN) -> list[Message]:
    body = request(harness, PEEK, sub_queue, from_sequence_number=start, message_count=count).body
    assert isinstance(body, dict | None)
    return [Message(item["message"]) for item in (body or {}).get("messages", [])]


def peek_all(harness: BrokerHarness, count: int, sub_queue: SubQueue = SubQueue.MAIN) -> list[bytes]:
    """Peek page by page, as the SDKs do."""
    peeked: list[bytes] = []
    start = 0
    while page := peek(harness, start, count, sub_queue):
        peeked += [peeked_message.data[0] for peeked_message in page]
        last = page[-1].lookup(Section.MESSAGE_ANNOTATIONS, "x-opt-sequence-number")
        assert isinstance(last, int)
        start = last + 1
        assert len(peeked) < 10_000
    return peeked


def bodies(count: int) -> list[bytes]:
    return [b"%04d" % number for number in range(count)]


@pytest.mark.parametrize("count", [1, 7, 100])
def test_q28_peeked_messages_come_in_the_order_of_their_age(count: int) -> None:
    harness = BrokerHarness(PARTITIONED)
    for body in bodies(60):
        harness.store_messages(message(body))
        harness.clock.advance(0.001)
    assert peek_all(harness, count) == bodies(60)


@pytest.mark.parametrize("count", [1, 3, 10])
def test_q28_no_message_is_skipped_if_more_than_a_page_have_the_same_time(count: int) -> None:
    harness = BrokerHarness(PARTITIONED)
    for number in range(FRAGMENT_COUNT):
        harness.store_messages(
            *[message(b"%d-%d" % (number, item), key=key_for_fragment(number)) for item in range(12)]
        )
    peeked = peek_all(harness, count)
    assert len(peeked) == len(set(peeked)) == 12 * FRAGMENT_COUNT


@pytest.mark.parametrize("count", [1, 3, 50])
def test_q28_deferred_messages_are_peeked_even_if_their_fragment_has_no_others(count: int) -> None:
    harness = BrokerHarness(PARTITIONED)
    for body in bodies(48):
        harness.store_messages(message(body))
        harness.clock.advance(0.001)
    consumer = harness.consumer(48)
    for _, tag in consumer.deliveries:
        fragment = consumer.multi_fragment_receiver.fragment_of_tag(tag)
        if fragment.number % 2:
            fragment.settlement.defer(fragment.lock_numbers([tag]), Results())
    harness.run_until_idle()
    harness.store_messages(
        *[message(b"late", key=key_for_fragment(number)) for number in range(FRAGMENT_COUNT)]
    )  # moves the low watermarks
    peeked = peek_all(harness, count)
    assert [body for body in peeked if body != b"late"] == bodies(48)
    assert peeked.count(b"late") == FRAGMENT_COUNT


@pytest.mark.parametrize("count", [1, 4, 50])
def test_all_dead_letters_are_peeked_although_they_are_not_in_the_order_of_their_age(count: int) -> None:
    harness = BrokerHarness(PARTITIONED)
    for body in bodies(64):
        harness.store_messages(message(body))
        harness.clock.advance(0.001)
    consumer = harness.consumer(64)
    for _, tag in reversed(consumer.deliveries):
        fragment = consumer.multi_fragment_receiver.fragment_of_tag(tag)
        fragment.settlement.dead_letter(
            fragment.lock_numbers([tag]), Results(), reason=None, description=None, properties={}
        )
        harness.run_until_idle()
    peeked = peek_all(harness, count, SubQueue.DEAD_LETTER)
    assert sorted(peeked) == bodies(64)


def test_q28_the_response_names_unavailable_fragments() -> None:
    harness = BrokerHarness(PARTITIONED)
    harness.store_messages(*[message(b"%d" % number, key=key_for_fragment(number)) for number in range(FRAGMENT_COUNT)])
    harness.fail_stores(1)
    reply = request(harness, PEEK, from_sequence_number=0, message_count=100)
    assert isinstance(reply.body, dict)
    assert reply.body["twinbus:unavailable-fragments"] == list(range(1, FRAGMENT_COUNT, STORES))
    assert len(reply.body["messages"]) == FRAGMENT_COUNT - FRAGMENT_COUNT // STORES


# --- deferred messages of several fragments ---------------------------------------------------------------------------

RECEIVE = "com.microsoft:receive-by-sequence-number"


def store_deferred(harness: BrokerHarness, *fragments: int) -> list[int]:
    """Store a deferred message in each of these fragments; return their sequence numbers."""
    harness.store_messages(*[message(b"%d" % number, key=key_for_fragment(number)) for number in fragments])
    consumer = harness.consumer(len(fragments))
    for _, tag in consumer.deliveries:
        fragment = consumer.multi_fragment_receiver.fragment_of_tag(tag)
        fragment.settlement.defer(fragment.lock_numbers([tag]), Results())
    harness.run_until_idle()
    consumer.leave()
    return [(number << 48) + 1 for number in fragments]


def deferred_count(harness: BrokerHarness) -> int:
    return sum(main.message_table.committed.deferred_count for main in harness.main_fragments)


def test_deferred_messages_of_several_fragments_are_received_together() -> None:
    harness = BrokerHarness(PARTITIONED)
    numbers = store_deferred(harness, 1, 2, 3)
    reply = request(harness, RECEIVE, sequence_numbers=numbers, receiver_settle_mode=1)
    assert isinstance(reply.body, dict)
    assert len(reply.body["messages"]) == 3
    assert deferred_count(harness) == 3


def test_if_a_deferred_message_is_missing_none_is_received_or_stays_locked() -> None:
    harness = BrokerHarness(PARTITIONED)
    numbers = store_deferred(harness, 1, 2)
    for mode in (0, 1):
        reply = request(harness, RECEIVE, sequence_numbers=[*numbers, (5 << 48) + 9], receiver_settle_mode=mode)
        assert reply.properties["statusCode"] == 404
    assert deferred_count(harness) == 2
    reply = request(harness, RECEIVE, sequence_numbers=numbers, receiver_settle_mode=0)
    assert reply.properties["statusCode"] == 200
    assert deferred_count(harness) == 0


def test_receive_and_delete_responds_after_the_messages_are_deleted_on_disk() -> None:
    harness = BrokerHarness(PARTITIONED)
    numbers = store_deferred(harness, 1, 2)
    harness.fail_next_sync(1)
    reply = request(harness, RECEIVE, sequence_numbers=numbers, receiver_settle_mode=0)
    assert reply.properties["statusCode"] not in (200, 204)
    harness.recover()
    assert [main.message_table.committed.deferred_count for main in harness.main_fragments][1] == 1


def test_receiving_deferred_messages_fails_if_a_store_is_unavailable() -> None:
    harness = BrokerHarness(PARTITIONED)
    numbers = store_deferred(harness, 1, 2)
    harness.fail_stores(2)
    reply = request(harness, RECEIVE, sequence_numbers=numbers, receiver_settle_mode=1)
    assert reply.properties["statusCode"] not in (200, 204)
    harness.recover()
    reply = request(harness, RECEIVE, sequence_numbers=numbers, receiver_settle_mode=1)
    assert reply.properties["statusCode"] == 200


# --- resubmitted dead letters -----------------------------------------------------------------------------------------


def dead_letter(harness: BrokerHarness, payload: bytes) -> int:
    harness.store_messages(payload)
    consumer = harness.consumer(1)
    fragment = consumer.multi_fragment_receiver.fragment_of_tag(consumer.deliveries[0][1])
    numbers = fragment.lock_numbers([consumer.deliveries[0][1]])
    fragment.settlement.dead_letter(numbers, Results(), reason=None, description=None, properties={})
    harness.run_until_idle()
    consumer.leave()
    return (fragment.number << 48) + 1


def test_a_dead_letter_cannot_be_resubmitted_with_a_key_of_another_fragment() -> None:
    harness = BrokerHarness(PARTITIONED)
    number = dead_letter(harness, message(b"before", key=key_for_fragment(3)))
    resubmit = "twinbus:resubmit"
    with pytest.raises(InvalidOperation, match="another fragment"):
        request(
            harness,
            resubmit,
            SubQueue.DEAD_LETTER,
            sequence_numbers=[number],
            message=message(b"after", key=key_for_fragment(4)),
        )
    reply = request(
        harness,
        resubmit,
        SubQueue.DEAD_LETTER,
        sequence_numbers=[number],
        message=message(b"after", key=key_for_fragment(3, salt=1)),
    )
    assert reply.properties["statusCode"] == 200
    assert harness.counts_by_fragment()[3] == 1
    assert harness.consumer(1).bodies == [b"after"]
