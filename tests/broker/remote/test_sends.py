"""What is sent to a fragment of another process is stored there, and answered when it is on disk."""

from __future__ import annotations

import pytest

from tests.broker.consumers import Answers
from tests.broker.messages import key_for, message
from tests.broker.rig import PARTITIONED, Rig
from twinbus.model.description import FRAGMENTS
from twinbus.model.errors import QuotaExceeded, StoreUnavailable
from twinbus.model.queue import QueueDescription


def test_messages_without_a_key_are_spread_over_the_fragments_of_both_processes() -> None:
    rig = Rig(PARTITIONED, processes=2)
    rig.store_messages(*[message(b"%d" % number) for number in range(2 * FRAGMENTS)])
    assert rig.counts_by_fragment() == [2] * FRAGMENTS


def test_a_message_with_a_key_lies_where_its_key_leads_whichever_process_it_was_sent_to() -> None:
    rig = Rig(PARTITIONED, processes=2)
    for fragment in range(FRAGMENTS):
        rig.store_messages(message(key=key_for(fragment)), by=rig.near)
        rig.store_messages(message(key=key_for(fragment)), by=rig.far)
    assert rig.counts_by_fragment() == [2] * FRAGMENTS


def test_the_numbers_that_the_owner_gave_are_told() -> None:
    rig = Rig(PARTITIONED, processes=2)
    numbers: list[int] = []
    assert rig.sent(message(key=key_for(3)), message(key=key_for(3)), numbers=numbers) == [None]
    assert numbers == [(3 << 48) + 1, (3 << 48) + 2]


def test_a_send_is_not_answered_before_its_owner_has_it_on_disk() -> None:
    rig = Rig(PARTITIONED, processes=2)
    rig.silent.add(1)
    answers = rig.sent(message(key=key_for(1)))
    assert answers == []
    rig.wake()
    assert answers == [None]
    assert rig.counts_by_fragment()[1] == 1


def test_without_its_owner_a_key_is_refused_and_what_has_none_goes_elsewhere() -> None:
    rig = Rig(PARTITIONED, processes=2)
    rig.disconnect()
    with pytest.raises(StoreUnavailable, match="not there"):
        rig.sent(message(key=key_for(1)))
    rig.store_messages(*[message() for _ in range(FRAGMENTS)])
    assert [count for place, count in enumerate(rig.counts_by_fragment()) if place % 2 == 0] == [2] * (FRAGMENTS // 2)


def test_what_waits_for_an_owner_that_goes_is_answered_and_without_a_key_stored_elsewhere() -> None:
    rig = Rig(PARTITIONED, processes=2)
    rig.silent.add(1)
    keyed = rig.sent(message(key=key_for(1)))
    keyless = [rig.sent(message()) for _ in range(FRAGMENTS)]
    rig.disconnect()
    assert isinstance(keyed[0], StoreUnavailable)
    assert keyless == [[None]] * FRAGMENTS


def test_an_owner_that_is_silent_for_too_long_counts_as_unavailable_until_it_speaks() -> None:
    rig = Rig(PARTITIONED, processes=2)
    rig.silent.add(1)
    answers = rig.sent(message(key=key_for(1)))
    for _ in range(11):
        rig.wait(1.0)
    assert isinstance(answers[0], StoreUnavailable)
    assert not rig.queue.parts[1].main.is_available
    rig.wake()
    assert rig.queue.parts[1].main.is_available


def test_duplicates_are_found_by_the_owner() -> None:
    rig = Rig(QueueDescription(enable_partitioning=True, requires_duplicate_detection=True), processes=2)
    for process in (rig.near, rig.far):
        for number in range(20):
            rig.store_messages(message(message_id=f"id {number}"), by=process)
    assert sum(rig.counts_by_fragment()) == 20


def test_a_fragment_that_is_full_refuses_what_its_owner_has_no_room_for() -> None:
    rig = Rig(PARTITIONED, processes=2)
    rig.far.queue.parts[1].main.local.holdings.active_bytes = 2**30
    assert isinstance(rig.sent(message(key=key_for(1)))[0], QuotaExceeded)
    rig.store_messages(message(key=key_for(3)))


def test_an_entity_that_its_owner_has_not_heard_of_yet_may_be_tried_again() -> None:
    rig = Rig(PARTITIONED, processes=2)
    queue, answers = rig.near.add_queue(9, "new", QueueDescription(), 1), Answers()
    parcel = rig.parcel(message(), to=queue)
    queue.send(parcel, answers)
    rig.settle()
    assert isinstance(answers[0], StoreUnavailable)
    rig.far.add_queue(9, "new", QueueDescription(), 1)
    queue.send(parcel, answers)
    rig.settle()
    assert answers[1] is None
