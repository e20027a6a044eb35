"""What goes into one batch: of one entity and one key, few and small enough."""

from __future__ import annotations

from twinbus.client import BrokeredMessage
from twinbus.pipeline.sink.batch_sender import MAX_BATCH_BYTES, MAX_BATCH_MESSAGES, MAX_OPEN_BATCHES, group_into_batches
from twinbus.pipeline.sink.messages import OutgoingMessage


def outgoing(count: int, size: int = 10, entity: str = "orders", **told: str) -> list[OutgoingMessage]:
    return [OutgoingMessage(entity, BrokeredMessage(message_id=str(number), **told), size) for number in range(count)]  # type: ignore[arg-type]


def test_a_batch_is_full_with_so_many_messages() -> None:
    found = list(group_into_batches(outgoing(2 * MAX_BATCH_MESSAGES + 1)))
    assert [len(parcel.messages) for parcel in found] == [MAX_BATCH_MESSAGES, MAX_BATCH_MESSAGES, 1]


def test_a_batch_is_full_with_so_many_bytes() -> None:
    found = list(group_into_batches(outgoing(5, MAX_BATCH_BYTES // 2)))
    assert [len(parcel.messages) for parcel in found] == [2, 2, 1]


def test_a_message_that_is_too_large_for_a_batch_goes_alone() -> None:
    found = list(group_into_batches([*outgoing(2), *outgoing(1, 2 * MAX_BATCH_BYTES), *outgoing(2)]))
    assert [len(parcel.messages) for parcel in found] == [2, 1, 2]


def test_messages_of_one_batch_have_one_entity_and_one_key() -> None:
    mixed = [
        *outgoing(2, session_id="a"),
        *outgoing(2, session_id="b"),
        *outgoing(1, session_id="a"),
        *outgoing(1, partition_key="k"),
        *outgoing(1),
        *outgoing(1, entity="news"),
    ]
    found = [(one.entity, one.session_id, len(one.messages)) for one in group_into_batches(mixed)]
    assert found == [
        ("orders", "a", 3),
        ("orders", "b", 2),
        ("orders", None, 1),
        ("orders", None, 1),
        ("news", None, 1),
    ]


def test_so_many_keys_are_filled_at_a_time() -> None:
    many = [one for number in range(MAX_OPEN_BATCHES + 1) for one in outgoing(1, session_id=str(number))]
    found = list(group_into_batches([*many, *outgoing(1, session_id="0")]))
    assert [one.session_id for one in found[:2]] == ["0", "1"], "the oldest goes first"
    assert len(found) == MAX_OPEN_BATCHES + 2
