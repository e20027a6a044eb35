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


def ask(harness: BrokerHarness, operation: str, sub_queue: SubQueue = SubQueue.MAIN, **arguments: object) -> Response:
    administration: Any = None
    subject = RequestContext(
        harness.namespace, administration, harness.queue, sub_queue, lambda *_: None, lambda _: False
    )
    replies: list[Response] = []
    values = {name.replace("_", "-"): value for name, value in arguments.items()}
    PARTITIONED_OPERATIONS[operation](subject, Arguments(values, max_id_characters=128), replies.append)
    harness.run_until_idle()
    (reply,) = replies
    return reply


def peek(harness: BrokerHarness, start: int, count: int, sub_queue: SubQueue = SubQueue.MAIN) -> list[Message]:
    body = ask(harness, PEEK, sub_queue, from_sequence_number=start, message_count=count).body
    assert isinstance(body, dict | None)
    return [Message(item["message"]) for item in (body or {}).get("messages", [])]


def peek_all(harness: BrokerHarness, count: int, sub_queue: SubQueue = SubQueue.MAIN) -> list[bytes]:
    """Page by page, as the SDKs do."""
    found: list[bytes] = []
    start = 0
    while page := peek(harness, start, count, sub_queue):
        found += [one.data[0] for one in page]
        last = page[-1].lookup(Section.MESSAGE_ANNOTATIONS, "x-opt-sequence-number")
        assert isinstance(last, int)
        start = last + 1
        assert len(found) < 10_000
    return found


def bodies(count: int) -> list[bytes]:
    return [b"%04d" % number for number in range(count)]


@pytest.mark.parametrize("count", [1, 7, 100])
def test_q28_they_come_in_the_order_of_their_age(count: int) -> None:
    rig = BrokerHarness(PARTITIONED)
    for body in bodies(60):
        rig.store_messages(message(body))
        rig.clock.advance(0.001)
    assert peek_all(rig, count) == bodies(60)


@pytest.mark.parametrize("count", [1, 3, 10])
def test_q28_none_is_left_out_where_more_than_a_page_of_each_fragment_are_of_the_same_time(count: int) -> None:
    rig = BrokerHarness(PARTITIONED)
    for number in range(FRAGMENT_COUNT):
        rig.store_messages(*[message(b"%d-%d" % (number, one), key=key_for_fragment(number)) for one in range(12)])
    found = peek_all(rig, count)
    assert len(found) == len(set(found)) == 12 * FRAGMENT_COUNT


@pytest.mark.parametrize("count", [1, 3, 50])
def test_q28_deferred_messages_are_among_them_also_where_nothing_else_is_left_in_their_fragment(count: int) -> None:
    rig = BrokerHarness(PARTITIONED)
    for body in bodies(48):
        rig.store_messages(message(body))
        rig.clock.advance(0.001)
    consumer = rig.consumer(48)
    for _, tag in consumer.deliveries:
        fragment = consumer.multi_fragment_receiver.fragment_of_tag(tag)
        if fragment.number % 2:
            fragment.settlement.defer(fragment.lock_numbers([tag]), Results())
    rig.run_until_idle()
    rig.store_messages(
        *[message(b"late", key=key_for_fragment(number)) for number in range(FRAGMENT_COUNT)]
    )  # low-water marks go on
    found = peek_all(rig, count)
    assert [body for body in found if body != b"late"] == bodies(48)
    assert found.count(b"late") == FRAGMENT_COUNT


@pytest.mark.parametrize("count", [1, 4, 50])
def test_dead_letters_are_all_shown_though_they_are_not_in_the_order_of_their_age(count: int) -> None:
    rig = BrokerHarness(PARTITIONED)
    for body in bodies(64):
        rig.store_messages(message(body))
        rig.clock.advance(0.001)
    consumer = rig.consumer(64)
    for _, tag in reversed(consumer.deliveries):
        fragment = consumer.multi_fragment_receiver.fragment_of_tag(tag)
        fragment.settlement.dead_letter(
            fragment.lock_numbers([tag]), Results(), reason=None, description=None, properties={}
        )
        rig.run_until_idle()
    found = peek_all(rig, count, SubQueue.DEAD_LETTER)
    assert sorted(found) == bodies(64)


def test_q28_where_a_fragment_does_not_answer_the_answer_says_so() -> None:
    rig = BrokerHarness(PARTITIONED)
    rig.store_messages(*[message(b"%d" % number, key=key_for_fragment(number)) for number in range(FRAGMENT_COUNT)])
    rig.fail_stores(1)
    reply = ask(rig, PEEK, from_sequence_number=0, message_count=100)
    assert isinstance(reply.body, dict)
    assert reply.body["twinbus:unavailable-fragments"] == list(range(1, FRAGMENT_COUNT, STORES))
    assert len(reply.body["messages"]) == FRAGMENT_COUNT - FRAGMENT_COUNT // STORES


# --- deferred messages of several fragments ---------------------------------------------------------------------------

RECEIVE = "com.microsoft:receive-by-sequence-number"


def deferred(harness: BrokerHarness, *fragments: int) -> list[int]:
    """The numbers of deferred messages, one in each of these fragments."""
    harness.store_messages(*[message(b"%d" % number, key=key_for_fragment(number)) for number in fragments])
    consumer = harness.consumer(len(fragments))
    for _, tag in consumer.deliveries:
        fragment = consumer.multi_fragment_receiver.fragment_of_tag(tag)
        fragment.settlement.defer(fragment.lock_numbers([tag]), Results())
    harness.run_until_idle()
    consumer.leave()
    return [(number << 48) + 1 for number in fragments]


def counts(harness: BrokerHarness) -> int:
    return sum(main.message_table.committed.deferred_count for main in harness.main_fragments)


def test_deferred_messages_of_several_fragments_are_received_together() -> None:
    rig = BrokerHarness(PARTITIONED)
    numbers = deferred(rig, 1, 2, 3)
    reply = ask(rig, RECEIVE, sequence_numbers=numbers, receiver_settle_mode=1)
    assert isinstance(reply.body, dict)
    assert len(reply.body["messages"]) == 3
    assert counts(rig) == 3


def test_where_one_is_not_there_none_is_given_and_none_stays_locked() -> None:
    rig = BrokerHarness(PARTITIONED)
    numbers = deferred(rig, 1, 2)
    for mode in (0, 1):
        reply = ask(rig, RECEIVE, sequence_numbers=[*numbers, (5 << 48) + 9], receiver_settle_mode=mode)
        assert reply.properties["statusCode"] == 404
    assert counts(rig) == 2
    reply = ask(rig, RECEIVE, sequence_numbers=numbers, receiver_settle_mode=0)
    assert reply.properties["statusCode"] == 200
    assert counts(rig) == 0


def test_who_deletes_them_is_answered_when_they_are_deleted_on_disk() -> None:
    rig = BrokerHarness(PARTITIONED)
    numbers = deferred(rig, 1, 2)
    rig.fail_next_sync(1)
    reply = ask(rig, RECEIVE, sequence_numbers=numbers, receiver_settle_mode=0)
    assert reply.properties["statusCode"] not in (200, 204)
    rig.recover()
    assert [main.message_table.committed.deferred_count for main in rig.main_fragments][1] == 1


def test_with_a_store_down_it_is_answered_with_that() -> None:
    rig = BrokerHarness(PARTITIONED)
    numbers = deferred(rig, 1, 2)
    rig.fail_stores(2)
    reply = ask(rig, RECEIVE, sequence_numbers=numbers, receiver_settle_mode=1)
    assert reply.properties["statusCode"] not in (200, 204)
    rig.recover()
    reply = ask(rig, RECEIVE, sequence_numbers=numbers, receiver_settle_mode=1)
    assert reply.properties["statusCode"] == 200


# --- dead letters that are sent again ---------------------------------------------------------------------------------


def dead_letter(harness: BrokerHarness, payload: bytes) -> int:
    harness.store_messages(payload)
    consumer = harness.consumer(1)
    fragment = consumer.multi_fragment_receiver.fragment_of_tag(consumer.deliveries[0][1])
    numbers = fragment.lock_numbers([consumer.deliveries[0][1]])
    fragment.settlement.dead_letter(numbers, Results(), reason=None, description=None, properties={})
    harness.run_until_idle()
    consumer.leave()
    return (fragment.number << 48) + 1


def test_a_dead_letter_is_resubmitted_with_other_contents_but_not_with_a_key_of_another_fragment() -> None:
    rig = BrokerHarness(PARTITIONED)
    number = dead_letter(rig, message(b"before", key=key_for_fragment(3)))
    resubmit = "twinbus:resubmit"
    with pytest.raises(InvalidOperation, match="another fragment"):
        ask(
            rig,
            resubmit,
            SubQueue.DEAD_LETTER,
            sequence_numbers=[number],
            message=message(b"after", key=key_for_fragment(4)),
        )
    reply = ask(
        rig,
        resubmit,
        SubQueue.DEAD_LETTER,
        sequence_numbers=[number],
        message=message(b"after", key=key_for_fragment(3, salt=1)),
    )
    assert reply.properties["statusCode"] == 200
    assert rig.counts_by_fragment()[3] == 1
    assert rig.consumer(1).bodies == [b"after"]
