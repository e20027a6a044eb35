"""What is found by asking: which entities there are, and what is in them and in the backlog now.

Owns: the order of looks. The backlog comes first, then entities, then dead-letter queues: the way that messages go, so
that one that moves meanwhile is seen before it does, or after. At last journals that are still written to are waited
for: what was settled before the look is in them then.
"""

from __future__ import annotations

import asyncio
import datetime as dt
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

from twinbus.client import NamespaceManager
from twinbus.client.retry import NO_RETRY
from twinbus.model.path import SubQueue, canonical_key
from twinbus.pipeline.audit.contents import empty_contents, read_contents
from twinbus.pipeline.audit.journal_gaps import wait_for_live_journals
from twinbus.pipeline.audit.topology import read_namespace, topology_from_journals, topology_of_namespace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from twinbus.pipeline.audit.contents import NamespaceAccess
    from twinbus.pipeline.audit.job import AuditSettings
    from twinbus.pipeline.audit.topology import Topology

    OnProgress = Callable[[str], None]

_DEAD_LETTER_SUFFIX: Final = canonical_key(SubQueue.DEAD_LETTER.value)
_NO_PRIMARY: Final = "no connection string of the primary was given"
_NO_SECONDARY: Final = "no connection string of the secondary was given"


@dataclass(frozen=True, slots=True)
class JournalScope:
    """What journals are about."""

    entities: frozenset[str]
    """That something was sent to."""
    settled_entities: frozenset[str]
    """That something was received from."""
    backlog_queues: frozenset[str]
    """Backlog queues that were used."""


@dataclass(frozen=True)
class ContentsSnapshot:
    """What is in a namespace now."""

    contents: DataFrame
    taken_at: dt.datetime | None = None
    """When it was over; None: nobody looked."""
    failures: dict[str, str] = field(default_factory=dict)
    """Places that could not be looked at, and why."""

    def incomplete_reason(self, locations: Sequence[str], not_taken_reason: str) -> str | None:
        """Why it is not known what is at these places; None if it is."""
        if self.taken_at is None:
            return not_taken_reason
        return "; ".join(f"{place}: {self.failures[place]}" for place in locations if place in self.failures) or None


@dataclass(frozen=True)
class Inspection:
    """All that was found by asking."""

    started_at: dt.datetime
    """Before the first look."""
    scope: JournalScope
    topology: Topology
    backlog: ContentsSnapshot
    primary: ContentsSnapshot
    journals_complete_until: dict[str, dt.datetime] = field(default_factory=dict)
    """Journals that go on, each with the time before which it has written all."""

    def backlog_incomplete_reason(self) -> str | None:
        """Why it is not known what is in the backlog; None if it is, or if there is none."""
        if not self.scope.backlog_queues:
            return None
        return self.backlog.incomplete_reason(backlog_locations(self.scope), _NO_SECONDARY)

    def primary_incomplete_reason(self, locations: Sequence[str]) -> str | None:
        """Why it is not known what is at some places of the primary; None if it is."""
        return self.primary.incomplete_reason(locations, _NO_PRIMARY)


async def check_access(settings: AuditSettings) -> None:
    """Ask each namespace that is named once: a ServiceBusError where one does not answer, or does not take the key."""
    for access in (settings.primary, settings.secondary):
        if access is not None:
            async with access.create_factory() as factory:
                await factory.authorized_connection(factory.where.entity_path or "")
    access = settings.primary_admin
    if access is not None:
        options = access.client_options() | {"retry_policy": NO_RETRY}
        async with NamespaceManager.from_connection_string(access.connection_string, **options) as manager:
            await manager.get_namespace_info()


def inspect(spark: SparkSession, settings: AuditSettings, rows: DataFrame, on_progress: OnProgress) -> Inspection:
    """Ask, and look. `rows` are those of the journals as they are now."""
    on_progress("reading which entities the journals are about")
    scope = read_scope(rows)
    topology = _read_topology(settings, scope, on_progress)
    began = dt.datetime.now(dt.UTC)
    backlog = _take_snapshot(spark, settings.secondary, backlog_locations(scope), "the backlog", on_progress)
    primary = _take_snapshot(spark, settings.primary, topology.inspection_order(), "entities", on_progress)
    patience_s = settings.live_journal_timeout_s if primary.taken_at is not None else 0.0
    up_to_date = wait_for_live_journals(
        settings.journals, patience_s, lambda count: on_progress(f"waiting for {count} journals that are written to")
    )
    return Inspection(began, scope, topology, backlog, primary, up_to_date)


def read_scope(rows: DataFrame) -> JournalScope:
    """What journals are about, in one pass."""
    keys = (f.lower("entity").alias("key"), f.lower("backlog_queue").alias("queue"))
    found = rows.select("kind", *keys).distinct().collect()
    return JournalScope(
        frozenset(one.key for one in found if one.kind == "send" and one.key is not None),
        frozenset(one.key for one in found if one.kind == "settlement" and one.key is not None),
        frozenset(one.queue for one in found if one.queue is not None),
    )


def backlog_locations(scope: JournalScope) -> list[str]:
    """Backlog queues, and behind them their dead-letter queues."""
    queues = sorted(scope.backlog_queues)
    return [*queues, *[queue + _DEAD_LETTER_SUFFIX for queue in queues]]


def _read_topology(settings: AuditSettings, scope: JournalScope, on_progress: OnProgress) -> Topology:
    access = settings.primary_admin
    if access is None:
        return topology_from_journals(scope.entities, scope.settled_entities)
    on_progress("asking the primary for its entities")

    async def ask() -> Topology:
        options = access.client_options()
        async with NamespaceManager.from_connection_string(access.connection_string, **options) as manager:
            return topology_of_namespace(await read_namespace(manager, scope.entities), scope.entities)

    return asyncio.run(ask())


def _take_snapshot(
    spark: SparkSession, access: NamespaceAccess | None, locations: Sequence[str], label: str, on_progress: OnProgress
) -> ContentsSnapshot:
    if access is None:
        return ContentsSnapshot(empty_contents(spark))
    contents = empty_contents(spark)
    for is_dead, name in ((False, label), (True, f"dead letters of {label}")):
        some = [place for place in locations if ("/$" in place) is is_dead]
        on_progress(f"looking into {name}: {len(some)} places")
        contents = contents.unionByName(read_contents(spark, access, some))
    failed = contents.where("error is not null").select("place", "error").collect()
    return ContentsSnapshot(contents, dt.datetime.now(dt.UTC), {one.place: one.error for one in failed})
