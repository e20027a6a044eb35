"""The entity as a driver has it: what was processed is completed once, in the entity in which it was."""

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


def test_an_entity_that_was_created_again_is_completed_from_its_first_message_on(feed: MessageFeed) -> None:
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
def test_what_was_processed_of_an_entity_is_not_completed_in_another_of_its_name(
    feed: MessageFeed, *, partitioned: bool
) -> None:
    """A call that had no answer is made again, up to a minute later: the entity may be another one by then."""
    queue = feed.queue(partitioned=partitioned)
    options = feed.options(queue, complete="processed", exclusive=False)
    entity, careless = (
        SourceEntity(read_options(options)),
        SourceEntity(read_options(options | {"failOnDataLoss": "false"})),
    )
    try:
        planned = entity.positions().entity_id
        feed.server.delete_queue(queue)
        division = f"<EnablePartitioning>{str(partitioned).lower()}</EnablePartitioning>"
        feed.server.request("PUT", queue, QUEUE_ENTRY.format(division), expected=201)
        feed.send(queue, 10)
        with pytest.raises(PipelineError, match=rf"data was lost: .* created again: its id was {planned}, and is"):
            entity.complete(Offsets(queue, planned, {0: 11}))
        careless.complete(Offsets(queue, planned, {0: 11}))
        assert feed.count(queue) == 10
    finally:
        entity.close()
        careless.close()


def test_a_log_that_was_restored_is_completed_from_its_first_message_on(feed: MessageFeed) -> None:
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
