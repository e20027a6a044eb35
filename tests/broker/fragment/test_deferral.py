"""Deferred messages stay until someone asks for them by number."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.broker.consumers import Results
from tests.broker.harness import BrokerHarness
from tests.broker.messages import annotation_of, property_of
from twinbus.amqp.message import Message
from twinbus.model.errors import MessageNotFound, ServiceBusError
from twinbus.model.queue import QueueDescription

if TYPE_CHECKING:
    from twinbus.broker.fragment.deferral import ReceivedMessages

LOCKING = QueueDescription(lock_duration_ms=30_000, max_delivery_count=3)


def deferred(*bodies: bytes, description: QueueDescription = LOCKING) -> BrokerHarness:
    rig = BrokerHarness(description)
    rig.send_stored(*bodies)
    consumer = rig.consumer(len(bodies))
    answers = Results()
    assert rig.main_fragment.settlement.defer(consumer.lock_numbers(), answers) == []
    rig.run_until_idle()
    assert answers == [None]
    rig.main_fragment.dispatcher.remove(consumer)
    return rig


def receive(harness: BrokerHarness, *numbers: int, deletes: bool = False) -> ReceivedMessages:
    found: list[ReceivedMessages | ServiceBusError] = []
    harness.main_fragment.deferral.receive(list(numbers), found.append, receive_and_delete=deletes)
    harness.run_until_idle()
    [answer] = found
    if isinstance(answer, ServiceBusError):
        raise answer
    return answer


def test_nobody_gets_a_deferred_message_unasked() -> None:
    rig = deferred(b"a", b"b")
    assert rig.counts() == (0, 2, 0, 0)
    assert rig.consumer(9).bodies == []
    rig.restart()
    assert rig.consumer(9).bodies == []
    assert rig.counts() == (0, 2, 0, 0)


def test_it_is_locked_by_its_number_and_completed() -> None:
    rig = deferred(b"a", b"b")
    [(payload, token)] = receive(rig, 2)
    assert Message(payload).data == [b"b"]
    answers = Results()
    assert rig.main_fragment.settlement.complete(rig.main_fragment.lock_numbers([token]), answers) == []
    rig.run_until_idle()
    assert answers == [None]
    assert rig.counts() == (0, 1, 0, 0)


def test_or_deleted() -> None:
    rig = deferred(b"a", b"b")
    found = receive(rig, 1, 2, deletes=True)
    assert [(Message(payload).data, token) for payload, token in found] == [([b"a"], b""), ([b"b"], b"")]
    assert rig.counts() == (0, 0, 0, 0)


@pytest.mark.parametrize("numbers", [(3,), (1, 99), (2, 3)])
def test_all_or_none(numbers: tuple[int, ...]) -> None:
    rig = deferred(b"a", b"b")
    rig.send_stored(b"active")
    with pytest.raises(MessageNotFound):
        receive(rig, *numbers)
    assert len(receive(rig, 1, 2)) == 2


def test_what_someone_has_is_not_given_to_another() -> None:
    rig = deferred(b"a")
    receive(rig, 1)
    with pytest.raises(MessageNotFound, match="locked"):
        receive(rig, 1)


@pytest.mark.parametrize("how", ["abandoned", "lock expired"])
def test_given_back_it_is_still_deferred_with_a_delivery_more(how: str) -> None:
    rig = deferred(b"a")
    for delivered in range(2):
        [(payload, token)] = receive(rig, 1)
        header = Message(payload).header
        assert header is not None
        assert header.delivery_count == delivered
        if how == "abandoned":
            rig.main_fragment.settlement.abandon(rig.main_fragment.lock_numbers([token]), Results())
            rig.run_until_idle()
        else:
            rig.advance(31)
    assert rig.counts() == (0, 1, 0, 0)
    assert rig.consumer(5).bodies == []
    [(_, token)] = receive(rig, 1)
    rig.main_fragment.settlement.abandon(rig.main_fragment.lock_numbers([token]), Results())
    rig.run_until_idle()
    assert rig.counts() == (0, 0, 0, 1)
    [dead] = rig.consumer(5, of=rig.dead_letters).messages
    assert property_of(dead, "DeadLetterReason") == "MaxDeliveryCountExceeded"


@pytest.mark.parametrize("deletes", [False, True])
def test_it_says_that_it_was_deferred(deletes: bool) -> None:  # noqa: FBT001
    [(payload, _)] = receive(deferred(b"a"), 1, deletes=deletes)
    assert annotation_of(Message(payload), "x-opt-message-state") == 1


def test_deferred_again_with_properties() -> None:
    rig = deferred(b"a")
    [(_, token)] = receive(rig, 1)
    rig.main_fragment.settlement.defer(rig.main_fragment.lock_numbers([token]), Results(), {"why": "not yet"})
    rig.run_until_idle()
    [(payload, _)] = receive(rig, 1)
    assert Message(payload).application_properties == {"why": "not yet"}
    assert rig.counts() == (0, 1, 0, 0)


def test_in_a_session_it_is_asked_for_by_who_has_the_session() -> None:
    rig = BrokerHarness(QueueDescription(requires_session=True, lock_duration_ms=30_000))
    rig.send_stored(b"a", session="s")
    consumer = rig.accept_session(b"s", 1)
    rig.main_fragment.settlement.defer(consumer.lock_numbers(), Results())
    rig.run_until_idle()
    found: list[ReceivedMessages | ServiceBusError] = []
    rig.main_fragment.deferral.receive(
        [1], found.append, receive_and_delete=False, session_id=b"t", session_locked_until_ms=1
    )
    rig.run_until_idle()
    rig.main_fragment.deferral.receive(
        [1], found.append, receive_and_delete=False, session_id=b"s", session_locked_until_ms=1
    )
    rig.run_until_idle()
    assert isinstance(found[0], MessageNotFound)
    assert isinstance(found[1], list)
    rig.main_fragment.dispatcher.remove(consumer)  # what it had of the session is free with it
    rig.main_fragment.deferral.receive(
        [1], found.append, receive_and_delete=False, session_id=b"s", session_locked_until_ms=1
    )
    rig.run_until_idle()
    assert isinstance(found[2], list)


def test_peeking_shows_every_state_in_order() -> None:
    rig = deferred(b"deferred")
    rig.send_stored(b"active")
    rig.send_stored(b"scheduled", due_ms=rig.clock.wall_ms() + 60_000)
    rig.send_stored(b"last")
    found: list[list[bytes] | ServiceBusError] = []
    rig.main_fragment.browser.peek(1, 3, 1_000_000, found.append)
    rig.main_fragment.browser.peek(4, 3, 1_000_000, found.append)
    rig.run_until_idle()
    pages = [[Message(payload) for payload in page] for page in found if isinstance(page, list)]
    assert [[one.data[0] for one in page] for page in pages] == [[b"deferred", b"active", b"scheduled"], [b"last"]]
    states = [annotation_of(one, "x-opt-message-state") for one in pages[0]]
    assert states == [1, None, 2]
