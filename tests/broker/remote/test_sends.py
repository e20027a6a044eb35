"""Messages sent to a fragment of another process are stored there and confirmed when they are on disk."""

from __future__ import annotations

import pytest

from tests.broker.consumers import Results
from tests.broker.harness import PARTITIONED, BrokerHarness
from tests.broker.messages import key_for_fragment, message
from twinbus.model.description import FRAGMENT_COUNT
from twinbus.model.errors import QuotaExceeded, StoreUnavailable
from twinbus.model.queue import QueueDescription


def test_messages_without_a_key_are_spread_over_the_fragments_of_both_processes() -> None:
    harness = BrokerHarness(PARTITIONED, processes=2)
    harness.store_messages(*[message(b"%d" % number) for number in range(2 * FRAGMENT_COUNT)])
    assert harness.counts_by_fragment() == [2] * FRAGMENT_COUNT


def test_a_message_goes_to_the_fragment_of_its_key_from_either_process() -> None:
    harness = BrokerHarness(PARTITIONED, processes=2)
    for fragment in range(FRAGMENT_COUNT):
        harness.store_messages(message(key=key_for_fragment(fragment)), by=harness.first_process)
        harness.store_messages(message(key=key_for_fragment(fragment)), by=harness.last_process)
    assert harness.counts_by_fragment() == [2] * FRAGMENT_COUNT


def test_the_sender_gets_the_sequence_numbers_of_the_owner() -> None:
    harness = BrokerHarness(PARTITIONED, processes=2)
    numbers: list[int] = []
    assert harness.send_and_wait(
        message(key=key_for_fragment(3)), message(key=key_for_fragment(3)), numbers=numbers
    ) == [None]
    assert numbers == [(3 << 48) + 1, (3 << 48) + 2]


def test_a_send_is_not_confirmed_before_the_owner_has_it_on_disk() -> None:
    harness = BrokerHarness(PARTITIONED, processes=2)
    harness.silent_processes.add(1)
    results = harness.send_and_wait(message(key=key_for_fragment(1)))
    assert results == []
    harness.end_silence()
    assert results == [None]
    assert harness.counts_by_fragment()[1] == 1


def test_without_the_owner_keyed_sends_fail_and_keyless_ones_go_elsewhere() -> None:
    harness = BrokerHarness(PARTITIONED, processes=2)
    harness.disconnect()
    with pytest.raises(StoreUnavailable, match="not connected"):
        harness.send_and_wait(message(key=key_for_fragment(1)))
    harness.store_messages(*[message() for _ in range(FRAGMENT_COUNT)])
    assert [count for fragment, count in enumerate(harness.counts_by_fragment()) if fragment % 2 == 0] == [2] * (
        FRAGMENT_COUNT // 2
    )


def test_pending_sends_fail_or_go_elsewhere_when_the_owner_disconnects() -> None:
    harness = BrokerHarness(PARTITIONED, processes=2)
    harness.silent_processes.add(1)
    keyed = harness.send_and_wait(message(key=key_for_fragment(1)))
    keyless = [harness.send_and_wait(message()) for _ in range(FRAGMENT_COUNT)]
    harness.disconnect()
    assert isinstance(keyed[0], StoreUnavailable)
    assert keyless == [[None]] * FRAGMENT_COUNT


def test_an_owner_that_does_not_respond_is_unavailable_until_it_does() -> None:
    harness = BrokerHarness(PARTITIONED, processes=2)
    harness.silent_processes.add(1)
    results = harness.send_and_wait(message(key=key_for_fragment(1)))
    for _ in range(11):
        harness.advance(1.0)
    assert isinstance(results[0], StoreUnavailable)
    assert not harness.queue.parts[1].main.is_available
    harness.end_silence()
    assert harness.queue.parts[1].main.is_available


def test_duplicates_are_detected_by_the_owner() -> None:
    harness = BrokerHarness(QueueDescription(enable_partitioning=True, requires_duplicate_detection=True), processes=2)
    for process in (harness.first_process, harness.last_process):
        for number in range(20):
            harness.store_messages(message(message_id=f"id {number}"), by=process)
    assert sum(harness.counts_by_fragment()) == 20


def test_a_full_fragment_of_another_process_refuses_messages() -> None:
    harness = BrokerHarness(PARTITIONED, processes=2)
    harness.last_process.queue.parts[1].main.local.message_table.active_bytes = 2**30
    assert isinstance(harness.send_and_wait(message(key=key_for_fragment(1)))[0], QuotaExceeded)
    harness.store_messages(message(key=key_for_fragment(3)))


def test_a_send_to_an_entity_unknown_to_its_owner_can_be_retried() -> None:
    harness = BrokerHarness(PARTITIONED, processes=2)
    queue, results = harness.first_process.add_queue(9, "new", QueueDescription(), 1), Results()
    batch = harness.incoming_batch(message(), to=queue)
    queue.send(batch, results)
    harness.run_until_idle()
    assert isinstance(results[0], StoreUnavailable)
    harness.last_process.add_queue(9, "new", QueueDescription(), 1)
    queue.send(batch, results)
    harness.run_until_idle()
    assert results[1] is None
