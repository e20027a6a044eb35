"""A queue takes no more than its size."""

from __future__ import annotations

import pytest

from tests.broker.consumers import Answers
from tests.broker.messages import message
from tests.broker.rig import Rig
from tests.parts import part_of
from twinbus.model.errors import QuotaExceeded


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Rig:
    monkeypatch.setattr("twinbus.broker.part.MEGABYTE", 1)  # so that its 1,024 are bytes
    return Rig()


def test_a_full_queue_refuses_and_says_how_full_it_is(rig: Rig) -> None:
    rig.stored(bytes(700))
    with pytest.raises(QuotaExceeded, match=r"'orders'.*of 1,024"):
        rig.send(bytes(700))
    rig.stored(bytes(100))


def test_what_is_on_its_way_counts(rig: Rig) -> None:
    rig.send(bytes(700))
    with pytest.raises(QuotaExceeded):
        rig.send(bytes(700))


def test_a_batch_is_taken_whole_or_not(rig: Rig) -> None:
    with pytest.raises(QuotaExceeded):
        rig.send(bytes(700), bytes(700))
    rig.settle()
    assert rig.main.count == 0


def test_what_was_received_makes_room(rig: Rig) -> None:
    rig.stored(bytes(700))
    rig.main.settlement.complete(rig.consumer(1).numbers(), Answers())
    rig.stored(bytes(700))


def test_dead_letters_count(rig: Rig) -> None:
    rig.stored(bytes(700))
    rig.main.settlement.dead_letter(rig.consumer(1).numbers(), Answers())
    rig.settle()
    assert rig.queue.runtime().active_count == 0
    with pytest.raises(QuotaExceeded):
        rig.send(bytes(700))


def test_a_refused_send_leaves_no_trace(rig: Rig) -> None:
    rig.stored(b"1")
    with pytest.raises(QuotaExceeded):
        rig.send(bytes(2_000))
    rig.fail()
    rig.send(b"2")
    rig.settle()
    rig.reopen()
    rig.settle()
    assert rig.consumer(5).bodies == [b"1"]


def test_messages_on_their_way_to_another_entity_count(rig: Rig) -> None:
    answers = Answers()
    rig.queue.send_on(rig.parcel(message(bytes(700))).records, "elsewhere", answers)
    for _ in range(2):  # on its way, and where it could not be forwarded
        with pytest.raises(QuotaExceeded):
            rig.send(bytes(700))
        rig.settle()
    assert answers == [None]
    assert rig.queue.runtime().transfer_dead_letter_count == 1


def test_a_dead_letter_is_not_made_larger_than_there_is_room_for(rig: Rig) -> None:
    rig.stored(bytes(300))
    rig.main.settlement.dead_letter(rig.consumer(1).numbers(), Answers())
    rig.settle()
    found: list[object] = []
    for size in (1_000, 400):
        part_of(rig.queue).resubmit([1], message(bytes(size)), rig.namespace.intake, found.append)
        rig.settle()
    assert isinstance(found[0], QuotaExceeded)
    assert found[1] == [2]
    assert rig.counts() == (1, 0, 0, 0)
