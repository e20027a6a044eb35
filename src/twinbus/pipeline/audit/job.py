"""An audit from end to end.

    with session("twinbus audit") as spark:
        outcome = audit(spark, AuditSettings(journals=["audit"], primary=..., covered=["*"]))

Owns: that the look comes first (`looking`), and journals and captures are read after it: what was settled before the
look is in them. Sends that were made after the look began are not asked about.
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
    # REMOVEPASS
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from twinbus.pipeline.audit.contents import NamespaceAccess
    from twinbus.pipeline.audit.inspection import Inspection, OnProgress
    from twinbus.pipeline.audit.journal_gaps import EvidenceGap
    from twinbus.pipeline.audit.report import AuditResult


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSettings:
    """Of one audit."""

    journals: Sequence[Path | str]
    """Folders of journals: of senders, of receivers, of syphons."""
    captures: Sequence[str] = ()
    capture_names: Sequence[str] = ()
    """Names of the primary in captures. None: the one that a capture gives it if it is not told another."""
    primary: NamespaceAccess | None = None
    """Without it nobody looks into entities."""
    primary_admin: NamespaceAccess | None = None
    """For what entities are: without it they are taken for what journals let them seem."""
    secondary: NamespaceAccess | None = None
    """Without it nobody looks into the backlog."""
    covered_entities: Sequence[str] = ()
    """Entities, with * for any letters, all of whose receivers write journals, or are captures, that are given here."""
    namespaces: Sequence[str] = ()
    """How clients address the primary; rows of other namespaces are left out. None: all rows count."""
    since: dt.datetime | None = None
    until: dt.datetime | None = None
    """When the sends were made that are asked about; at most up to when the look begins."""
    max_clock_skew_s: float = 5.0
    """How far apart the clocks of all machines may be."""
    live_journal_timeout_s: float = LIVE_JOURNAL_TIMEOUT_S
    """How long to wait for journals that are written to."""
    report_folder: str | None = None
    """Where each message with its verdict is written."""

    def capture_namespaces(self) -> Sequence[str]:
        """Of the namespace that is audited; none where nobody said."""
        if self.capture_names or self.primary is None:
            return self.capture_names
        return [
            CaptureSettings(
                connection_string=self.primary.connection_string, entities=(), target_uri=""
            ).namespace_name()
        ]

    def covers(self, key: str) -> bool:
        """Nobody receives from there unseen."""
        return any(fnmatch.fnmatchcase(key, canonical_key(pattern)) for pattern in self.covered_entities)


DESTINATION_SCHEMA: Final = (
    "destination string, is_there boolean, is_looked_at boolean, why_not_looked_at string, looked_at timestamp,"
    " is_covered boolean, is_filtered boolean, is_subscription boolean, detects_duplicates boolean,"
    " duplicate_window bigint, keeps_expired boolean, longest_life bigint, made_at timestamp, gap_until timestamp,"
    " gap_why string, is_backlog_looked_at boolean, why_no_backlog string"
)
_NOT_REQUIRED: Final = "is_filtered or (is_subscription and coalesce(made_at > last_sent, false))"
"""A message need not be at a subscription that is filtered, or that was made later."""


def run_audit(spark: SparkSession, settings: AuditSettings, on_progress: OnProgress = ignore) -> AuditResult:
    """Judge every message. PipelineError, or a ServiceBusError, where an input that was named cannot be read."""
    if (
        settings.report_folder is not None
        and "://" not in settings.report_folder
        and Path(settings.report_folder).exists()
    ):
        raise PipelineError(f"{settings.report_folder} is there already: a report is written to a new folder")
    found = inspect(spark, settings, read_journals(spark, *settings.journals), on_progress)
    return judge_all(spark, settings, found, on_progress)


def judge_all(
    spark: SparkSession, settings: AuditSettings, inspection: Inspection, on_progress: OnProgress = ignore
) -> AuditResult:
    """Join what was found with what was written down."""
    on_progress("reading what is missing in journals and captures")
    files = find_journal_files(settings.journals)
    rows = read_journal_files(spark, files)
    captured = captures.find_captured_files(settings.captures, settings.capture_namespaces())
    file_facts = read_file_facts(rows)
    gaps = find_gaps(group_by_run(files, file_facts), dt.datetime.now(dt.UTC), inspection.journals_complete_until)
    gaps += [*bulk_gaps(file_facts.values()), *captured.gaps]
    on_progress("joining what was sent with what was found")
    until = min(
        settings.until or inspection.started_at, inspection.started_at - dt.timedelta(seconds=settings.max_clock_skew_s)
    )
    asked = JournalFilter(
        since=settings.since,
        until=until,
        namespaces=settings.namespaces,
        has_transactions=any(facts.has_transactions for facts in file_facts.values()),
        has_cancellations=any(facts.has_cancellations for facts in file_facts.values()),
    )
    evidence = Evidence(spark, inspection.topology)
    frame = (
        evidence.from_journals(rows, asked)
        .unionByName(evidence.from_contents(inspection.primary.contents))
        .unionByName(evidence.from_backlog(inspection.backlog.contents))
        .unionByName(evidence.from_captures(captures.read_rows(spark, captured)))
    )
    destinations = spark.createDataFrame(_destination_rows(settings, inspection, gaps), DESTINATION_SCHEMA)
    judged = _persist(spark, settings, judge(frame, destinations))
    on_progress("counting")
    outcome = summarize(judged, sorted({gap.reason for gap in gaps}), until)
    judged.unpersist()
    return outcome


def judge(evidence: DataFrame, destinations: DataFrame) -> DataFrame:
    """Every message, with its verdict. Where it need not be, and is not, it is not told of, if it is told of at all."""
    facts = compute_facts(evidence, destinations).withColumn(
        "is_told", f.expr(f"found > 0 or seen_and_gone > 0 or not ({_NOT_REQUIRED})")
    )
    if destinations.where("is_filtered or is_subscription").isEmpty():  # else there is more to sort
        facts = facts.withColumn("is_due_nowhere", f.lit(False))  # noqa: FBT003
    else:
        same = Window.partitionBy(f.lower("entity"), "message_id", "session_id")
        is_first = f.min("destination").over(same) == f.col("destination")
        facts = facts.withColumn("is_due_nowhere", ~f.max("is_told").over(same) & is_first)
    facts = facts.where("is_told or is_due_nowhere")
    return facts.withColumn("verdict", verdict_column()).withColumn("reason", reason_column()).select(*REPORT_COLUMNS)


def _destination_rows(
    settings: AuditSettings, inspection: Inspection, gaps: list[EvidenceGap]
) -> list[tuple[object, ...]]:
    """What is known of each, for the facts of its messages."""
    skew = dt.timedelta(seconds=settings.max_clock_skew_s)
    no_backlog = inspection.backlog_incomplete_reason()
    rows: list[tuple[object, ...]] = []
    for key, one in inspection.topology.destinations.items():
        places = [place.path for place in inspection.topology.locations if place.destination == key]
        trouble = inspection.primary_incomplete_reason(places)
        gap = find_latest_gap(gaps, places, inspection.primary.taken_at)
        made_at = None if one.created_ms is None else dt.datetime.fromtimestamp(one.created_ms / 1000, dt.UTC) - skew
        rows.append(
            (
                key,
                one.exists,
                trouble is None,
                trouble,
                inspection.primary.taken_at,
                settings.covers(key),
                one.is_filtered,
                one.is_subscription,
                one.detects_duplicates,
                one.duplicate_window_ms,
                one.dead_letters_expired,
                one.time_to_live_ms,
                made_at,
                None if gap is None else gap.until + skew,
                None if gap is None else gap.reason,
                no_backlog is None,
                no_backlog,
            )
        )
    return rows


def _persist(spark: SparkSession, settings: AuditSettings, judged: DataFrame) -> DataFrame:
    """So that it is worked out once."""
    if settings.report_folder is None:
        return judged.persist(StorageLevel.MEMORY_AND_DISK)
    judged.write.parquet(settings.report_folder)
    return spark.read.parquet(settings.report_folder)
