"""The lines of the metrics page for entities: the figures of each entity, by family.

Owns the families with the label `entity`. There are up to 10,000 entities with 16 lines each: lines are rendered for
groups of entities, and rendered again only if a figure in the group has changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.server.api.entity_status import kind_of, max_size_bytes
from twinbus.server.api.metrics_format import Family, escape
from twinbus.server.api.time_slices import TimeSlice

if TYPE_CHECKING:
    from collections.abc import Iterator

    from twinbus.broker.namespace import Queue, Subscription, Topic
    from twinbus.server.api.process_calls import EntityFigures

INFO: Final = Family("twinbus_entity_info", "gauge", "An entity with its kind and status; always 1.")
MESSAGES: Final = Family("twinbus_messages", "gauge", "Messages by state; active messages include locked ones.")
ENQUEUED: Final = Family(
    "twinbus_enqueued_messages_total", "counter", "Messages stored since the entity was created; survives restarts."
)
REMOVED: Final = Family(
    "twinbus_removed_messages_total",
    "counter",
    "Messages that have left the entity since it was created: completed, expired, deleted or dead-lettered.",
)
DEAD_LETTERED: Final = Family(
    "twinbus_dead_lettered_messages_total", "counter", "Messages dead-lettered since the entity was created."
)
SIZE: Final = Family("twinbus_size_bytes", "gauge", "Size of all messages and session states.")
MAX_SIZE: Final = Family("twinbus_max_size_bytes", "gauge", "Size at which the entity is full.")
OLDEST: Final = Family(
    "twinbus_oldest_active_message_timestamp_seconds", "gauge", "Enqueued time of the oldest active message."
)
AVAILABLE: Final = Family("twinbus_entity_available", "gauge", "1 if all stores of the entity work.")
SENDERS: Final = Family("twinbus_senders", "gauge", "Links on which clients send.")
RECEIVERS: Final = Family("twinbus_receivers", "gauge", "Links on which clients receive.")
FAMILIES: Final = (
    INFO,
    MESSAGES,
    ENQUEUED,
    REMOVED,
    DEAD_LETTERED,
    SIZE,
    MAX_SIZE,
    OLDEST,
    AVAILABLE,
    SENDERS,
    RECEIVERS,
)


GROUP_SIZE: Final = 16
"""The usual number of entities in a group: all of them are rendered again if a figure of one has changed."""
MAX_GROUP_SIZE: Final = 4 * GROUP_SIZE


class _Group:
    """A group of entities: their positions, their figures at the last scrape, and the lines for each family."""

    __slots__ = ("end", "figures", "lines", "start", "versions")

    def __init__(self, start: int, end: int, versions: list[tuple[int, int, str, int]]) -> None:
        self.start = start
        self.end = end
        self.versions = versions
        """Everything of the entities that changes the lines, besides figures."""
        self.figures: list[EntityFigures] | None = None
        self.lines: list[bytes] = []


class EntityMetrics:
    """The lines for all entities."""

    def __init__(self) -> None:
        """Create lines for no entity."""
        self._version = -1
        self._groups: list[_Group] = []

    async def render(
        self, entities: list[Queue | Topic | Subscription], figures: list[EntityFigures], version: int
    ) -> list[bytes]:
        """Return the text of each family in pieces, in order. `version` is that of the index with these entities."""
        time_slice = TimeSlice()
        if version != self._version:
            self._groups = await self._regroup(entities, time_slice)
            self._version = version
        for group in self._groups:
            collected = figures[group.start : group.end]
            if group.figures != collected:
                group.lines = _render_group(entities[group.start : group.end], collected)
                group.figures = collected
            await time_slice.pause_if_over()
        pieces: list[bytes] = []
        for number, family in enumerate(FAMILIES):
            lines = [group.lines[number] for group in self._groups]
            if any(lines):
                pieces += [family.head.encode(), *lines]
        return pieces

    async def _regroup(self, entities: list[Queue | Topic | Subscription], time_slice: TimeSlice) -> list[_Group]:
        """Return groups of these entities, with the lines of those groups that have not changed."""
        known = {group.versions[0][0]: group for group in self._groups}
        groups: list[_Group] = []
        for start, end in _group_bounds(entities):
            versions = [_version_of(entity) for entity in entities[start:end]]
            group, before = _Group(start, end, versions), known.get(versions[0][0])
            if before is not None and before.versions == versions:
                group.figures, group.lines = before.figures, before.lines
            groups.append(group)
            await time_slice.pause_if_over()
        return groups


def _version_of(entity: Queue | Topic | Subscription) -> tuple[int, int, str, int]:
    # A subscription has the size of its topic, which changes without an update of the subscription.
    return entity.entity_id, entity.updated_ms, entity.status, max_size_bytes(entity)


def _group_bounds(entities: list[Queue | Topic | Subscription]) -> Iterator[tuple[int, int]]:
    """Yield the first position of each group, and the position after it.

    The bounds depend on the ids, so that a new or deleted entity changes one group, and not all groups after it.
    """
    start = 0
    for position, entity in enumerate(entities):
        if position > start and (entity.entity_id % GROUP_SIZE == 0 or position - start == MAX_GROUP_SIZE):
            yield start, position
            start = position
    if entities:
        yield start, len(entities)


def _render_group(entities: list[Queue | Topic | Subscription], figures: list[EntityFigures]) -> list[bytes]:
    rendered = [_render_entity(entity, collected) for entity, collected in zip(entities, figures, strict=True)]
    return ["".join(lines).encode() for lines in zip(*rendered, strict=True)]


def _render_entity(entity: Queue | Topic | Subscription, collected: EntityFigures) -> tuple[str, ...]:
    """Return the lines of an entity for each family. Totals that are not complete are left out: they must not fall."""
    name, kind = f'entity="{escape(entity.path)}"', kind_of(entity)
    partitioned = str(entity.is_partitioned).lower()
    info = f'{INFO.name}{{{name},kind="{kind}",status="{entity.status}",partitioned="{partitioned}"}} 1\n'
    figures = collected.figures
    is_available = figures is not None and figures.is_available and collected.is_complete
    available = f"{AVAILABLE.name}{{{name}}} {int(is_available)}\n"
    max_size = f"{MAX_SIZE.name}{{{name}}} {max_size_bytes(entity)}\n"
    senders = f"{SENDERS.name}{{{name}}} {collected.senders}\n" if kind != "subscription" else ""
    receivers = f"{RECEIVERS.name}{{{name}}} {collected.receivers}\n" if kind != "topic" else ""
    if figures is None or not collected.is_complete:
        return (info, "", "", "", "", "", max_size, "", available, senders, receivers)
    states = {"scheduled": figures.scheduled}
    if kind != "topic":
        states |= {
            "active": figures.active,
            "deferred": figures.deferred,
            "dead-lettered": figures.dead_lettered,
            "locked": figures.locked,
        }
    if figures.transfer or figures.transfer_dead_lettered:
        states |= {"transfer": figures.transfer, "transfer-dead-lettered": figures.transfer_dead_lettered}
    messages = "".join([f'{MESSAGES.name}{{{name},state="{state}"}} {count}\n' for state, count in states.items()])
    oldest = f"{OLDEST.name}{{{name}}} {collected.oldest_ms / 1000}\n" if collected.oldest_ms is not None else ""
    return (
        info,
        messages,
        f"{ENQUEUED.name}{{{name}}} {figures.enqueued}\n",
        f"{REMOVED.name}{{{name}}} {figures.removed}\n",
        f"{DEAD_LETTERED.name}{{{name}}} {figures.dead_lettered_total}\n" if kind != "topic" else "",
        f"{SIZE.name}{{{name}}} {figures.size_bytes}\n",
        max_size,
        oldest,
        available,
        senders,
        receivers,
    )
