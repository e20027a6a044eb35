"""Gaps in journals: a journal was cut off, is still being written, lost rows, or lacks a file.

Owns the detection of gaps. A *run* is everything that one journal wrote, in files numbered from 1; the first row says
that the run began, and the last row that it ended. A gap may hide settlements in the entities for which the run had
receivers. If rows that announce receivers may also be missing, the gap may hide settlements in any entity.

| finding | what is unknown |
|---|---|
| the last row is not `ended` | settlements after that row, for as long as the process may have run |
| a `rows lost` row | settlements before that row |
| a missing file | settlements before the first row of the next file |
| a `deleted in bulk` or `completed in bulk` row | which of the entity's messages were settled |
"""

from __future__ import annotations

import datetime as dt
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

from twinbus.client.journal import ALIVE_INTERVAL_S
from twinbus.model.path import canonical_key
from twinbus.pipeline.journals import JournalFile, find_journal_files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame

ANY_ENTITY: Final = "*"
"""Entity of a gap that may affect any entity."""
MAX_SILENCE: Final = dt.timedelta(minutes=5)
"""A journal without a new row for this time has stopped, because a live journal writes a row every half minute."""
LIVE_JOURNAL_TIMEOUT_S: Final = ALIVE_INTERVAL_S + 5.0
"""Time within which a live journal has definitely written another row."""
POLL_INTERVAL_S: Final = 0.2
MIN_TIME: Final = dt.datetime.min.replace(tzinfo=dt.UTC)
BULK_OUTCOMES: Final = ("deleted in bulk", "completed in bulk")


@dataclass(frozen=True, slots=True)
class EvidenceGap:
    """A period in which settlements may have happened without a row."""

    entity: str
    """Key of the entity, or ANY_ENTITY."""
    since: dt.datetime
    until: dt.datetime
    reason: str


@dataclass(frozen=True, slots=True)
class JournalFileFacts:
    """Facts from the rows in one file."""

    first_time: dt.datetime
    last_time: dt.datetime
    last_loss_time: dt.datetime | None
    lost_rows: int
    has_start_row: bool
    has_end_row: bool
    has_sends: bool
    has_transactions: bool
    has_cancellations: bool
    received_from: frozenset[str]
    bulk_settlements: frozenset[tuple[str, dt.datetime]]
    """Entities with bulk deletions or completions, each with the time of the last of them."""


@dataclass
class JournalRun:
    """All files of one journal."""

    name: str
    files: list[JournalFile] = field(default_factory=list)
    facts: dict[int, JournalFileFacts] = field(default_factory=dict)
    """Facts by file number."""

    @property
    def last_file_facts(self) -> JournalFileFacts | None:
        """Facts about the last file that has rows."""
        return self.facts[max(self.facts)] if self.facts else None

    @property
    def has_ended(self) -> bool:
        """Whether the journal has ended: it has its last row or, in version 1, a complete last file.

        The first file shows the version.
        """
        last = self.last_file_facts
        if last is None:
            return False
        is_first_known = self.files[0].file_number <= 1
        return last.has_end_row or (is_first_known and not self.has_lifecycle_rows and self.files[-1].is_complete)

    @property
    def has_lifecycle_rows(self) -> bool:
        """Whether the journal has version 2, which records that it is alive and where it receives."""
        return any(facts.has_start_row or facts.has_end_row for facts in self.facts.values())

    @property
    def has_all_files(self) -> bool:
        """Whether no file is missing."""
        return [file.file_number for file in self.files] == list(
            range(1, len(self.files) + 1)
        ) and not self.lacks_next_file

    @property
    def lacks_next_file(self) -> bool:
        """Whether the last file was closed for a next file that is missing."""
        return not self.has_ended and self.files[-1].is_complete

    def settled_entities(self) -> frozenset[str]:
        """Return the entities whose messages the journal may have settled."""
        if not (self.has_lifecycle_rows and self.has_all_files):
            return frozenset({ANY_ENTITY})
        return frozenset().union(*[facts.received_from for facts in self.facts.values()])


def read_file_facts(rows: DataFrame) -> dict[str, JournalFileFacts]:
    """Return facts about each file that has rows, by file name."""
    is_own = f.col("kind") == "journal"
    is_lost = is_own & (f.col("outcome") == "rows lost")
    is_bulk = f.col("outcome").isin(*BULK_OUTCOMES) & (f.col("count") > 0)
    entry = f.struct(f.lower("entity").alias("key"), f.unix_millis("time").alias("until"))
    is_of_receiver = f.col("kind").isin("receiver", "settlement")
    sums = rows.groupBy("file").agg(
        f.unix_millis(f.min("time")).alias("first"),
        f.unix_millis(f.max("time")).alias("last"),
        f.unix_millis(f.max(f.when(is_lost, f.col("time")))).alias("lost_at"),
        f.sum(f.when(is_lost, f.col("count"))).alias("lost"),
        f.max(is_own & f.col("outcome").isin("began", "alive")).alias("says_began"),
        f.max(is_own & (f.col("outcome") == "ended")).alias("says_ended"),
        f.max(f.col("kind") == "send").alias("has_sends"),
        f.max(f.col("kind") == "transaction").alias("has_transactions"),
        f.max(f.col("outcome") == "cancelled").alias("has_cancelled"),
        f.collect_set(f.when(is_bulk, entry)).alias("bulk"),
        f.collect_set(f.when(is_of_receiver, f.lower("entity"))).alias("received_from"),
    )
    return {
        row.file: JournalFileFacts(
            to_datetime(row["first"]),
            to_datetime(row["last"]),
            None if row.lost_at is None else to_datetime(row.lost_at),
            row.lost or 0,
            row.says_began,
            row.says_ended,
            row.has_sends,
            row.has_transactions,
            row.has_cancelled,
            frozenset(row.received_from),
            _latest_by_entity((entry.key, to_datetime(entry.until)) for entry in row.bulk),
        )
        for row in sums.collect()
    }


def _latest_by_entity(entries: Iterable[tuple[str, dt.datetime]]) -> frozenset[tuple[str, dt.datetime]]:
    """Return the latest time for each entity."""
    return frozenset(dict(sorted(entries)).items())


def group_by_run(files: Sequence[JournalFile], facts: dict[str, JournalFileFacts]) -> list[JournalRun]:
    """Group files by the journal that wrote them."""
    runs: dict[str, JournalRun] = {}
    for file in sorted(files, key=lambda file: (file.run_id, file.file_number)):
        run = runs.setdefault(file.run_id, JournalRun(file.run_id))
        run.files.append(file)
        if file.path.name in facts:
            run.facts[file.file_number] = facts[file.path.name]
    return list(runs.values())


def find_gaps(
    runs: Iterable[JournalRun], now: dt.datetime, complete_until: dict[str, dt.datetime]
) -> list[EvidenceGap]:
    """Return all gaps, as of the time when the journals were read.

    `complete_until` maps each live journal to the time up to which all its rows have been written.
    """
    return [
        EvidenceGap(entity, *gap)
        for run in runs
        for entity in sorted(run.settled_entities())
        for gap in _gaps_of_run(run, now, complete_until.get(run.name, MIN_TIME))
    ]


def _gaps_of_run(
    run: JournalRun, now: dt.datetime, complete_until: dt.datetime
) -> Iterator[tuple[dt.datetime, dt.datetime, str]]:
    last = run.last_file_facts
    if last is None:
        yield MIN_TIME, now, f"{run.files[0].path.name} has no complete row"
        return
    numbers = {file.file_number for file in run.files}
    for number in sorted(run.facts):
        if number > 1 and number - 1 not in numbers:
            yield MIN_TIME, run.facts[number].first_time, f"file {number - 1} of journal {run.name} is missing"
    for facts in run.facts.values():
        if facts.last_loss_time is not None:
            yield (
                facts.first_time,
                facts.last_loss_time,
                f"journal {run.name} lost {facts.lost_rows:,} rows until {_format_time(facts.last_loss_time)}",
            )
    if run.lacks_next_file:
        yield last.last_time, now, f"file {run.files[-1].file_number + 1} of journal {run.name} is missing"
    elif not run.has_ended:
        until = min(now, last.last_time + MAX_SILENCE) if run.has_lifecycle_rows else now
        yield (
            max(last.last_time, complete_until),
            until,
            f"journal {run.name} did not end: its last row is from {_format_time(last.last_time)}",
        )


def bulk_gaps(facts: Iterable[JournalFileFacts]) -> list[EvidenceGap]:
    """Return gaps for bulk deletions and completions, because journals do not say which messages were settled."""
    return [
        EvidenceGap(
            key, MIN_TIME, until, f"messages of '{key}' were deleted or completed in bulk until {_format_time(until)}"
        )
        for key, until in sorted({settlement for file_facts in facts for settlement in file_facts.bulk_settlements})
    ]


def wait_for_live_journals(
    folders: Sequence[Path | str], timeout_s: float, on_progress: Callable[[int], None]
) -> dict[str, dt.datetime]:
    """Wait until every live journal has written further rows, and so contains all settlements before the call.

    A journal that has not ended and writes nothing for `timeout_s` is not live. `on_progress` is called with the number
    of journals still to wait for. Return, for each live journal, the time up to which all its rows have been written.
    """
    now = dt.datetime.now(dt.UTC)
    deadline_s = time.monotonic() + timeout_s
    newest = {file.run_id: file for file in sorted(find_journal_files(folders), key=lambda file: file.file_number)}
    waiting = {run_id: file for run_id, file in newest.items() if not file.is_complete and _is_recent(file, timeout_s)}
    live = set(waiting)
    while waiting and time.monotonic() < deadline_s:
        on_progress(len(waiting))
        time.sleep(POLL_INTERVAL_S)
        waiting = {run_id: file for run_id, file in waiting.items() if file.path.stat().st_size == file.size}
    return dict.fromkeys(live - waiting.keys(), now)


def _is_recent(file: JournalFile, max_age_s: float) -> bool:
    return time.time() - file.path.stat().st_mtime < max_age_s


def to_datetime(milliseconds: int) -> dt.datetime:
    """Convert milliseconds since 1970 to a time in UTC."""
    return dt.datetime.fromtimestamp(milliseconds / 1000, dt.UTC)


def _format_time(time_utc: dt.datetime) -> str:
    return f"{time_utc:%Y-%m-%d %H:%M:%S} UTC"


def find_latest_gap(
    gaps: Iterable[EvidenceGap], entities: Iterable[str], inspected_at: dt.datetime | None
) -> EvidenceGap | None:
    """Return the gap at `entities` that ends last. Gaps that began after the inspection are ignored."""
    keys = {canonical_key(entity) for entity in entities} | {ANY_ENTITY}
    matching = [gap for gap in gaps if gap.entity in keys and (inspected_at is None or gap.since < inspected_at)]
    return max(matching, key=lambda gap: gap.until, default=None)
