"""Duplicates are accepted and dropped, within the window, also after a restart."""

from __future__ import annotations

from tests.broker.harness import BrokerHarness
from tests.broker.messages import message
from twinbus.broker.store_keys import DUPLICATE_IDS
from twinbus.model.partition_key import digest_of
from twinbus.model.queue import QueueDescription

DETECTING = QueueDescription(requires_duplicate_detection=True, duplicate_window_ms=60_000)


def test_a_second_message_of_the_same_id_is_accepted_and_dropped() -> None:
    rig = BrokerHarness(DETECTING)
    rig.send_stored(b"first", message_id="1")
    rig.send_stored(b"second", message_id="1")
    rig.send_stored(b"other", message_id="2")
    assert rig.consumer(9).bodies == [b"first", b"other"]


def test_one_that_is_on_its_way_counts() -> None:
    rig = BrokerHarness(DETECTING)
    answers = [rig.send(b"%d" % number, message_id="1") for number in range(3)]
    rig.run_until_idle()
    assert answers == [[None]] * 3
    assert rig.counts() == (1, 0, 0, 0)


def test_a_duplicate_is_not_accepted_before_the_first_is_on_disk() -> None:
    rig = BrokerHarness(DETECTING)
    first = rig.send(b"first", message_id="1")
    rig.run_until_commit()
    second = rig.send(b"second", message_id="1")
    rig.fail_next_sync()
    rig.run_until_idle()
    assert first[0] is not None
    assert second[0] is not None


def test_duplicates_inside_a_batch_are_found() -> None:
    rig = BrokerHarness(DETECTING)
    numbers: list[int] = []
    batch = [message(b"x", message_id=one) for one in ("1", "2", "1", "3")]
    answers = rig.send_batch(*batch, numbers=numbers)
    rig.run_until_idle()
    assert answers == [None]
    assert numbers == [1, 2, 0, 3]
    assert rig.counts() == (3, 0, 0, 0)


def test_the_window_counts_from_the_first_message() -> None:
    rig = BrokerHarness(DETECTING)
    rig.send_stored(b"first", message_id="1")
    rig.advance(40)
    rig.send_stored(b"dropped", message_id="1")
    rig.advance(21)
    rig.send_stored(b"late", message_id="1")
    assert rig.consumer(9).bodies == [b"first", b"late"]


def test_a_completed_message_is_remembered_and_so_after_a_restart() -> None:
    rig = BrokerHarness(DETECTING)
    rig.send_stored(b"first", message_id="1")
    rig.consumer(1, deletes=True)
    rig.restart()
    rig.send_stored(b"again", message_id="1")
    assert rig.counts() == (0, 0, 0, 0)


def test_old_ids_are_forgotten_on_disk() -> None:
    rig = BrokerHarness(DETECTING)
    for number in range(10):
        rig.send_stored(b"x", message_id=str(number))
        rig.advance(30)
    assert rig.index_row_count(DUPLICATE_IDS) <= 5


def test_ids_of_different_types_are_different() -> None:
    assert len({digest_of(one) for one in ("1", b"1", 1)}) == 3
