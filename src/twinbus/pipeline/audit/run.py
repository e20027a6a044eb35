"""An audit from end to end.

    with session("twinbus audit") as spark:
        outcome = audit(spark, AuditSettings(journals=["audit"], primary=..., covered=["*"]))

Owns: that the look comes first (`looking`), and journals and captures are read after it: what was settled before the
look is in them. Sends that were made after the look began are not asked about.
"""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark import StorageLevel
from pyspark.sql import Window
from pyspark.sql import functions as f

from twinbus.model.callbacks import ignore
from twinbus.pipeline.audit import captures
from twinbus.pipeline.audit.evidence import Asked, Evidence
from twinbus.pipeline.audit.facts import facts_of
from twinbus.pipeline.audit.lives import bulk_gaps, gap_for, gaps_of, lives_of, read_facts
from twinbus.pipeline.audit.looking import gather
from twinbus.pipeline.audit.report import COLUMNS, summarize
from twinbus.pipeline.audit.verdicts import reason, verdict
from twinbus.pipeline.errors import PipelineError
from twinbus.pipeline.journals import find, journals, rows_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from twinbus.pipeline.audit.lives import Gap
    from twinbus.pipeline.audit.looking import Found, Tell
    from twinbus.pipeline.audit.report import Outcome
    from twinbus.pipeline.audit.settings import AuditSettings

DESTINATIONS: Final = (
    "destination string, is_there boolean, is_looked_at boolean, why_not_looked_at string, looked_at timestamp,"
    " is_covered boolean, is_filtered boolean, is_subscription boolean, detects_duplicates boolean,"
    " duplicate_window bigint, keeps_expired boolean, longest_life bigint, made_at timestamp, gap_until timestamp,"
    " gap_why string, is_backlog_looked_at boolean, why_no_backlog string"
)
_NEED_NOT: Final = "is_filtered or (is_subscription and coalesce(made_at > last_sent, false))"
"""A message need not be at a subscription that is filtered, or that was made later."""


def audit(spark: SparkSession, settings: AuditSettings, tell: Tell = ignore) -> Outcome:
    """Judge every message. PipelineError, or a ServiceBusError, where an input that was named cannot be read."""
    if settings.report is not None and "://" not in settings.report and Path(settings.report).exists():
        raise PipelineError(f"{settings.report} is there already: a report is written to a new folder")
    found = gather(spark, settings, journals(spark, *settings.journals), tell)
    return weigh(spark, settings, found, tell)


def weigh(spark: SparkSession, settings: AuditSettings, found: Found, tell: Tell = ignore) -> Outcome:
    """Join what was found with what was written down."""
    tell("reading what is missing in journals and captures")
    files = find(settings.journals)
    rows = rows_of(spark, files)
    captured = captures.find_captured(settings.captures, settings.names_in_captures())
    file_facts = read_facts(rows)
    gaps = gaps_of(lives_of(files, file_facts), dt.datetime.now(dt.UTC), found.up_to_date)
    gaps += [*bulk_gaps(file_facts.values()), *captured.gaps]
    tell("joining what was sent with what was found")
    until = min(settings.until or found.began, found.began - dt.timedelta(seconds=settings.skew_s))
    asked = Asked(
        since=settings.since,
        until=until,
        namespaces=settings.namespaces,
        has_transactions=any(facts.has_transactions for facts in file_facts.values()),
        has_cancelled=any(facts.has_cancelled for facts in file_facts.values()),
    )
    evidence = Evidence(spark, found.topology)
    frame = (
        evidence.of_journals(rows, asked)
        .unionByName(evidence.of_contents(found.primary.contents))
        .unionByName(evidence.of_backlog(found.backlog.contents))
        .unionByName(evidence.of_captures(captures.rows_of(spark, captured)))
    )
    destinations = spark.createDataFrame(_destinations(settings, found, gaps), DESTINATIONS)
    judged = _keep(spark, settings, judge(frame, destinations))
    tell("counting")
    outcome = summarize(judged, sorted({gap.why for gap in gaps}), until)
    judged.unpersist()
    return outcome


def judge(evidence: DataFrame, destinations: DataFrame) -> DataFrame:
    """Every message, with its verdict. Where it need not be, and is not, it is not told of, if it is told of at all."""
    facts = facts_of(evidence, destinations).withColumn(
        "is_told", f.expr(f"found > 0 or seen_and_gone > 0 or not ({_NEED_NOT})")
    )
    if destinations.where("is_filtered or is_subscription").isEmpty():  # else there is more to sort
        facts = facts.withColumn("is_due_nowhere", f.lit(False))  # noqa: FBT003
    else:
        same = Window.partitionBy(f.lower("entity"), "message_id", "session_id")
        is_first = f.min("destination").over(same) == f.col("destination")
        facts = facts.withColumn("is_due_nowhere", ~f.max("is_told").over(same) & is_first)
    facts = facts.where("is_told or is_due_nowhere")
    return facts.withColumn("verdict", verdict()).withColumn("reason", reason()).select(*COLUMNS)


def _destinations(settings: AuditSettings, found: Found, gaps: list[Gap]) -> list[tuple[object, ...]]:
    """What is known of each, for the facts of its messages."""
    skew = dt.timedelta(seconds=settings.skew_s)
    no_backlog = found.backlog_trouble()
    rows: list[tuple[object, ...]] = []
    for key, one in found.topology.destinations.items():
        places = [place.path for place in found.topology.places if place.destination == key]
        trouble = found.trouble(places)
        gap = gap_for(gaps, places, found.primary.at)
        made_at = None if one.made_ms is None else dt.datetime.fromtimestamp(one.made_ms / 1000, dt.UTC) - skew
        rows.append(
            (
                key,
                one.is_there,
                trouble is None,
                trouble,
                found.primary.at,
                settings.covers(key),
                one.is_filtered,
                one.is_subscription,
                one.detects_duplicates,
                one.duplicate_window_ms,
                one.keeps_expired,
                one.time_to_live_ms,
                made_at,
                None if gap is None else gap.until + skew,
                None if gap is None else gap.why,
                no_backlog is None,
                no_backlog,
            )
        )
    return rows


def _keep(spark: SparkSession, settings: AuditSettings, judged: DataFrame) -> DataFrame:
    """So that it is worked out once."""
    if settings.report is None:
        return judged.persist(StorageLevel.MEMORY_AND_DISK)
    judged.write.parquet(settings.report)
    return spark.read.parquet(settings.report)
