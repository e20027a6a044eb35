"""Captured messages, as evidence: whatever is in a captured file has been at its entity.

Owns: which files count, and what is missing of a capture. Files and manifests are `capture`'s.

| what is found | what is not known |
|---|---|
| a manifest whose file is not there, or of another size | what is in it: messages enqueued up to its last |
| two manifests of a fragment, with numbers between them | what these were: enqueued up to the next file's last |
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

from twinbus.model.path import key_of
from twinbus.pipeline.audit.lives import BEGINNING, Gap
from twinbus.pipeline.capture.folder import Folder
from twinbus.pipeline.capture.manifest import ENDING, Manifest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

SCHEMA: Final = "place string, message_id string, session_id string, number bigint, enqueued timestamp"


@dataclass
class Captured:
    """What there is."""

    files: dict[str, list[str]] = field(default_factory=dict)
    """Of each entity, by key."""
    gaps: list[Gap] = field(default_factory=list)
    count: int = 0


def find_captured(folders: Sequence[str]) -> Captured:
    """Look through folders."""
    captured = Captured()
    for uri in folders:
        folder = Folder(uri)
        manifests = [Manifest.decode(folder.uri_of(path), folder.read(path)) for path in folder.walk("", ENDING)]
        lines: dict[tuple[str, int, int], list[Manifest]] = {}
        for one in manifests:
            lines.setdefault((key_of(one.entity), one.fragment, one.entityId), []).append(one)
            _take(captured, folder, one)
        for line in lines.values():
            captured.gaps += _holes(line)
    return captured


def _take(captured: Captured, folder: Folder, manifest: Manifest) -> None:
    if not manifest.eventCount:
        return
    key = key_of(manifest.entity)
    if folder.exists(manifest.file) and folder.size(manifest.file) == manifest.sizeInBytes:
        root = folder.uri if "://" in folder.uri else str(Path(folder.uri).absolute())
        captured.files.setdefault(key, []).append(f"{root.rstrip('/')}/{manifest.file}")
        captured.count += manifest.eventCount
    else:
        why = f"the captured file {folder.uri_of(manifest.file)} is not there, or not whole"
        captured.gaps.append(Gap(key, BEGINNING, manifest.last, why))


def _holes(line: list[Manifest]) -> list[Gap]:
    line.sort(key=lambda one: one.fromSequenceNumber)
    return [
        Gap(
            key_of(after.entity),
            BEGINNING,
            after.last,
            f"the capture of '{after.entity}' has no file for numbers {before.toSequenceNumber + 1}"
            f" to {after.fromSequenceNumber - 1} of fragment {after.fragment}",
        )
        for before, after in pairwise(line)
        if after.fromSequenceNumber > before.toSequenceNumber + 1
    ]


def rows_of(spark: SparkSession, captured: Captured) -> DataFrame:
    """One for each captured message."""
    frame = spark.createDataFrame([], SCHEMA)
    for key, files in captured.files.items():
        rows = spark.read.parquet(*files).select(
            f.lit(key).alias("place"),
            f.col("messageId").alias("message_id"),
            f.col("sessionId").alias("session_id"),
            f.col("sequenceNumber").alias("number"),
            f.col("enqueuedTime").alias("enqueued"),
        )
        frame = frame.unionByName(rows)
    return frame
