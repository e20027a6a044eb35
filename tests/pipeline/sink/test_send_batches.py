"""Grouping of messages into batches: by entity and key, up to a number of messages and bytes."""

from __future__ import annotations

from twinbus.client import BrokeredMessage
from twinbus.pipeline.sink.batch_sender import MAX_BATCH_BYTES, MAX_BATCH_MESSAGES, MAX_OPEN_BATCHES, group_into_batches
from twinbus.pipeline.sink.messages import OutgoingMessage


def outgoing(count: int, size: int = 10, entity: str = "orders", **keys: str) -> list[OutgoingMessage]:
    return [OutgoingMessage(entity, BrokeredMessage(message_id=str(number), **keys), size) for number in range(count)]  # type: ignore[arg-type]


def test_a_batch_has_at_most_the_maximum_number_of_messages() -> None:
    batches = list(group_into_batches(outgoing(2 * MAX_BATCH_MESSAGES + 1)))
    assert [len(batch.messages) for batch in batches] == [MAX_BATCH_MESSAGES, MAX_BATCH_MESSAGES, 1]


def test_a_batch_has_at_most_the_maximum_number_of_bytes() -> None:
    batches = list(group_into_batches(outgoing(5, MAX_BATCH_BYTES // 2)))
    assert [len(batch.messages) for batch in batches] == [2, 2, 1]


def test_a_message_larger_than_a_batch_is_sent_alone() -> None:
    batches = list(group_into_batches([*outgoing(2), *outgoing(1, 2 * MAX_BATCH_BYTES), *outgoing(2)]))
    assert [len(batch.messages) for batch in batches] == [2, 1, 2]


def test_messages_of_one_batch_have_one_entity_and_one_key() -> None:
    mixed = [
        *outgoing(2, session_id="a"),
        *outgoing(2, session_id="b"),
        *outgoing(1, session_id="a"),
        *outgoing(1, partition_key="k"),
        *outgoing(1),
        *outgoing(1, entity="news"),
    ]
    groups = [(batch.entity, batch.session_id, len(batch.messages)) for batch in group_into_batches(mixed)]
    assert groups == [
        ("orders", "a", 3),
        ("orders", "b", 2),
        ("orders", None, 1),
        ("orders", None, 1),
        ("news", None, 1),
    ]


def test_the_number_of_open_batches_is_limited() -> None:
    many = [item for number in range(MAX_OPEN_BATCHES + 1) for item in outgoing(1, session_id=str(number))]
    batches = list(group_into_batches([*many, *outgoing(1, session_id="0")]))
    assert [item.session_id for item in batches[:2]] == ["0", "1"], "the oldest goes first"
    assert len(batches) == MAX_OPEN_BATCHES + 2
