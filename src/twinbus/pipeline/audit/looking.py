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
from twinbus.model.path import SubQueue, key_of
from twinbus.pipeline.audit.contents import look, nothing
from twinbus.pipeline.audit.lives import wait_for_the_living
from twinbus.pipeline.audit.topology import described, read_namespace, supposed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from twinbus.pipeline.audit.contents import Access
    from twinbus.pipeline.audit.settings import AuditSettings
    from twinbus.pipeline.audit.topology import Topology

    Tell = Callable[[str], None]

_DEAD: Final = key_of(SubQueue.DEAD_LETTER.value)
_NO_PRIMARY: Final = "no connection string of the primary was given"
_NO_SECONDARY: Final = "no connection string of the secondary was given"


@dataclass(frozen=True, slots=True)
class Scope:
    """What journals are about."""

    entities: frozenset[str]
    """That something was sent to."""
    settled: frozenset[str]
    """That something was received from."""
    backlog: frozenset[str]
    """Backlog queues that were used."""


@dataclass(frozen=True)
class Look:
    """What is in a namespace now."""

    contents: DataFrame
    at: dt.datetime | None = None
    """When it was over; None: nobody looked."""
    failures: dict[str, str] = field(default_factory=dict)
    """Places that could not be looked at, and why."""

    def trouble(self, places: Sequence[str], why_nobody: str) -> str | None:
        """Why it is not known what is at these places; None if it is."""
        if self.at is None:
            return why_nobody
        return "; ".join(f"{place}: {self.failures[place]}" for place in places if place in self.failures) or None


@dataclass(frozen=True)
class Found:
    """All that was found by asking."""

    began: dt.datetime
    """Before the first look."""
    scope: Scope
    topology: Topology
    backlog: Look
    primary: Look
    up_to_date: dict[str, dt.datetime] = field(default_factory=dict)
    """Journals that go on, each with the time before which it has written all."""

    def backlog_trouble(self) -> str | None:
        """Why it is not known what is in the backlog; None if it is, or if there is none."""
        if not self.scope.backlog:
            return None
        return self.backlog.trouble(places_of_backlog(self.scope), _NO_SECONDARY)

    def trouble(self, places: Sequence[str]) -> str | None:
        """Why it is not known what is at some places of the primary; None if it is."""
        return self.primary.trouble(places, _NO_PRIMARY)


async def reach(settings: AuditSettings) -> None:
    """Ask each namespace that is named once: a ServiceBusError where one does not answer, or does not take the key."""
    for access in (settings.primary, settings.secondary):
        if access is not None:
            async with access.factory() as factory:
                await factory.converse(factory.where.entity_path or "")
    access = settings.primary_admin
    if access is not None:
        options = access.options() | {"retry_policy": NO_RETRY}
        async with NamespaceManager.from_connection_string(access.connection_string, **options) as manager:
            await manager.get_namespace_info()


def gather(spark: SparkSession, settings: AuditSettings, rows: DataFrame, tell: Tell) -> Found:
    """Ask, and look. `rows` are those of the journals as they are now."""
    tell("reading which entities the journals are about")
    scope = read_scope(rows)
    topology = _topology(settings, scope, tell)
    began = dt.datetime.now(dt.UTC)
    backlog = _look_at(spark, settings.secondary, places_of_backlog(scope), "the backlog", tell)
    primary = _look_at(spark, settings.primary, topology.places_to_look_at(), "entities", tell)
    patience_s = settings.patience_s if primary.at is not None else 0.0
    up_to_date = wait_for_the_living(
        settings.journals, patience_s, lambda count: tell(f"waiting for {count} journals that are written to")
    )
    return Found(began, scope, topology, backlog, primary, up_to_date)


def read_scope(rows: DataFrame) -> Scope:
    """What journals are about, in one pass."""
    keys = (f.lower("entity").alias("key"), f.lower("backlog_queue").alias("queue"))
    found = rows.select("kind", *keys).distinct().collect()
    return Scope(
        frozenset(one.key for one in found if one.kind == "send" and one.key is not None),
        frozenset(one.key for one in found if one.kind == "settlement" and one.key is not None),
        frozenset(one.queue for one in found if one.queue is not None),
    )


def places_of_backlog(scope: Scope) -> list[str]:
    """Backlog queues, and behind them their dead-letter queues."""
    queues = sorted(scope.backlog)
    return [*queues, *[queue + _DEAD for queue in queues]]


def _topology(settings: AuditSettings, scope: Scope, tell: Tell) -> Topology:
    access = settings.primary_admin
    if access is None:
        return supposed(scope.entities, scope.settled)
    tell("asking the primary for its entities")

    async def ask() -> Topology:
        options = access.options()
        async with NamespaceManager.from_connection_string(access.connection_string, **options) as manager:
            return described(await read_namespace(manager, scope.entities), scope.entities)

    return asyncio.run(ask())


def _look_at(spark: SparkSession, access: Access | None, places: Sequence[str], what: str, tell: Tell) -> Look:
    if access is None:
        return Look(nothing(spark))
    contents = nothing(spark)
    for is_dead, name in ((False, what), (True, f"dead letters of {what}")):
        some = [place for place in places if ("/$" in place) is is_dead]
        tell(f"looking into {name}: {len(some)} places")
        contents = contents.unionByName(look(spark, access, some))
    failed = contents.where("error is not null").select("place", "error").collect()
    return Look(contents, dt.datetime.now(dt.UTC), {one.place: one.error for one in failed})
