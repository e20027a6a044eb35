"""Entities with their figures, and their locks and sessions with the holders.

Owns the conversion of figures to resources of the API, and the pages of entities, locks and sessions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from twinbus.broker.namespace import Queue, Topic
from twinbus.broker.ports.inspection import PartFigures
from twinbus.broker.ports.peer_protocol import SUB_QUEUES
from twinbus.model.description import partitioned_size_mb
from twinbus.model.status import (
    EntityDetails,
    EntityStatus,
    FragmentStatus,
    LockPage,
    LockStatus,
    MessageCounts,
    MessageRates,
    MessageTotals,
    SessionPage,
    SessionStatus,
)
from twinbus.model.times import datetime_of
from twinbus.server.api import process_calls as calls
from twinbus.server.api.process_calls import EntityFigures, Holders
from twinbus.server.api.time_slices import in_slices

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twinbus.broker.namespace import Namespace, Subscription
    from twinbus.model.path import SubQueue
    from twinbus.model.status import EntityKind
    from twinbus.server.api.collector import Collector
    from twinbus.server.api.entity_index import EntityIndex

MEGABYTE: Final = 1_048_576
NO_FIGURES: Final = PartFigures()
_MAX_EPOCH_MS: Final = 253_402_300_799_000
"""The last time that a datetime can represent."""


class EncodedPage(msgspec.Struct, frozen=True):
    """A page of entities, the entities as JSON: see `model.status.EntityPage`."""

    entities: list[msgspec.Raw]
    next: str | None


class _EncodedEntity:
    """An entity as JSON, with everything that the JSON depends on."""

    __slots__ = ("accessed_ms", "entity", "figures", "json", "max_size_bytes", "status", "updated_ms")

    def __init__(self, entity: Queue | Topic | Subscription, figures: EntityFigures, json: msgspec.Raw) -> None:
        self.entity = entity
        self.figures = figures
        self.json = json
        self.accessed_ms = entity.accessed_ms
        self.updated_ms = entity.updated_ms
        self.status = entity.status
        self.max_size_bytes = max_size_bytes(entity)


class EntityReader:
    """Reads entities with their figures."""

    def __init__(self, namespace: Namespace, index: EntityIndex, collector: Collector) -> None:
        """Create a reader."""
        self._namespace = namespace
        self._index = index
        self._collector = collector
        self._encoded: dict[int, _EncodedEntity] = {}
        """Entities as JSON: most entities do not change between two pages."""

    async def page(
        self,
        may_read: Callable[[str], bool] | None,
        scopes: Sequence[str],
        *,
        prefix: str,
        kind: EntityKind | None,
        after: str,
        top: int,
    ) -> EncodedPage:
        """Return a page of the entities that the caller may read, all of which are within `scopes`.

        `may_read` is None if the caller may read all of them.
        """
        found: list[Queue | Topic | Subscription] = []
        async for part in in_slices(self._index.iterate(prefix, after, scopes)):  # few may match `kind` or the scopes
            if kind is not None:
                part = [entity for entity in part if kind_of(entity) == kind]  # noqa: PLW2901  # the rest of the part
            found += part if may_read is None else [entity for entity in part if may_read(entity.path)]
            if len(found) > top:
                del found[top + 1 :]
                break
        entities = found[:top]
        figures = await self._collector.figures(entities)
        encoded: list[msgspec.Raw] = []
        async for chunk in in_slices(zip(entities, figures, strict=True)):
            encoded += [self._encode(entity, collected) for entity, collected in chunk]
        return EncodedPage(entities=encoded, next=entities[-1].path if len(found) > top else None)

    def _encode(self, entity: Queue | Topic | Subscription, collected: EntityFigures) -> msgspec.Raw:
        """Return an entity as JSON: as before, if nothing has changed."""
        known = self._encoded.get(entity.entity_id)
        if (
            known is not None
            and (known.figures is collected or known.figures == collected)
            and collected.oldest_ms is None  # otherwise the age grows
            and known.accessed_ms == entity.accessed_ms
            and known.updated_ms == entity.updated_ms
            and known.status == entity.status
            and known.max_size_bytes == max_size_bytes(entity)  # a subscription has the size of its topic
            and known.entity is entity
        ):
            return known.json
        now_ms = self._namespace.clock.wall_ms()
        content = EntityStatus(**_fields_of(entity, collected, now_ms))  # type: ignore[arg-type]  # fields by name
        encoded = msgspec.Raw(msgspec.json.encode(content))
        if len(self._encoded) > 2 * len(self._namespace.entities):
            self._encoded.clear()  # most of it belongs to deleted entities
        self._encoded[entity.entity_id] = _EncodedEntity(entity, collected, encoded)
        return encoded

    async def details(self, path: str) -> EntityDetails:
        """Return an entity with its fragments. Raise EntityNotFound."""
        entity = self._namespace.find(path)
        (collected,) = await self._collector.figures([entity])
        answers = await self._collector.call_all(calls.GetFragments(entity.entity_id))
        by_number: dict[int, PartFigures] = {one.number: one.figures for answer in answers.values() for one in answer}
        fragments = [
            FragmentStatus(
                number=part.number,
                store=part.store,
                worker=self._collector.peers.owner_of(part.store),
                is_available=part.number in by_number and by_number[part.number].is_available,
                counts=make_counts(by_number.get(part.number, NO_FIGURES)),
                totals=make_totals(by_number.get(part.number, NO_FIGURES)),
                size_bytes=by_number.get(part.number, NO_FIGURES).size_bytes,
            )
            for part in entity.parts
        ]
        description = entity.description
        return EntityDetails(
            **_fields_of(entity, collected, self._namespace.clock.wall_ms()),  # type: ignore[arg-type]  # by name
            requires_session=getattr(description, "requires_session", False),
            forward_to=getattr(description, "forward_to", None),
            fragments=fragments,
        )

    async def locks(self, path: str, sub_queue: SubQueue, *, after: int, top: int) -> LockPage:
        """Return a page of locks. Raise EntityNotFound, or NotAllowed for a topic."""
        entity_id = self._namespace.find_receivable(path).entity_id
        number = SUB_QUEUES.index(sub_queue)
        answers = await self._collector.call_all(calls.GetLocks(entity_id, number, after, top + 1))
        found = [one for answer in answers.values() for one in answer]
        found.sort(key=lambda one: one.lock.sequence_number)
        page: list[calls.FragmentLock] = found[:top]
        holders = await self._find_holders(entity_id, number, [one.lock.lock_number for one in page], [])
        locks = [
            LockStatus(
                sequence_number=one.lock.sequence_number,
                fragment=one.fragment,
                session_id=one.lock.session_id.decode(errors="replace") if one.lock.session_id is not None else None,
                is_deferred=one.lock.is_deferred,
                locked_since=datetime_of(one.lock.until_ms - one.lock.duration_ms),
                locked_until=datetime_of(one.lock.until_ms),
                holder=holders.by_lock.get(one.lock.lock_number),
            )
            for one in page
        ]
        return LockPage(locks=locks, next=str(page[-1].lock.sequence_number) if len(found) > top else None)

    async def sessions(self, path: str, *, after: str, top: int) -> SessionPage:
        """Return a page of locked sessions. Raise EntityNotFound, or NotAllowed for a topic."""
        entity_id = self._namespace.find_receivable(path).entity_id
        answers = await self._collector.call_all(calls.GetSessions(entity_id, after.encode(), top + 1))
        found = [one for answer in answers.values() for one in answer]
        found.sort(key=lambda one: one.session.session_id)
        page: list[calls.FragmentSession] = found[:top]
        holders = await self._find_holders(entity_id, 0, [], [one.session.session_id for one in page])
        sessions = [
            SessionStatus(
                session_id=one.session.session_id.decode(errors="replace"),
                fragment=one.fragment,
                locked_until=datetime_of(one.session.until_ms),
                locked_messages=one.session.locked_messages,
                holder=holders.by_session.get(one.session.session_id),
            )
            for one in page
        ]
        return SessionPage(sessions=sessions, next=sessions[-1].session_id if len(found) > top else None)

    async def _find_holders(self, entity_id: int, sub_queue: int, locks: list[int], sessions: list[bytes]) -> Holders:
        if not locks and not sessions:
            return Holders({}, {})
        answers = await self._collector.call_all(calls.FindHolders(entity_id, sub_queue, locks, sessions))
        return Holders(
            {number: holder for answer in answers.values() for number, holder in answer.by_lock.items()},
            {session: holder for answer in answers.values() for session, holder in answer.by_session.items()},
        )


def kind_of(entity: Queue | Topic | Subscription) -> EntityKind:
    """Return the kind of an entity."""
    if isinstance(entity, Queue):
        return "queue"
    return "topic" if isinstance(entity, Topic) else "subscription"


def max_size_bytes(entity: Queue | Topic | Subscription) -> int:
    """Return the size at which an entity is full: for a subscription, the size of its topic."""
    if isinstance(entity, Queue | Topic):
        size_mb = entity.description.max_size_mb
        return (partitioned_size_mb(size_mb) if entity.is_partitioned else size_mb) * MEGABYTE
    return max_size_bytes(entity.topic)


def make_counts(figures: PartFigures) -> MessageCounts:
    """Return the messages by state."""
    return MessageCounts(
        active=figures.active,
        scheduled=figures.scheduled,
        deferred=figures.deferred,
        dead_lettered=figures.dead_lettered,
        transfer=figures.transfer,
        transfer_dead_lettered=figures.transfer_dead_lettered,
        locked=figures.locked,
    )


def make_totals(figures: PartFigures) -> MessageTotals:
    """Return the messages since the creation of the entity."""
    return MessageTotals(enqueued=figures.enqueued, removed=figures.removed, dead_lettered=figures.dead_lettered_total)


def make_rates(rates: tuple[float, float, float]) -> MessageRates:
    """Return rates, rounded for people."""
    sent, received, settled = rates
    return MessageRates(sent=round(sent, 3), received=round(received, 3), settled=round(settled, 3))


def _fields_of(entity: Queue | Topic | Subscription, collected: EntityFigures, now_ms: int) -> dict[str, object]:
    figures = collected.figures or NO_FIGURES
    oldest_ms = collected.oldest_ms
    return {
        "path": entity.path,
        "kind": kind_of(entity),
        "status": entity.status,
        "is_partitioned": entity.is_partitioned,
        "is_available": collected.figures is not None and collected.is_complete and figures.is_available,
        "counts": make_counts(figures),
        "totals": make_totals(figures),
        "size_bytes": figures.size_bytes,
        "max_size_bytes": max_size_bytes(entity),
        "rates": make_rates(collected.rates),
        "oldest_active": datetime_of(min(oldest_ms, _MAX_EPOCH_MS)) if oldest_ms is not None else None,
        "oldest_active_age_s": max(0.0, (now_ms - oldest_ms) / 1000) if oldest_ms is not None else None,
        "senders": collected.senders,
        "receivers": collected.receivers,
        "created": datetime_of(entity.created_ms),
        "updated": datetime_of(entity.updated_ms),
        "accessed": datetime_of(max(collected.accessed_ms, entity.accessed_ms)),
    }
