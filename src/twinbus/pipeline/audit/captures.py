"""Captured messages as evidence: a message in a captured file has been at its entity.

Owns the choice of files that count, and the gaps in a capture. `capture` owns the files and manifests. Another
namespace may have an entity with the same name, so only captures under the names of the audited namespace count.

| finding | messages whose outcome may be unknown |
|---|---|
| a manifest whose file is missing or has another size | messages enqueued no later than the file's last message |
| a gap between two manifests of a fragment | messages enqueued no later than the last message of the next file |
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
    """Captured files from the audited namespace."""

    files: dict[str, list[str]] = field(default_factory=dict)
    """File paths by entity key."""
    gaps: list[EvidenceGap] = field(default_factory=list)
    message_count: int = 0


def find_captured_files(folders: Sequence[str], namespaces: Collection[str]) -> CapturedFiles:
    """Find the captures of the namespace with these names. Raise PipelineError if a folder contains none."""
    captured = CapturedFiles()
    for uri in folders:
        folder = Folder(uri)
        manifests = _read_manifests(folder, namespaces)
        manifests_by_run: dict[tuple[str, int, int], list[Manifest]] = {}
        for manifest in manifests:
            manifests_by_run.setdefault(
                (canonical_key(manifest.entity), manifest.fragment, manifest.entityId), []
            ).append(manifest)
            _add_file(captured, folder, manifest)
        for run_manifests in manifests_by_run.values():
            captured.gaps += _missing_ranges(run_manifests)
    return captured


def _read_manifests(folder: Folder, namespaces: Collection[str]) -> list[Manifest]:
    """Read the manifests of a namespace. Raise PipelineError if the folder has none.

    Treating a wrong folder as empty would make captured messages look lost.
    """
    manifests = [Manifest.decode(folder.uri_of(path), folder.read(path)) for path in folder.walk("", MANIFEST_SUFFIX)]
    if not manifests:
        raise PipelineError(f"there are no captures in {folder.uri}: it has no manifests")
    if not namespaces:
        raise PipelineError("the namespace of the captures is unknown: give --primary or --captured-as NAME")
    wanted = {name.lower() for name in namespaces}
    chosen = [manifest for manifest in manifests if manifest.namespace.lower() in wanted]
    if not chosen:
        others = ", ".join(sorted({manifest.namespace for manifest in manifests}))
        raise PipelineError(
            f"{folder.uri} has no captures of {', '.join(sorted(wanted))}, only of {others}: if that is the primary, "
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
        reason = f"the captured file {folder.uri_of(manifest.file)} is missing or incomplete"
        captured.gaps.append(EvidenceGap(key, MIN_TIME, manifest.last_enqueued, reason))


def _missing_ranges(manifests: list[Manifest]) -> list[EvidenceGap]:
    manifests.sort(key=lambda manifest: manifest.fromSequenceNumber)
    return [
        EvidenceGap(
            canonical_key(after.entity),
            MIN_TIME,
            after.last_enqueued,
            f"the capture of '{after.entity}' has no file for sequence numbers {before.toSequenceNumber + 1}"
            f" to {after.fromSequenceNumber - 1} of fragment {after.fragment}",
        )
        for before, after in pairwise(manifests)
        if after.fromSequenceNumber > before.toSequenceNumber + 1
    ]


def read_rows(spark: SparkSession, captured: CapturedFiles) -> DataFrame:
    """Return one row per captured message."""
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
