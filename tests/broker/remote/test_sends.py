"""What is sent to a fragment of another process is stored there, and answered when it is on disk."""

from __future__ import annotations

import pytest

from tests.broker.consumers import Results
from tests.broker.harness import PARTITIONED, BrokerHarness
from tests.broker.messages import key_for_fragment, message
from twinbus.model.description import FRAGMENT_COUNT
from twinbus.model.errors import QuotaExceeded, StoreUnavailable
from twinbus.model.queue import QueueDescription


def test_messages_without_a_key_are_spread_over_the_fragments_of_both_processes() -> None:
    rig = BrokerHarness(PARTITIONED, processes=2)
    rig.store_messages(*[message(b"%d" % number) for number in range(2 * FRAGMENT_COUNT)])
    assert rig.counts_by_fragment() == [2] * FRAGMENT_COUNT


def test_a_message_with_a_key_lies_where_its_key_leads_whichever_process_it_was_sent_to() -> None:
    rig = BrokerHarness(PARTITIONED, processes=2)
    for fragment in range(FRAGMENT_COUNT):
        rig.store_messages(message(key=key_for_fragment(fragment)), by=rig.first_process)
        rig.store_messages(message(key=key_for_fragment(fragment)), by=rig.last_process)
    assert rig.counts_by_fragment() == [2] * FRAGMENT_COUNT


def test_the_numbers_that_the_owner_gave_are_told() -> None:
    rig = BrokerHarness(PARTITIONED, processes=2)
    numbers: list[int] = []
    assert rig.send_and_wait(message(key=key_for_fragment(3)), message(key=key_for_fragment(3)), numbers=numbers) == [
        None
    ]
    assert numbers == [(3 << 48) + 1, (3 << 48) + 2]


def test_a_send_is_not_answered_before_its_owner_has_it_on_disk() -> None:
    rig = BrokerHarness(PARTITIONED, processes=2)
    rig.silent_processes.add(1)
    answers = rig.send_and_wait(message(key=key_for_fragment(1)))
    assert answers == []
    rig.end_silence()
    assert answers == [None]
    assert rig.counts_by_fragment()[1] == 1


def test_without_its_owner_a_key_is_refused_and_what_has_none_goes_elsewhere() -> None:
    rig = BrokerHarness(PARTITIONED, processes=2)
    rig.disconnect()
    with pytest.raises(StoreUnavailable, match="not there"):
        rig.send_and_wait(message(key=key_for_fragment(1)))
    rig.store_messages(*[message() for _ in range(FRAGMENT_COUNT)])
    assert [count for place, count in enumerate(rig.counts_by_fragment()) if place % 2 == 0] == [2] * (
        FRAGMENT_COUNT // 2
    )


def test_what_waits_for_an_owner_that_goes_is_answered_and_without_a_key_stored_elsewhere() -> None:
    rig = BrokerHarness(PARTITIONED, processes=2)
    rig.silent_processes.add(1)
    keyed = rig.send_and_wait(message(key=key_for_fragment(1)))
    keyless = [rig.send_and_wait(message()) for _ in range(FRAGMENT_COUNT)]
    rig.disconnect()
    assert isinstance(keyed[0], StoreUnavailable)
    assert keyless == [[None]] * FRAGMENT_COUNT


def test_an_owner_that_is_silent_for_too_long_counts_as_unavailable_until_it_speaks() -> None:
    rig = BrokerHarness(PARTITIONED, processes=2)
    rig.silent_processes.add(1)
    answers = rig.send_and_wait(message(key=key_for_fragment(1)))
    for _ in range(11):
        rig.advance(1.0)
    assert isinstance(answers[0], StoreUnavailable)
    assert not rig.queue.parts[1].main.is_available
    rig.end_silence()
    assert rig.queue.parts[1].main.is_available


def test_duplicates_are_found_by_the_owner() -> None:
    rig = BrokerHarness(QueueDescription(enable_partitioning=True, requires_duplicate_detection=True), processes=2)
    for process in (rig.first_process, rig.last_process):
        for number in range(20):
            rig.store_messages(message(message_id=f"id {number}"), by=process)
    assert sum(rig.counts_by_fragment()) == 20


def test_a_fragment_that_is_full_refuses_what_its_owner_has_no_room_for() -> None:
    rig = BrokerHarness(PARTITIONED, processes=2)
    rig.last_process.queue.parts[1].main.local.message_table.active_bytes = 2**30
    assert isinstance(rig.send_and_wait(message(key=key_for_fragment(1)))[0], QuotaExceeded)
    rig.store_messages(message(key=key_for_fragment(3)))


def test_an_entity_that_its_owner_has_not_heard_of_yet_may_be_tried_again() -> None:
    rig = BrokerHarness(PARTITIONED, processes=2)
    queue, answers = rig.first_process.add_queue(9, "new", QueueDescription(), 1), Results()
    parcel = rig.incoming_batch(message(), to=queue)
    queue.send(parcel, answers)
    rig.run_until_idle()
    assert isinstance(answers[0], StoreUnavailable)
    rig.last_process.add_queue(9, "new", QueueDescription(), 1)
    queue.send(parcel, answers)
    rig.run_until_idle()
    assert answers[1] is None
