"""Captured messages, as evidence: whatever is in a captured file has been at its entity.

Owns: which files count, and what is missing of a capture. Files and manifests are `capture`'s. Another namespace may
have an entity of the same name: only captures under the names of the audited one count.

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

from twinbus.model.path import canonical_key
from twinbus.pipeline.audit.journal_gaps import MIN_TIME, EvidenceGap
from twinbus.pipeline.capture.folder import Folder
from twinbus.pipeline.capture.manifest import MANIFEST_SUFFIX, Manifest
from twinbus.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from pyspark.sql import DataFrame, SparkSession

SCHEMA: Final = "place string, message_id string, session_id string, number bigint, enqueued timestamp"


@dataclass
class CapturedFiles:
    """What there is."""

    files: dict[str, list[str]] = field(default_factory=dict)
    """Of each entity, by key."""
    gaps: list[EvidenceGap] = field(default_factory=list)
    message_count: int = 0


def find_captured_files(folders: Sequence[str], namespaces: Collection[str]) -> CapturedFiles:
    """Look through folders for captures of a namespace, by the names it has there; PipelineError where one has none."""
    captured = CapturedFiles()
    for uri in folders:
        folder = Folder(uri)
        manifests = _read_manifests(folder, namespaces)
        lines: dict[tuple[str, int, int], list[Manifest]] = {}
        for one in manifests:
            lines.setdefault((canonical_key(one.entity), one.fragment, one.entityId), []).append(one)
            _add_file(captured, folder, one)
        for line in lines.values():
            captured.gaps += _missing_ranges(line)
    return captured


def _read_manifests(folder: Folder, namespaces: Collection[str]) -> list[Manifest]:
    """A folder without any is a mistake: taken for empty, it would make lost what was captured."""
    found = [Manifest.decode(folder.uri_of(path), folder.read(path)) for path in folder.walk("", MANIFEST_SUFFIX)]
    if not found:
        raise PipelineError(f"there are no captures in {folder.uri}: not one manifest")
    if not namespaces:
        raise PipelineError("whose captures count is not known: give --primary, or --captured-as NAME")
    wanted = {name.lower() for name in namespaces}
    chosen = [one for one in found if one.namespace.lower() in wanted]
    if not chosen:
        others = ", ".join(sorted({one.namespace for one in found}))
        raise PipelineError(
            f"{folder.uri} has no captures of {', '.join(sorted(wanted))}, but of {others}: if that is the primary, "
            "give --captured-as NAME"
        )
    return chosen


def _add_file(captured: CapturedFiles, folder: Folder, manifest: Manifest) -> None:
    if not manifest.eventCount:
        return
    key = canonical_key(manifest.entity)
    if folder.exists(manifest.file) and folder.size(manifest.file) == manifest.sizeInBytes:
        root = folder.uri if "://" in folder.uri else str(Path(folder.uri).absolute())
        captured.files.setdefault(key, []).append(f"{root.rstrip('/')}/{manifest.file}")
        captured.message_count += manifest.eventCount
    else:
        why = f"the captured file {folder.uri_of(manifest.file)} is not there, or not whole"
        captured.gaps.append(EvidenceGap(key, MIN_TIME, manifest.last_enqueued, why))


def _missing_ranges(manifests: list[Manifest]) -> list[EvidenceGap]:
    manifests.sort(key=lambda one: one.fromSequenceNumber)
    return [
        EvidenceGap(
            canonical_key(after.entity),
            MIN_TIME,
            after.last_enqueued,
            f"the capture of '{after.entity}' has no file for numbers {before.toSequenceNumber + 1}"
            f" to {after.fromSequenceNumber - 1} of fragment {after.fragment}",
        )
        for before, after in pairwise(manifests)
        if after.fromSequenceNumber > before.toSequenceNumber + 1
    ]


def read_rows(spark: SparkSession, captured: CapturedFiles) -> DataFrame:
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
