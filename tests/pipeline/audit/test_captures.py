"""Captured files count as evidence in an audit, and missing files of a capture are detected."""

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
    """Write a captured file with one message for each number; the number is the message id."""
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


def test_a_complete_capture_has_no_gaps(tmp_path: Path) -> None:
    capture(tmp_path, 1, 5)
    capture(tmp_path, 6, 7, minute=1)
    captured = find_captured_files([str(tmp_path)], CONTOSO)
    assert (captured.message_count, captured.gaps, len(captured.files["orders"])) == (7, [], 2)


def test_a_missing_or_truncated_file_is_a_gap_up_to_its_last_message(tmp_path: Path) -> None:
    first, second = capture(tmp_path, 1, 5), capture(tmp_path, 6, 7, minute=1)
    (tmp_path / first.file).unlink()
    (tmp_path / second.file).write_bytes(b"cut")
    captured = find_captured_files([str(tmp_path)], CONTOSO)
    assert [(gap.entity, gap.until) for gap in captured.gaps] == [
        ("orders", first.last_enqueued),
        ("orders", second.last_enqueued),
    ]
    assert captured.files == {}


def test_numbers_without_a_manifest_are_a_gap_up_to_the_next_file(tmp_path: Path) -> None:
    capture(tmp_path, 1, 5)
    after = capture(tmp_path, 9, 10, minute=2)
    (gap,) = find_captured_files([str(tmp_path)], CONTOSO).gaps
    assert (gap.entity, gap.until) == ("orders", after.last_enqueued)
    assert "numbers 6 to 8" in gap.reason


def test_captures_of_other_namespaces_are_ignored(tmp_path: Path) -> None:
    capture(tmp_path, 1, 5)
    capture(tmp_path, 1, 9, namespace="fabrikam")
    captured = find_captured_files([str(tmp_path)], ["Contoso"])
    assert (captured.message_count, len(captured.files["orders"])) == (5, 1)


def test_a_folder_without_a_capture_of_the_namespace_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"there are no captures in .*mistyped: it has no manifests"):
        find_captured_files([str(tmp_path / "mistyped")], CONTOSO)
    capture(tmp_path, 1, 5, namespace="fabrikam")
    with pytest.raises(PipelineError, match="has no captures of contoso, only of fabrikam"):
        find_captured_files([str(tmp_path)], CONTOSO)
    with pytest.raises(PipelineError, match="give --primary or --captured-as NAME"):
        find_captured_files([str(tmp_path)], ())


@pytest.mark.parametrize(
    ("host", "names", "expected"),
    [
        ("contoso.servicebus.windows.net", (), ["contoso"]),
        ("127.0.0.1:5672", (), ["127.0.0.1-5672"]),
        ("127.0.0.1:5672", ("shop",), ["shop"]),
    ],
)
def test_the_capture_and_the_audit_use_the_same_namespace_name(
    host: str, names: tuple[str, ...], expected: list[str]
) -> None:
    string = f"Endpoint=sb://{host};SharedAccessKeyName=a;SharedAccessKey=Yg==;UseDevelopmentEmulator=true"
    settings = AuditSettings(journals=["."], capture_names=names, primary=NamespaceAccess(string))
    assert list(settings.capture_namespaces()) == expected


def test_captured_messages_are_delivered_and_others_are_lost(spark: SparkSession, tmp_path: Path) -> None:
    inputs = AuditInputs(tmp_path / "world")
    inputs.add_queue("orders")
    with inputs.run_program() as shop:
        shop.sent("orders", "1", "2", "3", "4")
    inputs.clock.advance(60)
    capture(tmp_path / "captured", 1, 3)
    _, rows = inputs.audit(spark, captures=[str(tmp_path / "captured")], capture_names=["contoso"])
    verdicts = {name: (row.verdict, row.came) for (_, name), row in rows.items()}
    assert verdicts == {"1": ("delivered", 1), "2": ("delivered", 1), "3": ("delivered", 1), "4": ("lost", 0)}


def test_a_captured_message_that_is_dead_lettered_counts_as_one_copy(spark: SparkSession, tmp_path: Path) -> None:
    inputs = AuditInputs(tmp_path / "world")
    inputs.add_queue("orders")
    with inputs.run_program() as shop:
        shop.sent("orders", "1", "2", "3", "4", "5", "6", "6")
    inputs.clock.advance(60)
    with inputs.run_program() as till:
        till.settled("orders", "1", 1, "dead-lettered")
        till.settled("orders/$deadletterqueue", "3", 93)
        till.settled("orders", "5", 5, "dead-lettered")
        till.settled("orders", "5", 95)
    for name in ("1", "2", "6"):
        inputs.add_message("orders/$deadletterqueue", name, 90 + int(name))
    inputs.add_message("orders", "4", 4)
    capture(tmp_path / "captured", 1, 6)
    _, rows = inputs.audit(spark, captures=[str(tmp_path / "captured")], capture_names=["contoso"])
    assert {name: (row.verdict, row.is_doubled) for (_, name), row in rows.items()} == {
        "1": ("dead-lettered", False),  # by a receiver with a journal
        "2": ("dead-lettered", False),  # by the broker
        "3": ("dead-lettered", False),  # and received from the dead-letter queue
        "4": ("delivered", False),
        "5": ("delivered", False),  # resubmitted
        "6": ("unknown", False),  # one of two copies is dead-lettered: it may be the captured one or the other
    }
