"""Captured files are evidence, and what is missing of a capture is known to be missing."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from tests.pipeline.audit.world import World
from twinbus.pipeline.audit.captures import find_captured
from twinbus.pipeline.capture.manifest import Manifest

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

NOON = dt.datetime(2026, 11, 17, 12, tzinfo=dt.UTC)


def capture(folder: Path, first: int, last: int, *, entity: str = "Orders", minute: int = 0) -> Manifest:
    """A file with a message for each number, named after it."""
    numbers = list(range(first, last + 1))
    time = NOON + dt.timedelta(minutes=minute)
    path = f"contoso/{entity.lower()}/0/2026/11/17/12/{minute:02d}/00-1-{first}.parquet"
    file = folder / path
    file.parent.mkdir(parents=True)
    columns = {
        "messageId": [f"{number}" for number in numbers],
        "sessionId": pa.nulls(len(numbers), pa.string()),
        "sequenceNumber": numbers,
        "enqueuedTime": pa.array([time] * len(numbers), pa.timestamp("us", tz="UTC")),
    }
    pq.write_table(pa.table(columns), file)
    manifest = Manifest(
        file=path,
        fragment=0,
        sizeInBytes=file.stat().st_size,
        eventCount=len(numbers),
        firstSequenceNumber=first,
        lastSequenceNumber=last,
        firstEnqueueTime=time.isoformat(),
        lastEnqueueTime=time.isoformat(),
        namespace="contoso",
        entity=entity,
        entityId=1,
        fromSequenceNumber=first,
        toSequenceNumber=last,
    )
    (folder / manifest.path).write_bytes(manifest.encode())
    return manifest


def test_a_whole_capture_has_no_gaps(tmp_path: Path) -> None:
    capture(tmp_path, 1, 5)
    capture(tmp_path, 6, 7, minute=1)
    found = find_captured([str(tmp_path)])
    assert (found.count, found.gaps, len(found.files["orders"])) == (7, [], 2)


def test_a_file_that_is_missing_or_cut_is_a_gap_up_to_its_last_message(tmp_path: Path) -> None:
    first, second = capture(tmp_path, 1, 5), capture(tmp_path, 6, 7, minute=1)
    (tmp_path / first.file).unlink()
    (tmp_path / second.file).write_bytes(b"cut")
    found = find_captured([str(tmp_path)])
    assert [(gap.entity, gap.until) for gap in found.gaps] == [("orders", first.last), ("orders", second.last)]
    assert found.files == {}


def test_numbers_that_no_manifest_has_are_a_gap_up_to_the_next_file(tmp_path: Path) -> None:
    capture(tmp_path, 1, 5)
    after = capture(tmp_path, 9, 10, minute=2)
    (gap,) = find_captured([str(tmp_path)]).gaps
    assert (gap.entity, gap.until) == ("orders", after.last)
    assert "numbers 6 to 8" in gap.why


def test_what_was_captured_was_delivered_and_what_was_not_is_lost(spark: SparkSession, tmp_path: Path) -> None:
    world = World(tmp_path / "world")
    world.queue("orders")
    with world.program() as shop:
        shop.sent("orders", "1", "2", "3", "4")
    world.clock.advance(60)
    capture(tmp_path / "captured", 1, 3)
    _, rows = world.audit(spark, captures=[str(tmp_path / "captured")])
    found = {name: (row.verdict, row.came) for (_, name), row in rows.items()}
    assert found == {"1": ("delivered", 1), "2": ("delivered", 1), "3": ("delivered", 1), "4": ("lost", 0)}
