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

from twinbus.client.journal import ALIVE_S
from twinbus.model.path import key_of
from twinbus.pipeline.journals import JournalFile, find

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame

ANY: Final = "*"
"""Instead of an entity: it may be any."""
SILENT: Final = dt.timedelta(minutes=5)
"""A journal that said nothing for so long, although it says each half minute that it is alive, was over before."""
PATIENCE_S: Final = ALIVE_S + 5.0
"""So long after its last row, one that goes on has certainly written another."""
LOOK_S: Final = 0.2
BEGINNING: Final = dt.datetime.min.replace(tzinfo=dt.UTC)
BULK: Final = ("deleted in bulk", "completed in bulk")


@dataclass(frozen=True, slots=True)
class Gap:
    """Settlements that may have happened without a row."""

    entity: str
    """Its key, or ANY."""
    since: dt.datetime
    until: dt.datetime
    why: str


@dataclass(frozen=True, slots=True)
class FileFacts:
    """What the rows of one file come to."""

    first: dt.datetime
    last: dt.datetime
    lost_at: dt.datetime | None
    lost: int
    says_began: bool
    says_ended: bool
    has_sends: bool
    has_transactions: bool
    has_cancelled: bool
    received_from: frozenset[str]
    bulk: frozenset[tuple[str, dt.datetime]]
    """Entities of which something was deleted or completed in bulk, and when that was last."""


@dataclass
class Life:
    """All files of one journal."""

    name: str
    files: list[JournalFile] = field(default_factory=list)
    facts: dict[int, FileFacts] = field(default_factory=dict)
    """By the number of the file."""

    @property
    def last(self) -> FileFacts | None:
        """The last file that has rows."""
        return self.facts[max(self.facts)] if self.facts else None

    @property
    def has_ended(self) -> bool:
        """It has written its last row; one of version 1, its last file. Its first file says which version it is."""
        last = self.last
        if last is None:
            return False
        is_first_known = self.files[0].part <= 1
        return last.says_ended or (is_first_known and not self.knows_itself and self.files[-1].is_ended)

    @property
    def knows_itself(self) -> bool:
        """It is of version 2: it says that it is alive, and where it receives."""
        return any(one.says_began or one.says_ended for one in self.facts.values())

    @property
    def is_whole(self) -> bool:
        """No file is missing."""
        return [one.part for one in self.files] == list(range(1, len(self.files) + 1)) and not self.lacks_next

    @property
    def lacks_next(self) -> bool:
        """Its last file was closed for another one, which is not there."""
        return not self.has_ended and self.files[-1].is_ended

    def scope(self) -> frozenset[str]:
        """Entities whose messages it may have settled."""
        if not (self.knows_itself and self.is_whole):
            return frozenset({ANY})
        return frozenset().union(*[one.received_from for one in self.facts.values()])


def read_facts(rows: DataFrame) -> dict[str, FileFacts]:
    """Those of each file that has rows, by its name."""
    is_own = f.col("kind") == "journal"
    is_lost = is_own & (f.col("outcome") == "rows lost")
    is_bulk = f.col("outcome").isin(*BULK) & (f.col("count") > 0)
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
        one.file: FileFacts(
            moment(one["first"]),
            moment(one["last"]),
            None if one.lost_at is None else moment(one.lost_at),
            one.lost or 0,
            one.says_began,
            one.says_ended,
            one.has_sends,
            one.has_transactions,
            one.has_cancelled,
            frozenset(one.received_from),
            _latest((entry.key, moment(entry.until)) for entry in one.bulk),
        )
        for one in found.collect()
    }


def _latest(entries: Iterable[tuple[str, dt.datetime]]) -> frozenset[tuple[str, dt.datetime]]:
    """Of each entity the last."""
    return frozenset(dict(sorted(entries)).items())


def lives_of(files: Sequence[JournalFile], facts: dict[str, FileFacts]) -> list[Life]:
    """Files, by who wrote them."""
    lives: dict[str, Life] = {}
    for file in sorted(files, key=lambda one: (one.life, one.part)):
        life = lives.setdefault(file.life, Life(file.life))
        life.files.append(file)
        if file.path.name in facts:
            life.facts[file.part] = facts[file.path.name]
    return list(lives.values())


def gaps_of(lives: Iterable[Life], now: dt.datetime, up_to_date: dict[str, dt.datetime]) -> list[Gap]:
    """All that is not known, as of the time when the journals were read.

    `up_to_date`: lives that go on, each with a time before which it has written all there was.
    """
    return [
        Gap(entity, *about)
        for life in lives
        for entity in sorted(life.scope())
        for about in _missing(life, now, up_to_date.get(life.name, BEGINNING))
    ]


def _missing(life: Life, now: dt.datetime, up_to_date: dt.datetime) -> Iterator[tuple[dt.datetime, dt.datetime, str]]:
    last = life.last
    if last is None:
        yield BEGINNING, now, f"{life.files[0].path.name} has not one whole row"
        return
    parts = {file.part for file in life.files}
    for part in sorted(life.facts):
        if part > 1 and part - 1 not in parts:
            yield BEGINNING, life.facts[part].first, f"file {part - 1} of journal {life.name} is missing"
    for facts in life.facts.values():
        if facts.lost_at is not None:
            yield (
                facts.first,
                facts.lost_at,
                f"journal {life.name} lost {facts.lost:,} rows until {_told(facts.lost_at)}",
            )
    if life.lacks_next:
        yield last.last, now, f"file {life.files[-1].part + 1} of journal {life.name} is missing"
    elif not life.has_ended:
        until = min(now, last.last + SILENT) if life.knows_itself else now
        yield (
            max(last.last, up_to_date),
            until,
            f"journal {life.name} has no end: its last row is of {_told(last.last)}",
        )


def bulk_gaps(facts: Iterable[FileFacts]) -> list[Gap]:
    """Messages that were deleted, or completed, without a word which."""
    return [
        Gap(key, BEGINNING, until, f"messages of '{key}' were deleted or completed in bulk until {_told(until)}")
        for key, until in sorted({one for some in facts for one in some.bulk})
    ]


def wait_for_the_living(
    folders: Sequence[Path | str], patience_s: float, tell: Callable[[int], None]
) -> dict[str, dt.datetime]:
    """Wait until every journal that is written to now has written more: it says then what was settled before now.

    One that has no end and says nothing for `patience_s` is not written to any more. `tell` hears how many are left.
    Those that went on, each with the time before which it has written all.
    """
    now = dt.datetime.now(dt.UTC)
    deadline_s = time.monotonic() + patience_s
    newest = {one.life: one for one in sorted(find(folders), key=lambda one: one.part)}
    waiting = {life: one for life, one in newest.items() if not one.is_ended and _is_fresh(one, patience_s)}
    living = set(waiting)
    while waiting and time.monotonic() < deadline_s:
        tell(len(waiting))
        time.sleep(LOOK_S)
        waiting = {life: one for life, one in waiting.items() if one.path.stat().st_size == one.size}
    return dict.fromkeys(living - waiting.keys(), now)


def _is_fresh(file: JournalFile, patience_s: float) -> bool:
    return time.time() - file.path.stat().st_mtime < patience_s


def moment(milliseconds: int) -> dt.datetime:
    """A time in UTC."""
    return dt.datetime.fromtimestamp(milliseconds / 1000, dt.UTC)


def _told(when: dt.datetime) -> str:
    return f"{when:%Y-%m-%d %H:%M:%S} UTC"


def gap_for(gaps: Iterable[Gap], entities: Iterable[str], looked_at: dt.datetime | None) -> Gap | None:
    """The gap that hides most of what happened at some entities; one that began after the look hides nothing."""
    keys = {key_of(one) for one in entities} | {ANY}
    found = [gap for gap in gaps if gap.entity in keys and (looked_at is None or gap.since < looked_at)]
    return max(found, key=lambda gap: gap.until, default=None)
