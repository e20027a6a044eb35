"""What is sent to a fragment of another process is stored there, and answered when it is on disk."""

from __future__ import annotations

import pytest

from tests.broker.partitioned.rig import key_for, message
from tests.broker.remote.rig import TwoProcesses
from tests.broker.rig import Answers
from twinbus.broker.ports.incoming import Parcel
from twinbus.model.description import FRAGMENTS
from twinbus.model.errors import QuotaExceeded, StoreUnavailable
from twinbus.model.queue import QueueDescription


def test_messages_without_a_key_are_spread_over_the_fragments_of_both_processes() -> None:
    rig = TwoProcesses()
    rig.stored(*[message(b"%d" % number) for number in range(2 * FRAGMENTS)])
    assert rig.counts() == [2] * FRAGMENTS


def test_a_message_with_a_key_lies_where_its_key_leads_whichever_process_it_was_sent_to() -> None:
    rig = TwoProcesses()
    for fragment in range(FRAGMENTS):
        rig.stored(message(key=key_for(fragment)), by=rig.near)
        rig.stored(message(key=key_for(fragment)), by=rig.far)
    assert rig.counts() == [2] * FRAGMENTS


def test_the_numbers_that_the_owner_gave_are_told() -> None:
    rig = TwoProcesses()
    numbers: list[int] = []
    assert rig.send(message(key=key_for(3)), message(key=key_for(3)), numbers=numbers) == [None]
    assert numbers == [(3 << 48) + 1, (3 << 48) + 2]


def test_a_send_is_not_answered_before_its_owner_has_it_on_disk() -> None:
    rig = TwoProcesses()
    rig.silent.add(1)
    answers = rig.send(message(key=key_for(1)))
    assert answers == []
    rig.wake()
    assert answers == [None]
    assert rig.counts()[1] == 1


def test_without_its_owner_a_key_is_refused_and_what_has_none_goes_elsewhere() -> None:
    rig = TwoProcesses()
    rig.disconnect()
    with pytest.raises(StoreUnavailable, match="not there"):
        rig.send(message(key=key_for(1)))
    rig.stored(*[message() for _ in range(FRAGMENTS)])
    assert [count for place, count in enumerate(rig.counts()) if place % 2 == 0] == [2] * (FRAGMENTS // 2)


def test_what_waits_for_an_owner_that_goes_is_answered_and_without_a_key_stored_elsewhere() -> None:
    rig = TwoProcesses()
    rig.silent.add(1)
    keyed = rig.send(message(key=key_for(1)))
    keyless = [rig.send(message()) for _ in range(FRAGMENTS)]
    rig.disconnect()
    assert isinstance(keyed[0], StoreUnavailable)
    assert keyless == [[None]] * FRAGMENTS


def test_an_owner_that_is_silent_for_too_long_counts_as_unavailable_until_it_speaks() -> None:
    rig = TwoProcesses()
    rig.silent.add(1)
    answers = rig.send(message(key=key_for(1)))
    for _ in range(11):
        rig.wait(1.0)
    assert isinstance(answers[0], StoreUnavailable)
    assert not rig.queue().parts[1].main.is_available
    rig.wake()
    assert rig.queue().parts[1].main.is_available


def test_duplicates_are_found_by_the_owner() -> None:
    rig = TwoProcesses(QueueDescription(enable_partitioning=True, requires_duplicate_detection=True))
    for process in (rig.near, rig.far):
        for number in range(20):
            rig.stored(message(message_id=f"id {number}"), by=process)
    assert sum(rig.counts()) == 20


def test_a_fragment_that_is_full_refuses_what_its_owner_has_no_room_for() -> None:
    rig = TwoProcesses()
    rig.queue(rig.far).parts[1].main.local.holdings.active_bytes = 2**30
    assert isinstance(rig.send(message(key=key_for(1)))[0], QuotaExceeded)
    rig.stored(message(key=key_for(3)))


def test_an_entity_that_its_owner_has_not_heard_of_yet_may_be_tried_again() -> None:
    rig = TwoProcesses()
    queue, answers, parcel = rig.near.add_queue(9, "new", QueueDescription(), 1), Answers(), Parcel()
    rig.near.namespace.intake.add_to(parcel, message(), 0, rig.clock.wall_ms(), queue.terms)
    queue.send(parcel, answers)
    rig.settle()
    assert isinstance(answers[0], StoreUnavailable)
    rig.far.add_queue(9, "new", QueueDescription(), 1)
    queue.send(parcel, answers)
    rig.settle()
    assert answers[1] is None
