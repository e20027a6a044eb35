"""A checkpoint is read without Spark: the offsets of the last completed batch, also if the query has other sources."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from twinbus.pipeline.errors import PipelineError
from twinbus.pipeline.source.checkpoint import complete_checkpoint, read_processed_offsets
from twinbus.pipeline.source.offsets import Offsets
from twinbus.pipeline.source.options import read_options
from twinbus.pipeline.source.positions import read_positions

if TYPE_CHECKING:
    from pathlib import Path

    from tests.pipeline.source.message_feed import MessageFeed


def write(folder: Path, batch: int, *sources: object, is_done: bool = True) -> None:
    for name in ("offsets", "commits"):
        (folder / name).mkdir(exist_ok=True)
    lines = [
        "v1",
        '{"batchWatermarkMs":0}',
        *(source if isinstance(source, str) else json.dumps(source) for source in sources),
    ]
    (folder / "offsets" / f"{batch}").write_text("\n".join(lines))
    (folder / "offsets" / f".{batch}.crc").write_text("crc")
    if is_done:
        (folder / "commits" / f"{batch}").write_text("v1\n{}")


def offsets(number: int, entity: str = "orders") -> Offsets:
    return Offsets(entity, 7, {0: number})


def test_the_last_completed_batch_counts_and_not_a_started_one(tmp_path: Path) -> None:
    write(tmp_path, 9, offsets(5).to_json())
    write(tmp_path, 10, offsets(8).to_json())
    write(tmp_path, 11, offsets(99).to_json(), is_done=False)
    assert read_processed_offsets(tmp_path, "orders") == offsets(8)
    assert read_processed_offsets(f"file://{tmp_path}", "orders") == offsets(8)


def test_a_query_without_a_completed_batch_has_no_processed_offsets(tmp_path: Path) -> None:
    assert read_processed_offsets(tmp_path, "orders") is None
    write(tmp_path, 0, offsets(8).to_json(), is_done=False)
    assert read_processed_offsets(tmp_path, "orders") is None


def test_other_sources_of_the_query_are_skipped(tmp_path: Path) -> None:
    write(tmp_path, 0, "-", {"logOffset": 3}, 17, offsets(8).to_json())
    assert read_processed_offsets(tmp_path, "orders") == offsets(8)


def test_a_checkpoint_of_another_query_is_refused(tmp_path: Path) -> None:
    write(tmp_path, 0, {"logOffset": 3})
    with pytest.raises(PipelineError, match="does not read 'orders'"):
        read_processed_offsets(tmp_path, "orders")
    write(tmp_path, 1, offsets(8, "news").to_json())
    with pytest.raises(PipelineError, match="does not read 'orders'"):
        read_processed_offsets(tmp_path, "orders")


def test_nothing_is_completed_if_the_log_ends_before_the_offsets(tmp_path: Path, feed: MessageFeed) -> None:
    queue = feed.queue()
    feed.send(queue, 10)
    options = feed.options(queue, complete="processed")
    entity_id = read_positions(read_options(options)).entity_id
    write(tmp_path, 0, Offsets(queue, entity_id, {0: 1_000}).to_json())
    complete_checkpoint(tmp_path, options)
    assert feed.count(queue) == 10
    write(tmp_path, 1, Offsets(queue, entity_id, {0: 5}).to_json())
    complete_checkpoint(tmp_path, options)
    assert feed.count(queue) == 6
