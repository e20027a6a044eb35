"""Several deliveries with one id: each is taken, and the one answer is true of all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.amqp.engine.engine_pair import SingleEngine
from twinbus.amqp import errors
from twinbus.amqp.events import DeliveriesReceived, ReceiptsUpdated
from twinbus.amqp.outcomes import ACCEPTED, Accepted, Declared, Rejected
from twinbus.amqp.performatives import Detach, Disposition, End, Error, Transfer
from twinbus.amqp.receiver import Receiver
from twinbus.amqp.sender import Sender
from twinbus.amqp.settings import Limits, Settings
from twinbus.amqp.states import Role

if TYPE_CHECKING:
    from twinbus.amqp.delivery import IncomingDelivery

FULL = Rejected(error=Error(condition=errors.RESOURCE_LIMIT_EXCEEDED, description="the queue is full", info={}))


def sent(*ids: tuple[int, int], limits: Limits | None = None) -> tuple[SingleEngine, list[IncomingDelivery]]:
    """Deliveries, each on a handle and with an id, on two links of one session."""
    lone = SingleEngine(limits)
    for handle in (0, 1):
        link = lone.attached(name=f"link-{handle}", handle=handle)
        assert isinstance(link, Receiver)
        link.keep_credit(100)
    lone.collect()
    lone.end.clear_events()
    for number, (handle, delivery_id) in enumerate(ids):
        lone.send(Transfer(handle=handle, delivery_id=delivery_id, delivery_tag=b"t"), payload=b"%d" % number)
    return lone, [one for event in lone.end.events_of(DeliveriesReceived) for one in event.deliveries]


def settle(delivery: IncomingDelivery, state: object = ACCEPTED) -> None:
    delivery.link.settle([delivery], state)  # type: ignore[arg-type]  # each test gives an outcome


def answers(lone: SingleEngine) -> list[tuple[int, int | None, object]]:
    return [
        (one.first, one.last, one.state)
        for _, one, _ in lone.collect()
        if isinstance(one, Disposition) and one.settled and one.role is Role.RECEIVER
    ]


@pytest.mark.parametrize("handles", [(0, 0), (0, 1)])
def test_both_messages_of_one_id_arrive_and_are_answered_once_when_both_are_stored(handles: tuple[int, int]) -> None:
    lone, (first, second) = sent((handles[0], 5), (handles[1], 5))
    assert (first.payload, second.payload) == (b"0", b"1")
    settle(second)
    assert answers(lone) == []
    assert not first.settled
    settle(first)
    assert [(start, type(state)) for start, _, state in answers(lone)] == [(5, Accepted)]
    assert all(one.settled for one in (first, second))
    (session,) = lone.connection.sessions.values()
    assert [link.unsettled_count for link in session.links.values()] == [0, 0]
    assert (session.unsettled_deliveries.incoming_count, lone.connection.unanswered_bytes) == (0, 0)


@pytest.mark.parametrize("order", [(ACCEPTED, FULL), (FULL, ACCEPTED)])
def test_an_id_is_not_accepted_if_one_of_its_messages_was_refused(order: tuple[object, object]) -> None:
    lone, deliveries = sent((0, 5), (0, 5))
    for delivery, state in zip(deliveries, order, strict=True):
        settle(delivery, state)
    ((_, _, state),) = answers(lone)
    assert isinstance(state, Rejected)
    assert state.error is not None
    assert state.error.description == "the queue is full"


def test_outcomes_that_cannot_be_told_as_one_are_told_as_a_rejection() -> None:
    lone, (first, second) = sent((0, 5), (1, 5))
    settle(first, Declared(txn_id=b"t"))
    settle(second)
    ((_, _, state),) = answers(lone)
    assert isinstance(state, Rejected)


def test_a_range_of_answers_leaves_out_an_id_of_which_a_message_waits() -> None:
    lone, deliveries = sent((0, 4), (0, 5), (1, 5), (0, 6))
    link = deliveries[0].link
    link.settle([one for one in deliveries if one.link is link])
    assert [start for start, _, _ in answers(lone)] == [4, 6]
    settle(deliveries[2])
    assert [start for start, _, _ in answers(lone)] == [5]


def test_ids_out_of_order_are_answered_each() -> None:
    lone, deliveries = sent((0, 7), (0, 3), (0, 5))
    deliveries[0].link.settle(deliveries)
    assert [start for start, _, _ in answers(lone)] == [7, 3, 5]


def test_one_disposition_of_the_peer_settles_all_messages_of_its_id() -> None:
    lone, deliveries = sent((0, 5), (0, 5), (1, 5), (0, 6))
    lone.send(Disposition(role=Role.SENDER, first=5, settled=True, state=ACCEPTED))
    told = [one for event in lone.end.events_of(ReceiptsUpdated) for one in event.deliveries]
    assert told == deliveries[:3]
    assert [one.settled for one in deliveries] == [True, True, True, False]
    (session,) = lone.connection.sessions.values()
    assert [link.unsettled_count for link in session.links.values()] == [1, 0]
    assert session.unsettled_deliveries.incoming_count == 1


def test_a_message_lost_with_its_link_keeps_its_id_from_being_accepted() -> None:
    lone, (lost, other) = sent((0, 5), (1, 5))
    settle(other)
    lone.send(Detach(handle=0, closed=True))
    assert isinstance(lone.last(Disposition).state, Rejected)
    settle(lost)
    assert answers(lone) == []
    (session,) = lone.connection.sessions.values()
    assert session.unsettled_deliveries.incoming_count == 0


def test_a_link_that_goes_leaves_the_messages_of_other_links_under_their_id() -> None:
    lone, (_, other, third) = sent((0, 5), (1, 5), (0, 6))
    lone.send(Detach(handle=0, closed=True))
    assert (third.settled, other.settled) == (True, False)
    settle(other, FULL)
    assert [(start, type(state)) for start, _, state in answers(lone)] == [(5, Rejected)]


def test_messages_that_share_an_id_count_towards_the_limit_each() -> None:
    lone, deliveries = sent((0, 5), (0, 5), (1, 5), limits=Limits(max_unsettled=3))
    assert len(deliveries) == 3
    lone.send(Transfer(handle=0, delivery_id=5, delivery_tag=b"t"))
    assert lone.condition(End) == errors.RESOURCE_LIMIT_EXCEEDED


def test_room_is_free_again_when_a_shared_id_was_answered() -> None:
    lone, deliveries = sent((0, 5), (0, 5), limits=Limits(max_unsettled=2))
    for delivery in deliveries:
        settle(delivery)
    for delivery_id in (6, 7):
        lone.send(Transfer(handle=0, delivery_id=delivery_id, delivery_tag=b"t"))
    assert [one.delivery_id for event in lone.end.events_of(DeliveriesReceived) for one in event.deliveries] == [
        5,
        5,
        6,
        7,
    ]


def test_a_later_frame_of_a_message_may_have_another_id_if_its_tag_is_the_same() -> None:
    lone, _ = sent()
    lone.send(Transfer(handle=0, delivery_id=5, delivery_tag=b"a", more=True), payload=b"one ")
    lone.send(Transfer(handle=1, delivery_id=5, delivery_tag=b"b"), payload=b"other")
    lone.send(Transfer(handle=0, delivery_id=6, delivery_tag=b"a"), payload=b"whole")
    told = [
        (one.delivery_id, one.payload) for event in lone.end.events_of(DeliveriesReceived) for one in event.deliveries
    ]
    assert told == [(5, b"other"), (5, b"one whole")]


def test_the_ids_of_what_we_send_start_where_the_settings_say() -> None:
    lone = SingleEngine(settings=Settings(container_id="server", first_delivery_id=1000))
    link = lone.attached(role=Role.RECEIVER)
    assert isinstance(link, Sender)
    link.ignores_credit = True
    assert [link.send(b"x").delivery_id for _ in range(2)] == [1000, 1001]
