"""Captured files are evidence, and what is missing of a capture is known to be missing."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.pipeline.audit.audit_inputs import AuditInputs
from twinbus.pipeline.audit.captures import find_captured_files
from twinbus.pipeline.audit.contents import NamespaceAccess
from twinbus.pipeline.audit.job import AuditSettings
from twinbus.pipeline.capture.manifest import Manifest
from twinbus.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

CONTOSO = ("contoso",)
NOON = dt.datetime(2026, 11, 17, 12, tzinfo=dt.UTC)


def capture(
    folder: Path, first: int, last: int, *, entity: str = "Orders", minute: int = 0, namespace: str = "contoso"
) -> Manifest:
    """A file with a message for each number, named after it."""
    numbers = list(range(first, last + 1))
    time = NOON + dt.timedelta(minutes=minute)
    path = f"{namespace}/{entity.lower()}/0/2026/11/17/12/{minute:02d}/00-1-{first}.parquet"
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
        namespace=namespace,
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
    found = find_captured_files([str(tmp_path)], CONTOSO)
    assert (found.message_count, found.gaps, len(found.files["orders"])) == (7, [], 2)


def test_a_file_that_is_missing_or_cut_is_a_gap_up_to_its_last_message(tmp_path: Path) -> None:
    first, second = capture(tmp_path, 1, 5), capture(tmp_path, 6, 7, minute=1)
    (tmp_path / first.file).unlink()
    (tmp_path / second.file).write_bytes(b"cut")
    found = find_captured_files([str(tmp_path)], CONTOSO)
    assert [(gap.entity, gap.until) for gap in found.gaps] == [
        ("orders", first.last_enqueued),
        ("orders", second.last_enqueued),
    ]
    assert found.files == {}


def test_numbers_that_no_manifest_has_are_a_gap_up_to_the_next_file(tmp_path: Path) -> None:
    capture(tmp_path, 1, 5)
    after = capture(tmp_path, 9, 10, minute=2)
    (gap,) = find_captured_files([str(tmp_path)], CONTOSO).gaps
    assert (gap.entity, gap.until) == ("orders", after.last_enqueued)
    assert "numbers 6 to 8" in gap.reason


def test_captures_of_other_namespaces_are_left_out(tmp_path: Path) -> None:
    capture(tmp_path, 1, 5)
    capture(tmp_path, 1, 9, namespace="fabrikam")
    found = find_captured_files([str(tmp_path)], ["Contoso"])
    assert (found.message_count, len(found.files["orders"])) == (5, 1)


def test_a_folder_without_a_capture_of_the_namespace_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"there are no captures in .*mistyped: not one manifest"):
        find_captured_files([str(tmp_path / "mistyped")], CONTOSO)
    capture(tmp_path, 1, 5, namespace="fabrikam")
    with pytest.raises(PipelineError, match="has no captures of contoso, but of fabrikam"):
        find_captured_files([str(tmp_path)], CONTOSO)
    with pytest.raises(PipelineError, match="give --primary, or --captured-as NAME"):
        find_captured_files([str(tmp_path)], ())


@pytest.mark.parametrize(
    ("host", "names", "found"),
    [
        ("contoso.servicebus.windows.net", (), ["contoso"]),
        ("127.0.0.1:5672", (), ["127.0.0.1-5672"]),
        ("127.0.0.1:5672", ("shop",), ["shop"]),
    ],
)
def test_a_capture_and_the_audit_call_a_namespace_the_same(host: str, names: tuple[str, ...], found: list[str]) -> None:
    string = f"Endpoint=sb://{host};SharedAccessKeyName=a;SharedAccessKey=Yg==;UseDevelopmentEmulator=true"
    settings = AuditSettings(journals=["."], capture_names=names, primary=NamespaceAccess(string))
    assert list(settings.capture_namespaces()) == found


def test_what_was_captured_was_delivered_and_what_was_not_is_lost(spark: SparkSession, tmp_path: Path) -> None:
    world = AuditInputs(tmp_path / "world")
    world.add_queue("orders")
    with world.run_program() as shop:
        shop.sent("orders", "1", "2", "3", "4")
    world.clock.advance(60)
    capture(tmp_path / "captured", 1, 3)
    _, rows = world.audit(spark, captures=[str(tmp_path / "captured")], capture_names=["contoso"])
    found = {name: (row.verdict, row.came) for (_, name), row in rows.items()}
    assert found == {"1": ("delivered", 1), "2": ("delivered", 1), "3": ("delivered", 1), "4": ("lost", 0)}


def test_a_captured_message_that_was_dead_lettered_is_one_copy_and_dead(spark: SparkSession, tmp_path: Path) -> None:
    world = AuditInputs(tmp_path / "world")
    world.add_queue("orders")
    with world.run_program() as shop:
        shop.sent("orders", "1", "2", "3", "4", "5", "6", "6")
    world.clock.advance(60)
    with world.run_program() as till:
        till.settled("orders", "1", 1, "dead-lettered")
        till.settled("orders/$deadletterqueue", "3", 93)
        till.settled("orders", "5", 5, "dead-lettered")
        till.settled("orders", "5", 95)
    for name in ("1", "2", "6"):
        world.add_message("orders/$deadletterqueue", name, 90 + int(name))
    world.add_message("orders", "4", 4)
    capture(tmp_path / "captured", 1, 6)
    _, rows = world.audit(spark, captures=[str(tmp_path / "captured")], capture_names=["contoso"])
    assert {name: (row.verdict, row.is_doubled) for (_, name), row in rows.items()} == {
        "1": ("dead-lettered", False),  # by a receiver that said so
        "2": ("dead-lettered", False),  # by the broker
        "3": ("dead-lettered", False),  # and had from there
        "4": ("delivered", False),
        "5": ("delivered", False),  # resubmitted
        "6": ("unknown", False),  # of two one is dead: the captured one, or the other
    }
