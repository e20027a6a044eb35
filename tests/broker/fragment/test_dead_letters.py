"""Dead-lettering: when it happens, and the reason and properties a dead letter carries."""

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


@pytest.mark.parametrize("max_count", [1, 2, 5])
@pytest.mark.parametrize("expires", [False, True])
def test_a_message_is_dead_lettered_after_its_last_delivery(max_count: int, expires: bool) -> None:  # noqa: FBT001
    harness = BrokerHarness(QueueDescription(lock_duration_ms=5_000, max_delivery_count=max_count))
    harness.send_stored(b"1")
    for _ in range(max_count):
        assert harness.queue.runtime().dead_letter_count == 0
        consumer = harness.consumer(1)
        if expires:
            harness.advance(5.1)
        else:
            harness.main_fragment.settlement.abandon(consumer.lock_numbers(), Results())
        harness.run_until_idle()
        consumer.leave()
    assert harness.main_fragment.active_count == 0
    (message,) = dead_letters(harness)
    assert message.application_properties == {
        "DeadLetterReason": "MaxDeliveryCountExceeded",
        "DeadLetterErrorDescription": f"Message could not be consumed after {max_count} delivery attempts.",
    }
    assert message.header is not None
    assert message.header.delivery_count == max_count
    assert message.data == [b"1"]


def test_a_release_does_not_count_as_a_delivery() -> None:
    harness = BrokerHarness(QueueDescription(max_delivery_count=1))
    harness.send_stored(b"1")
    for _ in range(3):
        consumer = harness.consumer(1)
        harness.main_fragment.settlement.release(consumer.lock_numbers(), Results())
        harness.run_until_idle()
        consumer.leave()
    assert (harness.main_fragment.active_count, harness.dead_letters.active_count) == (1, 0)


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
def test_a_dead_letter_carries_the_reason_the_receiver_gave(options: dict[str, Any], expected: dict[str, Any]) -> None:
    harness = BrokerHarness()
    harness.send_stored(b"1", b"2")
    sent_ms = harness.clock.wall_ms()
    harness.clock.advance(5)
    results = Results()
    harness.main_fragment.settlement.dead_letter(harness.consumer(2).lock_numbers()[1:], results, **options)
    harness.run_until_idle()
    assert results == [None]
    assert (harness.main_fragment.active_count, harness.dead_letters.active_count) == (1, 1)
    (message,) = dead_letters(harness)
    assert message.application_properties == expected
    annotations = message.message_annotations
    assert isinstance(annotations, dict)
    assert annotations["x-opt-enqueue-sequence-number"] == 2
    assert annotations["x-opt-sequence-number"] == 1
    assert annotations["x-opt-enqueued-time"] == sent_ms
    assert message.header is not None
    assert message.header.delivery_count == 0


def test_a_dead_letter_is_not_dead_lettered_again() -> None:
    harness = BrokerHarness(QueueDescription(max_delivery_count=1))
    harness.send_stored(b"1")
    harness.main_fragment.settlement.dead_letter(harness.consumer(1).lock_numbers(), Results())
    harness.run_until_idle()
    for count in range(3):
        consumer = harness.consumer(1, of=harness.dead_letters)
        (message,) = consumer.messages
        assert message.header is not None
        assert message.header.delivery_count == count
        harness.dead_letters.settlement.dead_letter(consumer.lock_numbers(), Results(), reason="again")
        harness.run_until_idle()
        consumer.leave()
    assert harness.dead_letters.active_count == 1


def test_a_lower_max_delivery_count_applies_to_the_next_abandon() -> None:
    harness = BrokerHarness(QueueDescription(max_delivery_count=10))
    harness.send_stored(b"1")
    consumer = harness.consumer(1)
    harness.namespace.update_queue(harness.path, QueueDescription(max_delivery_count=1), updated_ms=0)
    harness.main_fragment.settlement.abandon(consumer.lock_numbers(), Results())
    harness.run_until_idle()
    assert harness.dead_letters.active_count == 1


def test_properties_of_an_abandon_are_part_of_the_next_delivery() -> None:
    harness = BrokerHarness()
    harness.send_stored(b"1")
    consumer = harness.consumer(1)
    harness.main_fragment.settlement.abandon(consumer.lock_numbers(), Results(), {"why": "later"})
    consumer.grant(1)
    harness.run_until_idle()
    assert consumer.messages[1].application_properties == {"why": "later"}
    assert harness.main_fragment.size == sum(map(len, harness.disk.synced[Table.LOG].values.values()))


@pytest.mark.parametrize("how", ["abandon", "defer", "dead_letter"])
def test_properties_cannot_grow_without_limit(how: str) -> None:
    """Receivers may not add more properties than a sender could; the refused message is unchanged."""
    harness = BrokerHarness()
    harness.send_stored(b"x")
    results = Results()
    getattr(harness.main_fragment.settlement, how)(
        harness.consumer(1).lock_numbers(), results, properties={"note": "x" * 70_000}
    )
    harness.run_until_idle()
    assert isinstance(results[0], MessageTooLarge)
    assert harness.counts() == (1, 0, 0, 0)
    assert harness.consumer(1).bodies == [b"x"]
