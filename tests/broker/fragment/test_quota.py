"""A queue takes no more than its size."""

from __future__ import annotations

import pytest

from tests.broker.consumers import Results
from tests.broker.harness import BrokerHarness
from tests.broker.messages import message
from tests.support.parts import local_part
from twinbus.model.errors import QuotaExceeded


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> BrokerHarness:
    monkeypatch.setattr("twinbus.broker.entities.part.MEGABYTE", 1)  # so that its 1,024 are bytes
    return BrokerHarness()


def test_a_full_queue_refuses_and_says_how_full_it_is(harness: BrokerHarness) -> None:
    harness.send_stored(bytes(700))
    with pytest.raises(QuotaExceeded, match=r"'orders'.*of 1,024"):
        harness.send(bytes(700))
    harness.send_stored(bytes(100))


def test_what_is_on_its_way_counts(harness: BrokerHarness) -> None:
    harness.send(bytes(700))
    with pytest.raises(QuotaExceeded):
        harness.send(bytes(700))


def test_a_batch_is_taken_whole_or_not(harness: BrokerHarness) -> None:
    with pytest.raises(QuotaExceeded):
        harness.send(bytes(700), bytes(700))
    harness.run_until_idle()
    assert harness.main_fragment.active_count == 0


def test_what_was_received_makes_room(harness: BrokerHarness) -> None:
    harness.send_stored(bytes(700))
    harness.main_fragment.settlement.complete(harness.consumer(1).lock_numbers(), Results())
    harness.send_stored(bytes(700))


def test_dead_letters_count(harness: BrokerHarness) -> None:
    harness.send_stored(bytes(700))
    harness.main_fragment.settlement.dead_letter(harness.consumer(1).lock_numbers(), Results())
    harness.run_until_idle()
    assert harness.queue.runtime().active_count == 0
    with pytest.raises(QuotaExceeded):
        harness.send(bytes(700))


def test_a_refused_send_leaves_no_trace(harness: BrokerHarness) -> None:
    harness.send_stored(b"1")
    with pytest.raises(QuotaExceeded):
        harness.send(bytes(2_000))
    harness.fail_next_sync()
    harness.send(b"2")
    harness.run_until_idle()
    harness.reopen()
    harness.run_until_idle()
    assert harness.consumer(5).bodies == [b"1"]


def test_messages_on_their_way_to_another_entity_count(harness: BrokerHarness) -> None:
    answers = Results()
    harness.queue.send_via(harness.incoming_batch(message(bytes(700))).records, "elsewhere", answers)
    for _ in range(2):  # on its way, and where it could not be forwarded
        with pytest.raises(QuotaExceeded):
            harness.send(bytes(700))
        harness.run_until_idle()
    assert answers == [None]
    assert harness.queue.runtime().transfer_dead_letter_count == 1


def test_a_dead_letter_is_not_made_larger_than_there_is_room_for(harness: BrokerHarness) -> None:
    harness.send_stored(bytes(300))
    harness.main_fragment.settlement.dead_letter(harness.consumer(1).lock_numbers(), Results())
    harness.run_until_idle()
    found: list[object] = []
    for size in (1_000, 400):
        local_part(harness.queue).resubmit([1], message(bytes(size)), harness.namespace.intake, found.append)
        harness.run_until_idle()
    assert isinstance(found[0], QuotaExceeded)
    assert found[1] == [2]
    assert harness.counts() == (1, 0, 0, 0)
