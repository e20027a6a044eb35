"""What journals do not tell: where one was cut off, is still written to, has lost rows, or a file of it is missing.

Owns: the *gaps*. A *life* is what one journal wrote, in files that are numbered from 1 on; its first row says that it
began, its last that it ended. Settlements that a gap may hide are of the entities that the life had receivers for,
where all of its rows that announce these are there; else of any entity.

| what is found | what is not known |
|---|---|
| its last row is not `ended` | what it settled after that row, for as long as it may have lived |
| a row `rows lost` | what it settled before that row |
| a file of it is missing | what it settled before the first row of the next |
| rows `deleted in bulk`, `completed in bulk` | which messages of the entity these were |
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
"""Instead of an entity: it may be any."""
MAX_SILENCE: Final = dt.timedelta(minutes=5)
"""A journal that said nothing for so long, although it says each half minute that it is alive, was over before."""
LIVE_JOURNAL_TIMEOUT_S: Final = ALIVE_INTERVAL_S + 5.0
"""So long after its last row, one that goes on has certainly written another."""
POLL_INTERVAL_S: Final = 0.2
MIN_TIME: Final = dt.datetime.min.replace(tzinfo=dt.UTC)
BULK_OUTCOMES: Final = ("deleted in bulk", "completed in bulk")


@dataclass(frozen=True, slots=True)
class EvidenceGap:
    """Settlements that may have happened without a row."""

    entity: str
    """Its key, or ANY."""
    since: dt.datetime
    until: dt.datetime
    reason: str


@dataclass(frozen=True, slots=True)
class JournalFileFacts:
    """What the rows of one file come to."""

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
    """Entities of which something was deleted or completed in bulk, and when that was last."""


@dataclass
class JournalRun:
    """All files of one journal."""

    name: str
    files: list[JournalFile] = field(default_factory=list)
    facts: dict[int, JournalFileFacts] = field(default_factory=dict)
    """By the number of the file."""

    @property
    def last_file_facts(self) -> JournalFileFacts | None:
        """The last file that has rows."""
        return self.facts[max(self.facts)] if self.facts else None

    @property
    def has_ended(self) -> bool:
        """It has written its last row; one of version 1, its last file. Its first file says which version it is."""
        last = self.last_file_facts
        if last is None:
            return False
        is_first_known = self.files[0].file_number <= 1
        return last.has_end_row or (is_first_known and not self.has_lifecycle_rows and self.files[-1].is_complete)

    @property
    def has_lifecycle_rows(self) -> bool:
        """It is of version 2: it says that it is alive, and where it receives."""
        return any(one.has_start_row or one.has_end_row for one in self.facts.values())

    @property
    def has_all_files(self) -> bool:
        """No file is missing."""
        return [one.file_number for one in self.files] == list(
            range(1, len(self.files) + 1)
        ) and not self.lacks_next_file

    @property
    def lacks_next_file(self) -> bool:
        """Its last file was closed for another one, which is not there."""
        return not self.has_ended and self.files[-1].is_complete

    def settled_entities(self) -> frozenset[str]:
        """Entities whose messages it may have settled."""
        if not (self.has_lifecycle_rows and self.has_all_files):
            return frozenset({ANY_ENTITY})
        return frozenset().union(*[one.received_from for one in self.facts.values()])


def read_file_facts(rows: DataFrame) -> dict[str, JournalFileFacts]:
    """Those of each file that has rows, by its name."""
    is_own = f.col("kind") == "journal"
    is_lost = is_own & (f.col("outcome") == "rows lost")
    is_bulk = f.col("outcome").isin(*BULK_OUTCOMES) & (f.col("count") > 0)
    entry = f.struct(f.lower("entity").alias("key"), f.unix_millis("time").alias("until"))
    is_of_receiver = f.col("kind").isin("receiver", "settlement")
    found = rows.groupBy("file").agg(
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
        one.file: JournalFileFacts(
            to_datetime(one["first"]),
            to_datetime(one["last"]),
            None if one.lost_at is None else to_datetime(one.lost_at),
            one.lost or 0,
            one.says_began,
            one.says_ended,
            one.has_sends,
            one.has_transactions,
            one.has_cancelled,
            frozenset(one.received_from),
            _latest_by_entity((entry.key, to_datetime(entry.until)) for entry in one.bulk),
        )
        for one in found.collect()
    }


def _latest_by_entity(entries: Iterable[tuple[str, dt.datetime]]) -> frozenset[tuple[str, dt.datetime]]:
    """Of each entity the last."""
    return frozenset(dict(sorted(entries)).items())


def group_by_run(files: Sequence[JournalFile], facts: dict[str, JournalFileFacts]) -> list[JournalRun]:
    """Files, by who wrote them."""
    lives: dict[str, JournalRun] = {}
    for file in sorted(files, key=lambda one: (one.run_id, one.file_number)):
        life = lives.setdefault(file.run_id, JournalRun(file.run_id))
        life.files.append(file)
        if file.path.name in facts:
            life.facts[file.file_number] = facts[file.path.name]
    return list(lives.values())


def find_gaps(
    runs: Iterable[JournalRun], now: dt.datetime, complete_until: dict[str, dt.datetime]
) -> list[EvidenceGap]:
    """All that is not known, as of the time when the journals were read.

    `up_to_date`: lives that go on, each with a time before which it has written all there was.
    """
    return [
        EvidenceGap(entity, *about)
        for life in runs
        for entity in sorted(life.settled_entities())
        for about in _gaps_of_run(life, now, complete_until.get(life.name, MIN_TIME))
    ]


def _gaps_of_run(
    run: JournalRun, now: dt.datetime, complete_until: dt.datetime
) -> Iterator[tuple[dt.datetime, dt.datetime, str]]:
    last = run.last_file_facts
    if last is None:
        yield MIN_TIME, now, f"{run.files[0].path.name} has not one whole row"
        return
    parts = {file.file_number for file in run.files}
    for part in sorted(run.facts):
        if part > 1 and part - 1 not in parts:
            yield MIN_TIME, run.facts[part].first_time, f"file {part - 1} of journal {run.name} is missing"
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
            f"journal {run.name} has no end: its last row is of {_format_time(last.last_time)}",
        )


def bulk_gaps(facts: Iterable[JournalFileFacts]) -> list[EvidenceGap]:
    """Messages that were deleted, or completed, without a word which."""
    return [
        EvidenceGap(
            key, MIN_TIME, until, f"messages of '{key}' were deleted or completed in bulk until {_format_time(until)}"
        )
        for key, until in sorted({one for some in facts for one in some.bulk_settlements})
    ]


def wait_for_live_journals(
    folders: Sequence[Path | str], timeout_s: float, on_progress: Callable[[int], None]
) -> dict[str, dt.datetime]:
    """Wait until every journal that is written to now has written more: it says then what was settled before now.

    One that has no end and says nothing for `patience_s` is not written to any more. `tell` hears how many are left.
    Those that went on, each with the time before which it has written all.
    """
    now = dt.datetime.now(dt.UTC)
    deadline_s = time.monotonic() + timeout_s
    newest = {one.run_id: one for one in sorted(find_journal_files(folders), key=lambda one: one.file_number)}
    waiting = {life: one for life, one in newest.items() if not one.is_complete and _is_recent(one, timeout_s)}
    living = set(waiting)
    while waiting and time.monotonic() < deadline_s:
        on_progress(len(waiting))
        time.sleep(POLL_INTERVAL_S)
        waiting = {life: one for life, one in waiting.items() if one.path.stat().st_size == one.size}
    return dict.fromkeys(living - waiting.keys(), now)


def _is_recent(file: JournalFile, max_age_s: float) -> bool:
    return time.time() - file.path.stat().st_mtime < max_age_s


def to_datetime(milliseconds: int) -> dt.datetime:
    """A time in UTC."""
    return dt.datetime.fromtimestamp(milliseconds / 1000, dt.UTC)


def _format_time(time_utc: dt.datetime) -> str:
    return f"{time_utc:%Y-%m-%d %H:%M:%S} UTC"


def find_latest_gap(
    gaps: Iterable[EvidenceGap], entities: Iterable[str], inspected_at: dt.datetime | None
) -> EvidenceGap | None:
    """The gap that hides most of what happened at some entities; one that began after the look hides nothing."""
    keys = {canonical_key(one) for one in entities} | {ANY_ENTITY}
    found = [gap for gap in gaps if gap.entity in keys and (inspected_at is None or gap.since < inspected_at)]
    return max(found, key=lambda gap: gap.until, default=None)
