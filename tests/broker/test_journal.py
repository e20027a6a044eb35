"""The journal: one commit a turn, told when it is on disk; silence, failure and refusals."""

from __future__ import annotations

import pytest

from tests.broker.consumers import Answers
from tests.broker.rig import Rig
from twinbus.model.errors import DiskFull, ServerBusy, StoreUnavailable
from twinbus.model.limits import NamespaceLimits
from twinbus.server.disk import low_space
from twinbus.store.memory import Step


def test_what_is_asked_in_one_turn_is_one_commit() -> None:
    rig = Rig()
    answers = [rig.send(b"1"), rig.send(b"2", b"3")]
    rig.settle()
    assert answers == [[None], [None]]
    assert rig.store.commits == 1


def test_nothing_is_answered_or_shown_before_the_sync() -> None:
    rig = Rig()
    consumer = rig.consumer(10)
    answers = rig.send(b"1")
    while rig.turn:
        rig.turn.popleft()()
    rig.store.step()
    assert rig.store.next_step is Step.SYNC
    assert not rig.mail
    assert (answers, rig.main.count, consumer.deliveries) == ([], 0, [])
    rig.settle()
    assert (answers, rig.main.count, len(consumer.deliveries)) == ([None], 1, 1)


def test_a_silent_store_is_unavailable_until_it_speaks() -> None:
    rig = Rig()
    rig.stored(b"1")
    consumer = rig.consumer(1)
    answers = rig.send(b"2")
    rig.store.hang()
    rig.settle()
    rig.wait(9.9)
    assert answers == []
    rig.wait(0.2)
    assert [type(error) for error in answers] == [StoreUnavailable]
    with pytest.raises(StoreUnavailable, match="has not answered for 10 s"):
        rig.send(b"3")
    with pytest.raises(StoreUnavailable):
        rig.main.settlement.complete(consumer.numbers(), Answers())
    with pytest.raises(StoreUnavailable):
        rig.main.browsing.peek(1, 1, 1_000, lambda _: None)
    rig.store.resume()
    rig.settle()
    assert len(answers) == 1  # and is not told again
    assert rig.main.count == 2
    rig.stored(b"4")
    assert rig.main.settlement.complete(consumer.numbers(), Answers()) == []
    assert not rig.failed


def test_a_failed_store_refuses_all_that_waits() -> None:
    rig = Rig()
    rig.stored(b"1")
    rig.fail()
    answers = rig.send(b"2")
    rig.settle()
    assert [type(error) for error in answers] == [StoreUnavailable]
    assert rig.failed == [rig.journal]
    assert not rig.queue.runtime().is_available
    assert "input/output error" in rig.journal.failure
    with pytest.raises(StoreUnavailable, match="it failed, and is being opened again"):
        rig.send(b"3")


def test_what_the_disk_holds_is_there_when_the_store_is_opened_anew() -> None:
    rig = Rig()
    rig.stored(b"1", b"2")
    consumer = rig.consumer(1)
    held = consumer.numbers()
    rig.fail()
    rig.send(b"3")
    rig.settle()
    rig.reopen()
    with pytest.raises(StoreUnavailable, match="being opened"):
        rig.send(b"4")
    rig.settle()
    assert rig.main.settlement.complete(rig.main.lock_numbers([consumer.deliveries[0][1]]), Answers()) == [0]
    assert rig.main.count == 2
    rig.stored(b"5")
    consumer.grant(10)
    rig.settle()
    assert consumer.bodies == [b"1", b"1", b"2", b"5"]
    assert held != [0]


def test_a_drain_while_the_marks_are_read_waits_for_them() -> None:
    rig = Rig()
    consumer = rig.consumer()
    rig.fail(is_kept=True)
    answers = rig.send(b"1")
    rig.settle()
    assert [type(error) for error in answers] == [StoreUnavailable]
    rig.reopen()
    consumer.credit = 5
    consumer.drain()
    rig.settle()
    assert consumer.bodies == [b"1"]
    assert consumer.drains == 1


def test_a_drain_on_a_store_that_does_not_work_ends_after_a_tenth_of_a_second() -> None:
    rig = Rig()
    consumer = rig.consumer()
    rig.fail()
    rig.send(b"1")
    rig.settle()
    consumer.drain()
    assert consumer.drains == 0
    rig.wait(0.1)
    assert consumer.drains == 1


def test_on_a_full_disk_nothing_is_sent_and_the_rest_goes_on() -> None:
    rig = Rig()
    rig.stored(b"1")
    rig.journal.refusal = low_space(0)
    with pytest.raises(DiskFull, match="takes no messages: its disk is full"):
        rig.send(b"2")
    consumer, answers = rig.consumer(1), Answers()
    rig.main.settlement.complete(consumer.numbers(), answers)
    rig.settle()
    assert answers == [None]
    rig.journal.refusal = None
    rig.stored(b"2")


def test_when_too_much_waits_senders_wait() -> None:
    rig = Rig(limits=NamespaceLimits(max_pending_bytes=1_000))
    rig.send(bytes(2_000))
    with pytest.raises(ServerBusy, match="wait to be written"):
        rig.send(b"1")
    rig.settle()
    assert rig.journal.pending_bytes == 0
    rig.stored(b"1")
