"""A queue refuses messages beyond its maximum size."""

from __future__ import annotations

import pytest

from tests.broker.consumers import Results
from tests.broker.harness import BrokerHarness
from tests.broker.messages import message
from tests.support.parts import local_part
from twinbus.model.errors import QuotaExceeded


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> BrokerHarness:
    monkeypatch.setattr("twinbus.broker.entities.part.MEGABYTE", 1)  # so that the limit is 1,024 bytes
    return BrokerHarness()


def test_a_full_queue_refuses_messages_and_reports_its_size(harness: BrokerHarness) -> None:
    harness.send_stored(bytes(700))
    with pytest.raises(QuotaExceeded, match=r"'orders'.*of 1,024"):
        harness.send(bytes(700))
    harness.send_stored(bytes(100))


def test_messages_not_yet_stored_count(harness: BrokerHarness) -> None:
    harness.send(bytes(700))
    with pytest.raises(QuotaExceeded):
        harness.send(bytes(700))


def test_a_batch_is_accepted_as_a_whole_or_refused(harness: BrokerHarness) -> None:
    with pytest.raises(QuotaExceeded):
        harness.send(bytes(700), bytes(700))
    harness.run_until_idle()
    assert harness.main_fragment.active_count == 0


def test_completed_messages_free_space(harness: BrokerHarness) -> None:
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


def test_a_refused_send_stores_nothing(harness: BrokerHarness) -> None:
    harness.send_stored(b"1")
    with pytest.raises(QuotaExceeded):
        harness.send(bytes(2_000))
    harness.fail_next_sync()
    harness.send(b"2")
    harness.run_until_idle()
    harness.reopen()
    harness.run_until_idle()
    assert harness.consumer(5).bodies == [b"1"]


def test_messages_in_transfer_to_another_entity_count(harness: BrokerHarness) -> None:
    results = Results()
    harness.queue.send_via(harness.incoming_batch(message(bytes(700))).records, "elsewhere", results)
    for _ in range(2):  # while in transfer, and as a transfer dead letter
        with pytest.raises(QuotaExceeded):
            harness.send(bytes(700))
        harness.run_until_idle()
    assert results == [None]
    assert harness.queue.runtime().transfer_dead_letter_count == 1


def test_a_resubmitted_dead_letter_must_fit_the_quota(harness: BrokerHarness) -> None:
    harness.send_stored(bytes(300))
    harness.main_fragment.settlement.dead_letter(harness.consumer(1).lock_numbers(), Results())
    harness.run_until_idle()
    replies: list[object] = []
    for size in (1_000, 400):
        local_part(harness.queue).resubmit([1], message(bytes(size)), harness.namespace.intake, replies.append)
        harness.run_until_idle()
    assert isinstance(replies[0], QuotaExceeded)
    assert replies[1] == [2]
    assert harness.counts() == (1, 0, 0, 0)
