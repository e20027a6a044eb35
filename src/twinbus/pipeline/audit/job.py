"""The audit job, from inputs to result.

    with session("twinbus audit") as spark:
        result = run_audit(spark, AuditSettings(journals=["audit"], primary=..., covered_entities=["*"]))

Owns the order of steps: the inspection comes first. Journals and captures are read after the inspection, so that they
contain all settlements that were made before the inspection. Sends made after the inspection began are not audited.
"""

from __future__ import annotations

import datetime as dt
import fnmatch
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark import StorageLevel
from pyspark.sql import Window
from pyspark.sql import functions as f

from twinbus.model.callbacks import ignore
from twinbus.model.path import canonical_key
from twinbus.pipeline.audit import captures
from twinbus.pipeline.audit.evidence import Evidence, JournalFilter
from twinbus.pipeline.audit.inspection import inspect
from twinbus.pipeline.audit.journal_gaps import (
    LIVE_JOURNAL_TIMEOUT_S,
    bulk_gaps,
    find_gaps,
    find_latest_gap,
    group_by_run,
    read_file_facts,
)
from twinbus.pipeline.audit.report import REPORT_COLUMNS, summarize
from twinbus.pipeline.audit.verdicts import compute_facts, reason_column, verdict_column
from twinbus.pipeline.capture.settings import CaptureSettings
from twinbus.pipeline.errors import PipelineError
from twinbus.pipeline.journals import find_journal_files, read_journal_files, read_journals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from twinbus.pipeline.audit.contents import NamespaceAccess
    from twinbus.pipeline.audit.inspection import Inspection, OnProgress
    from twinbus.pipeline.audit.journal_gaps import EvidenceGap
    from twinbus.pipeline.audit.report import AuditResult


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSettings:
    """Settings of an audit."""

    journals: Sequence[Path | str]
    """Journal folders written by senders, receivers and syphons."""
    captures: Sequence[str] = ()
    capture_names: Sequence[str] = ()
    """Names of the primary in captures (default: derived from the host name, as in a capture)."""
    primary: NamespaceAccess | None = None
    """Access to the primary. Without this access, entities are not inspected."""
    primary_admin: NamespaceAccess | None = None
    """Administrative access to the primary. Without this access, entities are inferred from journals."""
    secondary: NamespaceAccess | None = None
    """Access to the secondary. Without this access, the backlog is not inspected."""
    covered_entities: Sequence[str] = ()
    """Patterns for entities whose receivers are all covered by the given journals and captures."""
    namespaces: Sequence[str] = ()
    """Addresses of the primary in journals; rows from other namespaces are ignored (default: all rows count)."""
    since: dt.datetime | None = None
    until: dt.datetime | None = None
    """`since` and `until` limit the period of the audited sends, which ends no later than the inspection begins."""
    max_clock_skew_s: float = 5.0
    """Maximum difference between the clocks of all machines."""
    live_journal_timeout_s: float = LIVE_JOURNAL_TIMEOUT_S
    """Maximum time to wait for live journals."""
    report_folder: str | None = None
    """Folder to which all messages and their verdicts are written."""

    def capture_namespaces(self) -> Sequence[str]:
        """Return the names of the audited namespace in captures; empty if unknown."""
        if self.capture_names or self.primary is None:
            return self.capture_names
        return [
            CaptureSettings(
                connection_string=self.primary.connection_string, entities=(), target_uri=""
            ).namespace_name()
        ]

    def covers(self, key: str) -> bool:
        """Return whether all receivers of an entity are covered by the inputs."""
        return any(fnmatch.fnmatchcase(key, canonical_key(pattern)) for pattern in self.covered_entities)


DESTINATION_SCHEMA: Final = (
    "destination string, is_there boolean, is_looked_at boolean, why_not_looked_at string, looked_at timestamp,"
    " is_covered boolean, is_filtered boolean, is_subscription boolean, detects_duplicates boolean,"
    " duplicate_window bigint, keeps_expired boolean, longest_life bigint, made_at timestamp, gap_until timestamp,"
    " gap_why string, is_backlog_looked_at boolean, why_no_backlog string"
)
_NOT_REQUIRED: Final = "is_filtered or (is_subscription and coalesce(made_at > last_sent, false))"
"""Condition for a message that may be absent from a subscription.

The subscription has a filter, or was created after the message was sent.
"""


def run_audit(spark: SparkSession, settings: AuditSettings, on_progress: OnProgress = ignore) -> AuditResult:
    """Run an audit. Raise PipelineError or ServiceBusError if a given input cannot be read."""
    if (
        settings.report_folder is not None
        and "://" not in settings.report_folder
        and Path(settings.report_folder).exists()
    ):
        raise PipelineError(f"{settings.report_folder} already exists: name a new folder for the report")
    inspection = inspect(spark, settings, read_journals(spark, *settings.journals), on_progress)
    return judge_all(spark, settings, inspection, on_progress)


def judge_all(
    spark: SparkSession, settings: AuditSettings, inspection: Inspection, on_progress: OnProgress = ignore
) -> AuditResult:
    """Join the inspection with journals and captures, and judge every message."""
    on_progress("finding gaps in journals and captures")
    files = find_journal_files(settings.journals)
    rows = read_journal_files(spark, files)
    captured = captures.find_captured_files(settings.captures, settings.capture_namespaces())
    file_facts = read_file_facts(rows)
    gaps = find_gaps(group_by_run(files, file_facts), dt.datetime.now(dt.UTC), inspection.journals_complete_until)
    gaps += [*bulk_gaps(file_facts.values()), *captured.gaps]
    on_progress("joining sends with evidence")
    until = min(
        settings.until or inspection.started_at, inspection.started_at - dt.timedelta(seconds=settings.max_clock_skew_s)
    )
    journal_filter = JournalFilter(
        since=settings.since,
        until=until,
        namespaces=settings.namespaces,
        has_transactions=any(facts.has_transactions for facts in file_facts.values()),
        has_cancellations=any(facts.has_cancellations for facts in file_facts.values()),
    )
    evidence = Evidence(spark, inspection.topology)
    evidence_rows = (
        evidence.from_journals(rows, journal_filter)
        .unionByName(evidence.from_contents(inspection.primary.contents))
        .unionByName(evidence.from_backlog(inspection.backlog.contents))
        .unionByName(evidence.from_captures(captures.read_rows(spark, captured)))
    )
    destinations = spark.createDataFrame(_destination_rows(settings, inspection, gaps), DESTINATION_SCHEMA)
    judged = _persist(spark, settings, judge(evidence_rows, destinations))
    on_progress("counting")
    result = summarize(judged, sorted({gap.reason for gap in gaps}), until)
    judged.unpersist()
    return result


def judge(evidence: DataFrame, destinations: DataFrame) -> DataFrame:
    """Return every message with its verdict.

    There is a row for each destination of a message. If the message may be absent from a destination and was not found
    there, this row is left out. If all rows of a message would be left out, one row is returned.
    """
    facts = compute_facts(evidence, destinations).withColumn(
        "is_told", f.expr(f"found > 0 or seen_and_gone > 0 or not ({_NOT_REQUIRED})")
    )
    if destinations.where("is_filtered or is_subscription").isEmpty():  # saves the sort for the window function below
        facts = facts.withColumn("is_due_nowhere", f.lit(False))  # noqa: FBT003
    else:
        same_message = Window.partitionBy(f.lower("entity"), "message_id", "session_id")
        is_first = f.min("destination").over(same_message) == f.col("destination")
        facts = facts.withColumn("is_due_nowhere", ~f.max("is_told").over(same_message) & is_first)
    facts = facts.where("is_told or is_due_nowhere")
    return facts.withColumn("verdict", verdict_column()).withColumn("reason", reason_column()).select(*REPORT_COLUMNS)


def _destination_rows(
    settings: AuditSettings, inspection: Inspection, gaps: list[EvidenceGap]
) -> list[tuple[object, ...]]:
    """Return a row for each destination, to be joined with the facts about its messages."""
    skew = dt.timedelta(seconds=settings.max_clock_skew_s)
    no_backlog = inspection.backlog_incomplete_reason()
    rows: list[tuple[object, ...]] = []
    for key, destination in inspection.topology.destinations.items():
        locations = [location.path for location in inspection.topology.locations if location.destination == key]
        incomplete_reason = inspection.primary_incomplete_reason(locations)
        gap = find_latest_gap(gaps, locations, inspection.primary.taken_at)
        made_at = (
            None
            if destination.created_ms is None
            else dt.datetime.fromtimestamp(destination.created_ms / 1000, dt.UTC) - skew
        )
        rows.append(
            (
                key,
                destination.exists,
                incomplete_reason is None,
                incomplete_reason,
                inspection.primary.taken_at,
                settings.covers(key),
                destination.is_filtered,
                destination.is_subscription,
                destination.detects_duplicates,
                destination.duplicate_window_ms,
                destination.dead_letters_expired,
                destination.time_to_live_ms,
                made_at,
                None if gap is None else gap.until + skew,
                None if gap is None else gap.reason,
                no_backlog is None,
                no_backlog,
            )
        )
    return rows


def _persist(spark: SparkSession, settings: AuditSettings, judged: DataFrame) -> DataFrame:
    """Write or persist the judged messages, so that they are computed once."""
    if settings.report_folder is None:
        return judged.persist(StorageLevel.MEMORY_AND_DISK)
    judged.write.parquet(settings.report_folder)
    return spark.read.parquet(settings.report_folder)
