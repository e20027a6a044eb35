"""Several deliveries with the same delivery id: all are delivered, and one disposition settles them together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.amqp.engine.engine_pair import SingleEngine
from twinbus.amqp import errors
from twinbus.amqp.codec.performatives import Detach, Disposition, End, Error, Transfer
from twinbus.amqp.events import DeliveriesReceived, ReceiptsUpdated
from twinbus.amqp.outcomes import ACCEPTED, Accepted, Declared, Rejected
from twinbus.amqp.receiver import Receiver
from twinbus.amqp.sender import Sender
from twinbus.amqp.settings import Limits, Settings
from twinbus.amqp.states import Role

if TYPE_CHECKING:
    from twinbus.amqp.delivery import IncomingDelivery

FULL = Rejected(error=Error(condition=errors.RESOURCE_LIMIT_EXCEEDED, description="the queue is full", info={}))


def engine_with_deliveries(
    *ids: tuple[int, int], limits: Limits | None = None
) -> tuple[SingleEngine, list[IncomingDelivery]]:
    """Send a delivery for each (handle, delivery id) on two links; return the engine and the deliveries."""
    engine = SingleEngine(limits)
    for handle in (0, 1):
        link = engine.attached(name=f"link-{handle}", handle=handle)
        assert isinstance(link, Receiver)
        link.keep_credit(100)
    engine.collect()
    engine.end.clear_events()
    for number, (handle, delivery_id) in enumerate(ids):
        engine.send(Transfer(handle=handle, delivery_id=delivery_id, delivery_tag=b"t"), payload=b"%d" % number)
    return engine, [delivery for event in engine.end.events_of(DeliveriesReceived) for delivery in event.deliveries]


def settle(delivery: IncomingDelivery, state: object = ACCEPTED) -> None:
    delivery.link.settle([delivery], state)  # type: ignore[arg-type]  # each test passes an outcome


def receiver_dispositions(engine: SingleEngine) -> list[tuple[int, int | None, object]]:
    return [
        (performative.first, performative.last, performative.state)
        for _, performative, _ in engine.collect()
        if isinstance(performative, Disposition) and performative.settled and performative.role is Role.RECEIVER
    ]


@pytest.mark.parametrize("handles", [(0, 0), (0, 1)])
def test_both_messages_with_one_id_get_one_disposition_when_both_are_settled(handles: tuple[int, int]) -> None:
    engine, (first, second) = engine_with_deliveries((handles[0], 5), (handles[1], 5))
    assert (first.payload, second.payload) == (b"0", b"1")
    settle(second)
    assert receiver_dispositions(engine) == []
    assert not first.settled
    settle(first)
    assert [(start, type(state)) for start, _, state in receiver_dispositions(engine)] == [(5, Accepted)]
    assert all(delivery.settled for delivery in (first, second))
    (session,) = engine.connection.sessions.values()
    assert [link.unsettled_count for link in session.links.values()] == [0, 0]
    assert (session.unsettled_deliveries.incoming_count, engine.connection.unanswered_bytes) == (0, 0)


@pytest.mark.parametrize("order", [(ACCEPTED, FULL), (FULL, ACCEPTED)])
def test_a_shared_id_is_rejected_if_one_of_its_messages_is_rejected(order: tuple[object, object]) -> None:
    engine, deliveries = engine_with_deliveries((0, 5), (0, 5))
    for delivery, state in zip(deliveries, order, strict=True):
        settle(delivery, state)
    ((_, _, state),) = receiver_dispositions(engine)
    assert isinstance(state, Rejected)
    assert state.error is not None
    assert state.error.description == "the queue is full"


def test_different_outcomes_for_one_id_are_sent_as_rejected() -> None:
    engine, (first, second) = engine_with_deliveries((0, 5), (1, 5))
    settle(first, Declared(txn_id=b"t"))
    settle(second)
    ((_, _, state),) = receiver_dispositions(engine)
    assert isinstance(state, Rejected)


def test_a_disposition_range_omits_a_shared_id_that_is_not_settled_completely() -> None:
    engine, deliveries = engine_with_deliveries((0, 4), (0, 5), (1, 5), (0, 6))
    link = deliveries[0].link
    link.settle([delivery for delivery in deliveries if delivery.link is link])
    assert [start for start, _, _ in receiver_dispositions(engine)] == [4, 6]
    settle(deliveries[2])
    assert [start for start, _, _ in receiver_dispositions(engine)] == [5]


def test_ids_out_of_order_get_one_disposition_each() -> None:
    engine, deliveries = engine_with_deliveries((0, 7), (0, 3), (0, 5))
    deliveries[0].link.settle(deliveries)
    assert [start for start, _, _ in receiver_dispositions(engine)] == [7, 3, 5]


def test_a_disposition_from_the_peer_settles_all_messages_with_that_id() -> None:
    engine, deliveries = engine_with_deliveries((0, 5), (0, 5), (1, 5), (0, 6))
    engine.send(Disposition(role=Role.SENDER, first=5, settled=True, state=ACCEPTED))
    updated = [delivery for event in engine.end.events_of(ReceiptsUpdated) for delivery in event.deliveries]
    assert updated == deliveries[:3]
    assert [delivery.settled for delivery in deliveries] == [True, True, True, False]
    (session,) = engine.connection.sessions.values()
    assert [link.unsettled_count for link in session.links.values()] == [1, 0]
    assert session.unsettled_deliveries.incoming_count == 1


def test_a_shared_id_is_rejected_if_one_of_its_links_detaches() -> None:
    engine, (lost, other) = engine_with_deliveries((0, 5), (1, 5))
    settle(other)
    engine.send(Detach(handle=0, closed=True))
    assert isinstance(engine.last(Disposition).state, Rejected)
    settle(lost)
    assert receiver_dispositions(engine) == []
    (session,) = engine.connection.sessions.values()
    assert session.unsettled_deliveries.incoming_count == 0


def test_a_detached_link_does_not_settle_messages_of_other_links_with_the_same_id() -> None:
    engine, (_, other, third) = engine_with_deliveries((0, 5), (1, 5), (0, 6))
    engine.send(Detach(handle=0, closed=True))
    assert (third.settled, other.settled) == (True, False)
    settle(other, FULL)
    assert [(start, type(state)) for start, _, state in receiver_dispositions(engine)] == [(5, Rejected)]


def test_messages_that_share_an_id_each_count_towards_the_unsettled_limit() -> None:
    engine, deliveries = engine_with_deliveries((0, 5), (0, 5), (1, 5), limits=Limits(max_unsettled=3))
    assert len(deliveries) == 3
    engine.send(Transfer(handle=0, delivery_id=5, delivery_tag=b"t"))
    assert engine.condition(End) == errors.RESOURCE_LIMIT_EXCEEDED


def test_settling_a_shared_id_frees_the_unsettled_limit() -> None:
    engine, deliveries = engine_with_deliveries((0, 5), (0, 5), limits=Limits(max_unsettled=2))
    for delivery in deliveries:
        settle(delivery)
    for delivery_id in (6, 7):
        engine.send(Transfer(handle=0, delivery_id=delivery_id, delivery_tag=b"t"))
    assert [
        received.delivery_id for event in engine.end.events_of(DeliveriesReceived) for received in event.deliveries
    ] == [
        5,
        5,
        6,
        7,
    ]


def test_a_continuation_frame_may_have_another_id_if_its_tag_is_the_same() -> None:
    engine, _ = engine_with_deliveries()
    engine.send(Transfer(handle=0, delivery_id=5, delivery_tag=b"a", more=True), payload=b"one ")
    engine.send(Transfer(handle=1, delivery_id=5, delivery_tag=b"b"), payload=b"other")
    engine.send(Transfer(handle=0, delivery_id=6, delivery_tag=b"a"), payload=b"whole")
    received = [
        (delivery.delivery_id, delivery.payload)
        for event in engine.end.events_of(DeliveriesReceived)
        for delivery in event.deliveries
    ]
    assert received == [(5, b"other"), (5, b"one whole")]


def test_outgoing_delivery_ids_start_at_first_delivery_id() -> None:
    engine = SingleEngine(settings=Settings(container_id="server", first_delivery_id=1000))
    link = engine.attached(role=Role.RECEIVER)
    assert isinstance(link, Sender)
    link.ignores_credit = True
    assert [link.send(b"x").delivery_id for _ in range(2)] == [1000, 1001]
