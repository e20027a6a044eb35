"""Deleting what nobody has: the oldest, all, up to a number, by number; and dead letters that come back."""

from __future__ import annotations

from typing import Any

import pytest

from tests.broker.consumers import Answers
from tests.broker.messages import message
from tests.broker.rig import Rig
from tests.parts import part_of
from twinbus.broker.ports.removal import Outcome, Wanted
from twinbus.model.errors import MessageNotFound, ServiceBusError
from twinbus.model.queue import QueueDescription


def ask(rig: Rig, call: Any, *arguments: Any) -> Any:  # noqa: ANN401  # any operation of a removal
    found: list[Any] = []
    call(*arguments, found.append)
    rig.settle()
    [answer] = found
    if isinstance(answer, ServiceBusError):
        raise answer
    return answer


def remove(rig: Rig, call: Any, wanted: Wanted) -> tuple[int, int]:  # noqa: ANN401
    outcome = ask(rig, call, wanted)
    assert isinstance(outcome, Outcome)
    return outcome.removed, outcome.skipped


@pytest.fixture(autouse=True)
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twinbus.broker.removal.AT_ONCE", 3)


def test_the_oldest_are_deleted_and_locked_ones_are_left() -> None:
    rig = Rig()
    rig.stored(*[b"%d" % number for number in range(10)])
    consumer = rig.consumer(2)
    assert remove(rig, rig.main.removal.remove_active, Wanted(most=4)) == (4, 2)
    assert rig.counts() == (6, 0, 0, 0)
    rig.main.settlement.release(consumer.numbers(), Answers())
    rig.settle()
    consumer.grant(20)
    rig.settle()
    assert consumer.bodies[2:] == [b"0", b"1", b"6", b"7", b"8", b"9"]


def test_all_are_purged() -> None:
    rig = Rig()
    for number in range(10):
        rig.stored(b"x", ttl_ms=60_000 + number)
    waiting = rig.consumer()
    assert remove(rig, rig.main.removal.remove_active, Wanted()) == (10, 0)
    waiting.grant(5)
    rig.settle()
    assert (rig.counts(), rig.main.size, waiting.bodies) == ((0, 0, 0, 0), 0, [])
    assert rig.rows() == 0
    rig.stored(b"new")
    assert waiting.bodies == [b"new"]


def test_scheduled_and_deferred_ones_are_purged_apart() -> None:
    rig = Rig()
    rig.stored(b"a", b"b", b"active")
    rig.main.settlement.defer(rig.consumer(2).numbers(), Answers())
    rig.settle()
    for _ in range(5):
        rig.stored(b"later", due_ms=rig.clock.wall_ms() + 10_000)
    assert remove(rig, rig.main.removal.remove_scheduled, Wanted()) == (5, 0)
    assert rig.counts() == (1, 2, 0, 0)
    assert remove(rig, rig.main.removal.remove_deferred, Wanted()) == (2, 0)
    assert rig.counts() == (1, 0, 0, 0)
    rig.wait(20)
    assert rig.counts() == (1, 0, 0, 0)


def test_up_to_a_number_and_before_a_time() -> None:
    rig = Rig()
    rig.stored(*[b"%d" % number for number in range(5)])
    assert remove(rig, rig.main.removal.remove_active, Wanted(up_to=2)) == (2, 0)
    rig.wait(10)
    rig.stored(b"later")
    assert remove(rig, rig.main.removal.remove_active, Wanted(before_ms=rig.clock.wall_ms())) == (3, 0)
    assert rig.consumer(9).bodies == [b"later"]


def test_of_one_session_only() -> None:
    rig = Rig(QueueDescription(requires_session=True))
    for number in range(6):
        rig.stored(b"%d" % number, session="ab"[number % 2])
    assert remove(rig, rig.main.removal.remove_active, Wanted(session=b"a")) == (3, 0)
    assert rig.accept(None, 9).bodies == [b"1", b"3", b"5"]
    assert rig.accept().session is None


def test_by_number_whatever_their_state() -> None:
    rig = Rig()
    rig.stored(b"deferred", b"locked", b"active")
    first, _ = rig.consumer(2).numbers()
    rig.main.settlement.defer([first], Answers())
    rig.settle()
    rig.stored(b"later", due_ms=rig.clock.wall_ms() + 10_000)
    assert ask(rig, rig.main.removal.remove_numbers, [1, 2, 3, 4, 99]) == [1, 3, 4]
    assert rig.counts() == (1, 0, 0, 0)


def test_a_message_that_is_deleted_is_not_handed_out_meanwhile() -> None:
    rig = Rig()
    rig.stored(b"a", b"b")
    consumer = rig.consumer()
    rig.main.removal.remove_active(Wanted(), lambda _: None)
    while rig.store.pending and not rig.store.waiting:
        rig.store.step()
        while rig.mail:
            rig.mail.popleft()()
    consumer.grant(5)
    rig.settle()
    assert consumer.bodies == []
    assert rig.counts() == (0, 0, 0, 0)


# --- dead letters that come back --------------------------------------------------------------------------------------


def buried(*bodies: bytes, description: QueueDescription | None = None) -> Rig:
    rig = Rig(description)
    rig.stored(*bodies)
    consumer = rig.consumer(len(bodies))
    rig.main.settlement.abandon(consumer.numbers(), Answers())
    rig.settle()
    consumer.grant(len(bodies))
    rig.settle()
    numbers = consumer.numbers()[len(bodies) :]
    rig.main.settlement.dead_letter(numbers, Answers(), reason="bad", description="very")
    rig.settle()
    rig.main.line.remove(consumer)
    return rig


def resubmit(rig: Rig, numbers: list[int], edited: bytes | None = None) -> list[int]:
    found: list[list[int] | ServiceBusError] = []
    part_of(rig.queue).resubmit(numbers, edited, rig.namespace.intake, found.append)
    rig.settle()
    [answer] = found
    if isinstance(answer, ServiceBusError):
        raise answer
    return answer


def test_a_dead_letter_is_active_again_as_if_it_were_new() -> None:
    rig = buried(b"a", b"b")
    assert rig.counts() == (0, 0, 0, 2)
    assert resubmit(rig, [2]) == [3]
    assert rig.counts() == (1, 0, 0, 1)
    [again] = rig.consumer(5).messages
    assert again.data == [b"b"]
    assert again.application_properties == {}
    assert again.header is not None
    assert again.header.delivery_count == 0


def test_or_with_other_contents() -> None:
    rig = buried(b"a")
    resubmit(rig, [1], message(b"mended"))
    assert rig.consumer(5).bodies == [b"mended"]
    assert rig.counts() == (1, 0, 0, 0)


def test_all_of_them_or_none() -> None:
    rig = buried(b"a", b"b")
    with pytest.raises(MessageNotFound):
        resubmit(rig, [1, 9])
    rig.consumer(1, of=rig.dead_letters)
    with pytest.raises(MessageNotFound):
        resubmit(rig, [1, 2])
    assert rig.counts() == (0, 0, 0, 2)


def test_it_is_no_duplicate() -> None:
    rig = buried(b"a", description=QueueDescription(requires_duplicate_detection=True))
    resubmit(rig, [1])
    assert rig.counts() == (1, 0, 0, 0)


def test_a_store_that_fails_leaves_it_where_it_was() -> None:
    rig = buried(b"a")
    rig.fail()
    found: list[Any] = []
    part_of(rig.queue).resubmit([1], None, rig.namespace.intake, found.append)
    rig.settle()
    rig.reopen()
    rig.settle()
    assert isinstance(found[0], ServiceBusError)
    assert rig.counts() == (0, 0, 0, 1)
