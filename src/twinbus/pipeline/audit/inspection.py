"""Inspection of the namespaces: their entities, and the messages that are now in entities and in backlog queues.

Owns the order of inspection: first the backlog, then entities, then dead-letter queues. Messages move in the same
direction, so a message that moves during the inspection is found before or after its move. Finally, the inspection
waits until live journals contain all settlements that were made before the inspection.
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
    """Entities and backlog queues that appear in journals."""

    entities: frozenset[str]
    """Entities to which messages were sent."""
    settled_entities: frozenset[str]
    """Entities from which messages were received."""
    backlog_queues: frozenset[str]
    """Backlog queues that were used."""


@dataclass(frozen=True)
class ContentsSnapshot:
    """Messages in a namespace at the time of the inspection."""

    contents: DataFrame
    taken_at: dt.datetime | None = None
    """Time at which the inspection finished; None if nothing was inspected."""
    failures: dict[str, str] = field(default_factory=dict)
    """Locations that could not be inspected, with the reasons."""

    def incomplete_reason(self, locations: Sequence[str], not_taken_reason: str) -> str | None:
        """Return why the contents of these locations are unknown, or None if they are known."""
        if self.taken_at is None:
            return not_taken_reason
        return (
            "; ".join(f"{location}: {self.failures[location]}" for location in locations if location in self.failures)
            or None
        )


@dataclass(frozen=True)
class Inspection:
    """The result of inspecting both namespaces."""

    started_at: dt.datetime
    """Time before the first request."""
    scope: JournalScope
    topology: Topology
    backlog: ContentsSnapshot
    primary: ContentsSnapshot
    journals_complete_until: dict[str, dt.datetime] = field(default_factory=dict)
    """For each live journal, the time up to which all its rows have been written."""

    def backlog_incomplete_reason(self) -> str | None:
        """Return why the contents of the backlog are unknown; None if they are known, or if there is no backlog."""
        if not self.scope.backlog_queues:
            return None
        return self.backlog.incomplete_reason(backlog_locations(self.scope), _NO_SECONDARY)

    def primary_incomplete_reason(self, locations: Sequence[str]) -> str | None:
        """Return why the contents of locations in the primary are unknown, or None if they are known."""
        return self.primary.incomplete_reason(locations, _NO_PRIMARY)


async def check_access(settings: AuditSettings) -> None:
    """Connect to each given namespace. Raise ServiceBusError if a namespace is unreachable or rejects the key."""
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
    """Inspect the namespaces. `rows` are the journal rows written so far."""
    on_progress("reading which entities the journals are about")
    scope = read_scope(rows)
    topology = _read_topology(settings, scope, on_progress)
    started_at = dt.datetime.now(dt.UTC)
    backlog = _take_snapshot(spark, settings.secondary, backlog_locations(scope), "the backlog", on_progress)
    primary = _take_snapshot(spark, settings.primary, topology.inspection_order(), "entities", on_progress)
    timeout_s = settings.live_journal_timeout_s if primary.taken_at is not None else 0.0
    complete_until = wait_for_live_journals(
        settings.journals, timeout_s, lambda count: on_progress(f"waiting for {count} live journals")
    )
    return Inspection(started_at, scope, topology, backlog, primary, complete_until)


def read_scope(rows: DataFrame) -> JournalScope:
    """Return the entities and backlog queues that appear in journals, in one pass."""
    keys = (f.lower("entity").alias("key"), f.lower("backlog_queue").alias("queue"))
    rows_found = rows.select("kind", *keys).distinct().collect()
    return JournalScope(
        frozenset(row.key for row in rows_found if row.kind == "send" and row.key is not None),
        frozenset(row.key for row in rows_found if row.kind == "settlement" and row.key is not None),
        frozenset(row.queue for row in rows_found if row.queue is not None),
    )


def backlog_locations(scope: JournalScope) -> list[str]:
    """Return the backlog queues, followed by their dead-letter queues."""
    queues = sorted(scope.backlog_queues)
    return [*queues, *[queue + _DEAD_LETTER_SUFFIX for queue in queues]]


def _read_topology(settings: AuditSettings, scope: JournalScope, on_progress: OnProgress) -> Topology:
    access = settings.primary_admin
    if access is None:
        return topology_from_journals(scope.entities, scope.settled_entities)
    on_progress("asking the primary for its entities")

    async def request() -> Topology:
        options = access.client_options()
        async with NamespaceManager.from_connection_string(access.connection_string, **options) as manager:
            return topology_of_namespace(await read_namespace(manager, scope.entities), scope.entities)

    return asyncio.run(request())


def _take_snapshot(
    spark: SparkSession, access: NamespaceAccess | None, locations: Sequence[str], label: str, on_progress: OnProgress
) -> ContentsSnapshot:
    if access is None:
        return ContentsSnapshot(empty_contents(spark))
    contents = empty_contents(spark)
    for is_dead, name in ((False, label), (True, f"dead letters of {label}")):
        paths = [path for path in locations if ("/$" in path) is is_dead]
        on_progress(f"inspecting {name}: {len(paths)} locations")
        contents = contents.unionByName(read_contents(spark, access, paths))
    failed = contents.where("error is not null").select("place", "error").collect()
    return ContentsSnapshot(contents, dt.datetime.now(dt.UTC), {row.place: row.error for row in failed})
