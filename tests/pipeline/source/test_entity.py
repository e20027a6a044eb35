"""The driver's view of an entity: processed messages are completed once, and never in a new entity of the same name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.server_process import QUEUE_ENTRY
from twinbus.pipeline.errors import PipelineError
from twinbus.pipeline.source.entity import SourceEntity
from twinbus.pipeline.source.offsets import Offsets
from twinbus.pipeline.source.options import read_options

if TYPE_CHECKING:
    from tests.pipeline.source.message_feed import MessageFeed


def test_a_recreated_entity_is_completed_from_its_first_message(feed: MessageFeed) -> None:
    queue = feed.queue()
    feed.send(queue, 10)
    entity = SourceEntity(read_options(feed.options(queue, complete="processed", exclusive=False)))
    try:
        entity.complete(Offsets(queue, entity.positions().entity_id, {0: 11}))
        assert feed.count(queue) == 0
        feed.server.delete_queue(queue)
        feed.server.create_entity(queue, "QueueDescription")
        feed.send(queue, 10)
        for number in (11, 5):
            entity.complete(Offsets(queue, entity.positions().entity_id, {0: number}))
        assert feed.count(queue) == 0
    finally:
        entity.close()


@pytest.mark.parametrize("partitioned", [False, True])
def test_offsets_of_a_deleted_entity_complete_nothing_in_its_successor(feed: MessageFeed, *, partitioned: bool) -> None:
    """A call without a reply is repeated for up to a minute; by then the entity may have been recreated."""
    queue = feed.queue(partitioned=partitioned)
    options = feed.options(queue, complete="processed", exclusive=False)
    entity, lenient_entity = (
        SourceEntity(read_options(options)),
        SourceEntity(read_options(options | {"failOnDataLoss": "false"})),
    )
    try:
        old_entity_id = entity.positions().entity_id
        feed.server.delete_queue(queue)
        partitioning = f"<EnablePartitioning>{str(partitioned).lower()}</EnablePartitioning>"
        feed.server.request("PUT", queue, QUEUE_ENTRY.format(partitioning), expected=201)
        feed.send(queue, 10)
        with pytest.raises(
            PipelineError, match=rf"data was lost: .* created again: its id was {old_entity_id}, and is"
        ):
            entity.complete(Offsets(queue, old_entity_id, {0: 11}))
        lenient_entity.complete(Offsets(queue, old_entity_id, {0: 11}))
        assert feed.count(queue) == 10
    finally:
        entity.close()
        lenient_entity.close()


def test_a_restored_log_is_completed_from_its_first_message(feed: MessageFeed) -> None:
    queue = feed.queue()
    feed.send(queue, 10)
    entity = SourceEntity(read_options(feed.options(queue, complete="processed", exclusive=False)))
    try:
        entity_id = entity.positions().entity_id
        entity.complete(Offsets(queue, entity_id, {0: 1_000}))
        feed.send(queue, 10)
        entity.complete(Offsets(queue, entity_id, {0: 15}))
        assert feed.count(queue) == 6
    finally:
        entity.close()
