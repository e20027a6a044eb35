"""A task reads a range of a fragment into record batches, also if some of its messages are gone."""

from __future__ import annotations

import re
import uuid
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from twinbus.client.sync import BrokeredMessage
from twinbus.model.errors import EntityNotFound
from twinbus.pipeline.errors import PipelineError
from twinbus.pipeline.source import Positions, range_reader, read_options, read_positions, read_range

if TYPE_CHECKING:
    from tests.pipeline.source.message_feed import MessageFeed


def bodies(feed: MessageFeed, entity: str, fragment: int, first: int, last: int) -> list[str]:
    batches = read_range(read_options(feed.options(entity)), fragment, first, last)
    return [body.decode() for batch in batches for body in batch.column("body").to_pylist()]


def positions(feed: MessageFeed, entity: str) -> Positions:
    return read_positions(read_options(feed.options(entity)))


def source_ids(feed: MessageFeed, path: str) -> list[str]:
    (batch,) = read_range(read_options(feed.options(path)), 0, 1, 3)
    return batch.column("sourceId").to_pylist()  # type: ignore[no-any-return]  # the column has strings


def test_a_range_is_read_in_order_and_its_messages_stay(feed: MessageFeed) -> None:
    queue = feed.queue()
    feed.send(queue, 20)
    for _ in range(2):
        assert bodies(feed, queue, 0, 3, 7) == ["2", "3", "4", "5", "6"]
    assert bodies(feed, queue, 0, 8, 7) == []
    assert feed.count(queue) == 20


def test_completed_messages_are_omitted_also_at_the_end_of_a_range(feed: MessageFeed) -> None:
    queue = feed.queue()
    feed.send(queue, 10)
    with feed.receiver(queue) as receiver:
        locked = receiver.receive_batch(10, 20)
        for message in locked:
            if message.body in (b"0", b"4", b"8", b"9"):
                receiver.complete(message)
    assert bodies(feed, queue, 0, 1, 10) == ["1", "2", "3", "5", "6", "7"]


def test_a_range_whose_messages_are_all_gone_has_no_rows(feed: MessageFeed) -> None:
    queue = feed.queue()
    feed.send(queue, 5)
    feed.receive(queue, 5)
    assert bodies(feed, queue, 0, 1, 5) == []


def test_a_large_range_is_read_completely_in_several_batches(
    feed: MessageFeed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_reader, "BATCH_ROWS", 64)
    queue = feed.queue()
    feed.send(queue, 1_000)
    options = read_options(feed.options(queue, prefetchCount=50))
    batches = list(read_range(options, 0, 1, 1_000))
    assert [batch.num_rows for batch in batches] == [64] * 15 + [40]
    numbers = pa.Table.from_batches(batches).column("sequenceNumber").to_pylist()
    assert numbers == list(range(1, 1_001))


def test_a_reader_can_be_closed_early(feed: MessageFeed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_reader, "BATCH_ROWS", 10)
    queue = feed.queue()
    feed.send(queue, 200)
    batches = read_range(read_options(feed.options(queue)), 0, 1, 200)
    assert next(batches).num_rows == 10
    batches.close()  # type: ignore[attr-defined]  # a generator


def test_the_fragments_of_a_partitioned_queue_together_have_all_messages(feed: MessageFeed) -> None:
    queue = feed.queue(partitioned=True)
    feed.send_all(queue, [BrokeredMessage(f"{n}", partition_key=uuid.uuid4().hex) for n in range(100)])
    current = positions(feed, queue)
    assert (
        len(current.fragments),
        sum(position.message_count for position in current.fragments),
        current.unavailable_fragments,
    ) == (
        16,
        100,
        [],
    )
    all_bodies: list[str] = []
    for position in current.fragments:
        all_bodies += bodies(
            feed, queue, position.fragment, position.low_sequence_number, position.next_sequence_number - 1
        )
    assert sorted(map(int, all_bodies)) == list(range(100))


def test_subscriptions_dead_letters_and_queues_with_sessions_are_read_too(feed: MessageFeed) -> None:
    topic = feed.topic("all")
    feed.send(topic, 3)
    assert bodies(feed, f"{topic}/Subscriptions/all", 0, 1, 3) == ["0", "1", "2"]
    queue = feed.queue()
    feed.send(queue, 1)
    with feed.receiver(queue) as receiver:
        receiver.dead_letter(receiver.receive_batch(1, 20)[0], "broken", "in two")
    dead = f"{queue}/$DeadLetterQueue"
    (batch,) = read_range(
        read_options(feed.options(dead)), 0, 1, positions(feed, dead).fragments[0].next_sequence_number - 1
    )
    assert batch.column("deadLetterReason").to_pylist() == ["broken"]
    (source_id,) = batch.column("sourceId").to_pylist()
    assert re.fullmatch(rf"[\d.]+:\d+/{queue}/\$deadletterqueue:\d+/1/\d{{16}}", source_id)
    sessions = feed.queue(RequiresSession="true")
    feed.send_all(sessions, [BrokeredMessage("a", session_id="one"), BrokeredMessage("b", session_id="two")])
    (batch,) = read_range(read_options(feed.options(sessions)), 0, 1, 2)
    assert batch.column("sessionId").to_pylist() == ["one", "two"]


def test_a_source_id_never_names_another_message(feed: MessageFeed) -> None:
    queue = feed.queue()
    feed.send(queue, 3)
    first, second = (source_ids(feed, queue) for _ in range(2))
    feed.receive(queue, 1)
    assert first[1:] == second[1:] == source_ids(feed, queue)
    feed.server.delete_queue(queue)
    feed.server.create_entity(queue, "QueueDescription")
    feed.send(queue, 3)
    assert len({*first, *source_ids(feed, queue)}) == 6


def test_a_recreated_entity_is_not_read(feed: MessageFeed) -> None:
    queue = feed.queue()
    feed.send(queue, 3)
    old_entity_id = positions(feed, queue).entity_id
    feed.server.delete_queue(queue)
    feed.server.create_entity(queue, "QueueDescription")
    feed.send(queue, 3)
    with pytest.raises(PipelineError, match="created again"):
        list(read_range(read_options(feed.options(queue)), 0, 1, 3, entity_id=old_entity_id))
    lenient_options = read_options(feed.options(queue, failOnDataLoss=False))
    assert list(read_range(lenient_options, 0, 1, 3, entity_id=old_entity_id)) == []
    with pytest.raises(EntityNotFound):
        positions(feed, "nothing")
