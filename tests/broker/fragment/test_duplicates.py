"""Duplicate detection: duplicates within the window are accepted and dropped, also after a restart."""

from __future__ import annotations

from tests.broker.harness import BrokerHarness
from tests.broker.messages import message
from twinbus.broker.store_keys import DUPLICATE_IDS
from twinbus.model.partition_key import digest_of
from twinbus.model.queue import QueueDescription

DETECTING = QueueDescription(requires_duplicate_detection=True, duplicate_window_ms=60_000)


def test_a_second_message_with_the_same_id_is_accepted_and_dropped() -> None:
    harness = BrokerHarness(DETECTING)
    harness.send_stored(b"first", message_id="1")
    harness.send_stored(b"second", message_id="1")
    harness.send_stored(b"other", message_id="2")
    assert harness.consumer(9).bodies == [b"first", b"other"]


def test_a_message_not_yet_stored_counts_as_the_original() -> None:
    harness = BrokerHarness(DETECTING)
    results = [harness.send(b"%d" % number, message_id="1") for number in range(3)]
    harness.run_until_idle()
    assert results == [[None]] * 3
    assert harness.counts() == (1, 0, 0, 0)


def test_a_duplicate_is_not_accepted_before_the_original_is_on_disk() -> None:
    harness = BrokerHarness(DETECTING)
    first = harness.send(b"first", message_id="1")
    harness.run_until_commit()
    second = harness.send(b"second", message_id="1")
    harness.fail_next_sync()
    harness.run_until_idle()
    assert first[0] is not None
    assert second[0] is not None


def test_duplicates_inside_a_batch_are_detected() -> None:
    harness = BrokerHarness(DETECTING)
    numbers: list[int] = []
    batch = [message(b"x", message_id=message_id) for message_id in ("1", "2", "1", "3")]
    results = harness.send_batch(*batch, numbers=numbers)
    harness.run_until_idle()
    assert results == [None]
    assert numbers == [1, 2, 0, 3]
    assert harness.counts() == (3, 0, 0, 0)


def test_the_detection_window_starts_at_the_first_message() -> None:
    harness = BrokerHarness(DETECTING)
    harness.send_stored(b"first", message_id="1")
    harness.advance(40)
    harness.send_stored(b"dropped", message_id="1")
    harness.advance(21)
    harness.send_stored(b"late", message_id="1")
    assert harness.consumer(9).bodies == [b"first", b"late"]


def test_the_id_of_a_completed_message_is_remembered_after_a_restart() -> None:
    harness = BrokerHarness(DETECTING)
    harness.send_stored(b"first", message_id="1")
    harness.consumer(1, deletes=True)
    harness.restart()
    harness.send_stored(b"again", message_id="1")
    assert harness.counts() == (0, 0, 0, 0)


def test_old_ids_are_deleted_from_disk() -> None:
    harness = BrokerHarness(DETECTING)
    for number in range(10):
        harness.send_stored(b"x", message_id=str(number))
        harness.advance(30)
    assert harness.index_row_count(DUPLICATE_IDS) <= 5


def test_ids_of_different_types_are_different() -> None:
    assert len({digest_of(message_id) for message_id in ("1", b"1", 1)}) == 3
