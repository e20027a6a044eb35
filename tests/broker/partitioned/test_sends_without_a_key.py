"""Messages without a key go to all fragments in turn, and to another fragment if one does not accept them."""

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


def test_each_fragment_gets_a_message_in_turn() -> None:
    harness = BrokerHarness(PARTITIONED)
    harness.store_messages(*[message() for _ in range(2 * FRAGMENT_COUNT)])
    assert harness.counts_by_fragment() == [2] * FRAGMENT_COUNT


def test_r100_unavailable_fragments_are_skipped() -> None:
    harness = BrokerHarness(PARTITIONED)
    harness.fail_stores(0)
    harness.store_messages(*[message() for _ in range(24)])
    assert [number for number, count in enumerate(harness.counts_by_fragment()) if count] == OTHERS
    assert {count for count in harness.counts_by_fragment() if count} == {2}


def test_r100_a_message_for_a_failing_store_is_rerouted_and_confirmed_once() -> None:
    harness = BrokerHarness(PARTITIONED)
    harness.fail_next_sync(0)
    results = [harness.send_messages(message(b"%d" % number)) for number in range(FRAGMENT_COUNT)]
    harness.run_until_idle()
    assert results == [[None]] * FRAGMENT_COUNT
    harness.recover()
    assert sum(harness.counts_by_fragment()) == FRAGMENT_COUNT
    assert [harness.counts_by_fragment()[number] for number in range(0, FRAGMENT_COUNT, STORES)] == [0, 0, 0, 0]
    assert sorted(harness.consumer(100).bodies) == sorted(b"%d" % number for number in range(FRAGMENT_COUNT))


def test_q04_r100_only_messages_a_failed_store_may_have_stored_are_marked() -> None:
    harness = BrokerHarness(PARTITIONED)
    harness.fail_next_sync(0)
    for number in range(FRAGMENT_COUNT):
        harness.send_messages(message(b"%d" % number))
    harness.run_until_idle()
    marked, unmarked = bodies_of(harness)
    assert len(marked) == FRAGMENT_COUNT // STORES
    assert marked | unmarked == {b"%d" % number for number in range(FRAGMENT_COUNT)}


def test_r100_a_message_rerouted_from_an_unavailable_store_is_not_marked() -> None:
    harness = BrokerHarness(PARTITIONED)
    harness.fail_stores(0)
    harness.store_messages(*[message(b"%d" % number) for number in range(24)])
    marked, unmarked = bodies_of(harness)
    assert (len(marked), len(unmarked)) == (0, 24)


def bodies_of(harness: BrokerHarness) -> tuple[set[bytes], set[bytes]]:
    """Return the bodies of messages marked as possible duplicates, and of all others."""
    received = [Message(payload) for payload, _ in harness.consumer(100).deliveries]
    marked = [
        dict(received_message.application_properties).get(POSSIBLE_DUPLICATE) is True for received_message in received
    ]
    return (
        {received_message.data[0] for received_message, is_marked in zip(received, marked, strict=True) if is_marked},
        {
            received_message.data[0]
            for received_message, is_marked in zip(received, marked, strict=True)
            if not is_marked
        },
    )


def test_r100_a_message_for_a_hanging_store_is_rerouted_after_a_timeout() -> None:
    harness = BrokerHarness(PARTITIONED)
    harness.stores[0].hang()
    results = [harness.send_messages(message()) for _ in range(FRAGMENT_COUNT)]
    harness.run_until_idle()
    assert sum(len(result) for result in results) == len(OTHERS)
    harness.advance(9.9)
    assert sum(len(result) for result in results) == len(OTHERS)
    harness.advance(0.2)
    assert results == [[None]] * FRAGMENT_COUNT


def test_the_sequence_number_is_that_of_the_fragment_that_stored_the_message() -> None:
    harness = BrokerHarness(PARTITIONED)
    harness.fail_next_sync(0)
    numbers: list[list[int]] = [[] for _ in range(FRAGMENT_COUNT)]
    for assigned in numbers:
        harness.send_messages(message(), numbers=assigned)
    harness.run_until_idle()
    assert {len(assigned) for assigned in numbers} == {1}
    assert {assigned[0] >> 48 for assigned in numbers} == set(OTHERS)
    assert len({assigned[0] for assigned in numbers}) == FRAGMENT_COUNT


def test_a_send_fails_at_once_if_no_fragment_is_available() -> None:
    harness = BrokerHarness(PARTITIONED)
    harness.fail_stores(*range(STORES))
    with pytest.raises(StoreUnavailable):
        harness.send_messages(message())


def test_a_send_fails_if_the_last_available_store_fails() -> None:
    harness = BrokerHarness(PARTITIONED)
    harness.fail_stores(0, 1, 2)
    harness.fail_next_sync(3)
    results = harness.send_messages(message())
    harness.run_until_idle()
    (error,) = results
    assert isinstance(error, StoreUnavailable)


def test_a_send_fails_if_the_queue_is_disabled_before_it_is_rerouted() -> None:
    harness = BrokerHarness(PARTITIONED)
    for store in range(STORES):
        harness.fail_next_sync(store)
    results = harness.send_messages(message())
    harness.queue.set_status("SendDisabled")
    harness.run_until_idle()
    (error,) = results
    assert isinstance(error, EntityDisabled)


def test_a_full_fragment_does_not_affect_the_others() -> None:
    harness = BrokerHarness(PARTITIONED)
    full = local_part(harness.queue, 5)
    full.stored_bytes = lambda: 1 << 40  # type: ignore[method-assign]
    harness.store_messages(*[message() for _ in range(2 * FRAGMENT_COUNT)])
    assert harness.counts_by_fragment()[5] == 0
    assert sum(harness.counts_by_fragment()) == 2 * FRAGMENT_COUNT
    with pytest.raises(QuotaExceeded):
        harness.send_messages(message(key=key_for_fragment(5)))


def test_a_send_is_refused_if_all_fragments_are_full() -> None:
    harness = BrokerHarness(PARTITIONED)
    for number in range(FRAGMENT_COUNT):
        local_part(harness.queue, number).stored_bytes = lambda: 1 << 40  # type: ignore[method-assign]
    with pytest.raises(QuotaExceeded):
        harness.send_messages(message())


def test_a_busy_store_is_skipped_and_the_send_fails_if_all_are_busy() -> None:
    harness = BrokerHarness(PARTITIONED, limits=NamespaceLimits(max_pending_bytes=1_000))
    large = bytes(2_000)
    results = [harness.send_messages(message(large)) for _ in range(STORES)]
    with pytest.raises(ServerBusy):
        harness.send_messages(message(large))
    harness.run_until_idle()
    assert results == [[None]] * STORES


@pytest.mark.parametrize("keyed", [False, True])
def test_a_batch_with_at_most_one_key_goes_to_one_fragment(*, keyed: bool) -> None:
    harness = BrokerHarness(PARTITIONED)
    results = harness.send_batch(*[message(key="k" if keyed else None) for _ in range(5)])
    harness.run_until_idle()
    assert results == [None]
    assert sorted(harness.counts_by_fragment()) == [0] * (FRAGMENT_COUNT - 1) + [5]


def test_pings_of_several_keys_test_all_their_fragments() -> None:
    harness = BrokerHarness(PARTITIONED)
    pings = [message(key=key_for_fragment(number), content_type=PING_CONTENT_TYPE) for number in (0, 1)]
    results = harness.send_batch(*pings)
    harness.run_until_idle()
    assert results == [None]
    harness.fail_stores(1)
    results = harness.send_batch(*pings)
    harness.run_until_idle()
    (error,) = results
    assert isinstance(error, StoreUnavailable)
    assert sum(harness.counts_by_fragment()) == 0


def test_with_duplicate_detection_copies_go_to_the_same_fragment() -> None:
    harness = BrokerHarness(QueueDescription(enable_partitioning=True, requires_duplicate_detection=True))
    harness.store_messages(*[message(message_id=f"{number % 40}") for number in range(120)])
    assert sum(harness.counts_by_fragment()) == 40
    harness.crash()
    harness.store_messages(*[message(message_id=f"{number}") for number in range(50)])
    assert sum(harness.counts_by_fragment()) == 50


def test_a_store_that_resumes_stores_its_copy_and_the_sender_is_not_notified_again() -> None:
    """Like a retry of the sender, this stores two copies; duplicate detection would remove one."""
    harness = BrokerHarness(PARTITIONED)
    harness.stores[0].hang()
    results = Results()
    harness.queue.partitioner._next_fragment = 0  # noqa: SLF001  # the fragment in the hanging store
    harness.queue.send(harness.incoming_batch(message(b"once")), results)
    harness.run_until_idle()
    harness.advance(10.1)
    assert results == [None]
    harness.stores[0].resume()
    harness.run_until_idle()
    assert results == [None]
    assert sum(harness.counts_by_fragment()) == 2
