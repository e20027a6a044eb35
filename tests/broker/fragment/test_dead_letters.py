"""Dead letters: when, why, and what a message says of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.broker.consumers import Results
from tests.broker.harness import BrokerHarness
from twinbus.model.errors import MessageTooLarge
from twinbus.model.queue import QueueDescription
from twinbus.store.protocol import Table

if TYPE_CHECKING:
    from twinbus.amqp.message import Message


def dead_letters(harness: BrokerHarness) -> list[Message]:
    return harness.consumer(100, of=harness.dead_letters).messages


@pytest.mark.parametrize("most", [1, 2, 5])
@pytest.mark.parametrize("expires", [False, True])
def test_a_message_is_dead_lettered_with_its_last_delivery(most: int, expires: bool) -> None:  # noqa: FBT001
    rig = BrokerHarness(QueueDescription(lock_duration_ms=5_000, max_delivery_count=most))
    rig.send_stored(b"1")
    for _ in range(most):
        assert rig.queue.runtime().dead_letter_count == 0
        consumer = rig.consumer(1)
        if expires:
            rig.advance(5.1)
        else:
            rig.main_fragment.settlement.abandon(consumer.lock_numbers(), Results())
        rig.run_until_idle()
        consumer.leave()
    assert rig.main_fragment.active_count == 0
    (message,) = dead_letters(rig)
    assert message.application_properties == {
        "DeadLetterReason": "MaxDeliveryCountExceeded",
        "DeadLetterErrorDescription": f"Message could not be consumed after {most} delivery attempts.",
    }
    assert message.header is not None
    assert message.header.delivery_count == most
    assert message.data == [b"1"]


def test_a_released_message_was_not_delivered() -> None:
    rig = BrokerHarness(QueueDescription(max_delivery_count=1))
    rig.send_stored(b"1")
    for _ in range(3):
        consumer = rig.consumer(1)
        rig.main_fragment.settlement.release(consumer.lock_numbers(), Results())
        rig.run_until_idle()
        consumer.leave()
    assert (rig.main_fragment.active_count, rig.dead_letters.active_count) == (1, 0)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {}),
        ({"reason": "bad"}, {"DeadLetterReason": "bad"}),
        (
            {"reason": "bad", "description": "very", "properties": {"a": 1}},
            {"DeadLetterReason": "bad", "DeadLetterErrorDescription": "very", "a": 1},
        ),
    ],
)
def test_whoever_dead_letters_says_why(options: dict[str, Any], expected: dict[str, Any]) -> None:
    rig = BrokerHarness()
    rig.send_stored(b"1", b"2")
    sent_ms = rig.clock.wall_ms()
    rig.clock.advance(5)
    answers = Results()
    rig.main_fragment.settlement.dead_letter(rig.consumer(2).lock_numbers()[1:], answers, **options)
    rig.run_until_idle()
    assert answers == [None]
    assert (rig.main_fragment.active_count, rig.dead_letters.active_count) == (1, 1)
    (message,) = dead_letters(rig)
    assert message.application_properties == expected
    annotations = message.message_annotations
    assert isinstance(annotations, dict)
    assert annotations["x-opt-enqueue-sequence-number"] == 2
    assert annotations["x-opt-sequence-number"] == 1
    assert annotations["x-opt-enqueued-time"] == sent_ms
    assert message.header is not None
    assert message.header.delivery_count == 0


def test_a_dead_letter_is_not_dead_lettered_again() -> None:
    rig = BrokerHarness(QueueDescription(max_delivery_count=1))
    rig.send_stored(b"1")
    rig.main_fragment.settlement.dead_letter(rig.consumer(1).lock_numbers(), Results())
    rig.run_until_idle()
    for count in range(3):
        consumer = rig.consumer(1, of=rig.dead_letters)
        (message,) = consumer.messages
        assert message.header is not None
        assert message.header.delivery_count == count
        rig.dead_letters.settlement.dead_letter(consumer.lock_numbers(), Results(), reason="again")
        rig.run_until_idle()
        consumer.leave()
    assert rig.dead_letters.active_count == 1


def test_a_lower_limit_holds_from_the_next_return() -> None:
    rig = BrokerHarness(QueueDescription(max_delivery_count=10))
    rig.send_stored(b"1")
    consumer = rig.consumer(1)
    rig.namespace.update_queue(rig.path, QueueDescription(max_delivery_count=1), updated_ms=0)
    rig.main_fragment.settlement.abandon(consumer.lock_numbers(), Results())
    rig.run_until_idle()
    assert rig.dead_letters.active_count == 1


def test_abandoned_with_properties_it_has_them_at_the_next_delivery() -> None:
    rig = BrokerHarness()
    rig.send_stored(b"1")
    consumer = rig.consumer(1)
    rig.main_fragment.settlement.abandon(consumer.lock_numbers(), Results(), {"why": "later"})
    consumer.grant(1)
    rig.run_until_idle()
    assert consumer.messages[1].application_properties == {"why": "later"}
    assert rig.main_fragment.size == sum(map(len, rig.disk.synced[Table.LOG].values.values()))


@pytest.mark.parametrize("how", ["abandon", "defer", "dead_letter"])
def test_properties_cannot_grow_without_end(how: str) -> None:
    """What a receiver adds is refused beyond what a sender could; the message is there as it was."""
    rig = BrokerHarness()
    rig.send_stored(b"x")
    answers = Results()
    getattr(rig.main_fragment.settlement, how)(
        rig.consumer(1).lock_numbers(), answers, properties={"note": "x" * 70_000}
    )
    rig.run_until_idle()
    assert isinstance(answers[0], MessageTooLarge)
    assert rig.counts() == (1, 0, 0, 0)
    assert rig.consumer(1).bodies == [b"x"]
