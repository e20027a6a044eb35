"""Messages without a key go to all fragments in turn, and to another where one does not take them."""

from __future__ import annotations

import pytest

from tests.broker.consumers import Results
from tests.broker.harness import PARTITIONED, STORES, BrokerHarness
from tests.broker.messages import key_for_fragment, message
from tests.support.parts import local_part
from twinbus.amqp.message import Message
from twinbus.model.description import FRAGMENT_COUNT
from twinbus.model.errors import EntityDisabled, QuotaExceeded, ServerBusy, StoreUnavailable
from twinbus.model.limits import NamespaceLimits
from twinbus.model.message import PING_CONTENT_TYPE, POSSIBLE_DUPLICATE
from twinbus.model.queue import QueueDescription

OTHERS = [number for number in range(FRAGMENT_COUNT) if number % STORES]
"""Fragments that are not in store 0."""


def test_each_fragment_gets_one_in_turn() -> None:
    rig = BrokerHarness(PARTITIONED)
    rig.store_messages(*[message() for _ in range(2 * FRAGMENT_COUNT)])
    assert rig.counts_by_fragment() == [2] * FRAGMENT_COUNT


def test_r100_what_is_down_is_passed_over() -> None:
    rig = BrokerHarness(PARTITIONED)
    rig.fail_stores(0)
    rig.store_messages(*[message() for _ in range(24)])
    assert [number for number, count in enumerate(rig.counts_by_fragment()) if count] == OTHERS
    assert {count for count in rig.counts_by_fragment() if count} == {2}


def test_r100_a_message_on_its_way_to_a_store_that_fails_goes_elsewhere_and_is_answered_once() -> None:
    rig = BrokerHarness(PARTITIONED)
    rig.fail_next_sync(0)
    answers = [rig.send_messages(message(b"%d" % number)) for number in range(FRAGMENT_COUNT)]
    rig.run_until_idle()
    assert answers == [[None]] * FRAGMENT_COUNT
    rig.recover()
    assert sum(rig.counts_by_fragment()) == FRAGMENT_COUNT
    assert [rig.counts_by_fragment()[number] for number in range(0, FRAGMENT_COUNT, STORES)] == [0, 0, 0, 0]
    assert sorted(rig.consumer(100).bodies) == sorted(b"%d" % number for number in range(FRAGMENT_COUNT))


def test_q04_r100_a_message_that_a_failed_store_may_have_kept_is_marked_where_it_goes_and_no_other_is() -> None:
    rig = BrokerHarness(PARTITIONED)
    rig.fail_next_sync(0)
    for number in range(FRAGMENT_COUNT):
        rig.send_messages(message(b"%d" % number))
    rig.run_until_idle()
    marked, unmarked = bodies_of(rig)
    assert len(marked) == FRAGMENT_COUNT // STORES
    assert marked | unmarked == {b"%d" % number for number in range(FRAGMENT_COUNT)}


def test_r100_a_message_that_is_passed_on_from_a_store_known_to_be_down_is_not_marked() -> None:
    rig = BrokerHarness(PARTITIONED)
    rig.fail_stores(0)
    rig.store_messages(*[message(b"%d" % number) for number in range(24)])
    marked, unmarked = bodies_of(rig)
    assert (len(marked), len(unmarked)) == (0, 24)


def bodies_of(harness: BrokerHarness) -> tuple[set[bytes], set[bytes]]:
    """The bodies of all messages: of those that are marked as possible duplicates, and of the others."""
    found = [Message(payload) for payload, _ in harness.consumer(100).deliveries]
    marked = [dict(one.application_properties).get(POSSIBLE_DUPLICATE) is True for one in found]
    return (
        {one.data[0] for one, is_marked in zip(found, marked, strict=True) if is_marked},
        {one.data[0] for one, is_marked in zip(found, marked, strict=True) if not is_marked},
    )


def test_r100_a_message_on_its_way_to_a_store_that_hangs_goes_elsewhere_when_that_has_been_silent_for_long() -> None:
    rig = BrokerHarness(PARTITIONED)
    rig.stores[0].hang()
    answers = [rig.send_messages(message()) for _ in range(FRAGMENT_COUNT)]
    rig.run_until_idle()
    assert sum(len(one) for one in answers) == len(OTHERS)
    rig.advance(9.9)
    assert sum(len(one) for one in answers) == len(OTHERS)
    rig.advance(0.2)
    assert answers == [[None]] * FRAGMENT_COUNT


def test_its_sequence_number_is_that_of_where_it_came_to_lie() -> None:
    rig = BrokerHarness(PARTITIONED)
    rig.fail_next_sync(0)
    numbers: list[list[int]] = [[] for _ in range(FRAGMENT_COUNT)]
    for one in numbers:
        rig.send_messages(message(), numbers=one)
    rig.run_until_idle()
    assert {len(one) for one in numbers} == {1}
    assert {one[0] >> 48 for one in numbers} == set(OTHERS)
    assert len({one[0] for one in numbers}) == FRAGMENT_COUNT


def test_where_no_fragment_takes_it_the_sender_is_told_at_once() -> None:
    rig = BrokerHarness(PARTITIONED)
    rig.fail_stores(*range(STORES))
    with pytest.raises(StoreUnavailable):
        rig.send_messages(message())


def test_where_the_last_store_fails_with_it_the_sender_is_told_all_the_same() -> None:
    rig = BrokerHarness(PARTITIONED)
    rig.fail_stores(0, 1, 2)
    rig.fail_next_sync(3)
    answers = rig.send_messages(message())
    rig.run_until_idle()
    (error,) = answers
    assert isinstance(error, StoreUnavailable)


def test_where_it_is_not_allowed_any_more_when_a_store_fails_with_it_the_sender_is_told_so() -> None:
    rig = BrokerHarness(PARTITIONED)
    for store in range(STORES):
        rig.fail_next_sync(store)
    answers = rig.send_messages(message())
    rig.queue.set_status("SendDisabled")
    rig.run_until_idle()
    (error,) = answers
    assert isinstance(error, EntityDisabled)


def test_one_full_fragment_takes_nobody_with_it() -> None:
    rig = BrokerHarness(PARTITIONED)
    full = local_part(rig.queue, 5)
    full.stored_bytes = lambda: 1 << 40  # type: ignore[method-assign]
    rig.store_messages(*[message() for _ in range(2 * FRAGMENT_COUNT)])
    assert rig.counts_by_fragment()[5] == 0
    assert sum(rig.counts_by_fragment()) == 2 * FRAGMENT_COUNT
    with pytest.raises(QuotaExceeded):
        rig.send_messages(message(key=key_for_fragment(5)))


def test_what_all_fragments_are_too_full_for_is_refused() -> None:
    rig = BrokerHarness(PARTITIONED)
    for number in range(FRAGMENT_COUNT):
        local_part(rig.queue, number).stored_bytes = lambda: 1 << 40  # type: ignore[method-assign]
    with pytest.raises(QuotaExceeded):
        rig.send_messages(message())


def test_a_busy_store_is_passed_over_and_when_all_are_busy_the_sender_hears_so() -> None:
    rig = BrokerHarness(PARTITIONED, limits=NamespaceLimits(max_pending_bytes=1_000))
    large = bytes(2_000)
    answers = [rig.send_messages(message(large)) for _ in range(STORES)]
    with pytest.raises(ServerBusy):
        rig.send_messages(message(large))
    rig.run_until_idle()
    assert answers == [[None]] * STORES


@pytest.mark.parametrize("keyed", [False, True])
def test_a_batch_without_keys_or_of_one_goes_whole_to_one_fragment(*, keyed: bool) -> None:
    rig = BrokerHarness(PARTITIONED)
    answers = rig.send_batch(*[message(key="k" if keyed else None) for _ in range(5)])
    rig.run_until_idle()
    assert answers == [None]
    assert sorted(rig.counts_by_fragment()) == [0] * (FRAGMENT_COUNT - 1) + [5]


def test_pings_of_several_keys_are_answered_when_all_their_fragments_have_answered() -> None:
    rig = BrokerHarness(PARTITIONED)
    pings = [message(key=key_for_fragment(number), content_type=PING_CONTENT_TYPE) for number in (0, 1)]
    answers = rig.send_batch(*pings)
    rig.run_until_idle()
    assert answers == [None]
    rig.fail_stores(1)
    answers = rig.send_batch(*pings)
    rig.run_until_idle()
    (error,) = answers
    assert isinstance(error, StoreUnavailable)
    assert sum(rig.counts_by_fragment()) == 0


def test_with_duplicates_detected_every_message_has_a_key_and_copies_meet() -> None:
    rig = BrokerHarness(QueueDescription(enable_partitioning=True, requires_duplicate_detection=True))
    rig.store_messages(*[message(message_id=f"{number % 40}") for number in range(120)])
    assert sum(rig.counts_by_fragment()) == 40
    rig.crash()
    rig.store_messages(*[message(message_id=f"{number}") for number in range(50)])
    assert sum(rig.counts_by_fragment()) == 50


def test_a_store_that_was_silent_and_goes_on_stores_its_copy_too_and_the_sender_is_not_told_again() -> None:
    """As after a retry of the sender's: who must not have that asks for duplicates to be detected."""
    rig = BrokerHarness(PARTITIONED)
    rig.stores[0].hang()
    answers = Results()
    rig.queue.partitioner._next_fragment = 0  # noqa: SLF001  # the one in the store that hangs
    rig.queue.send(rig.incoming_batch(message(b"once")), answers)
    rig.run_until_idle()
    rig.advance(10.1)
    assert answers == [None]
    rig.stores[0].resume()
    rig.run_until_idle()
    assert answers == [None]
    assert sum(rig.counts_by_fragment()) == 2
