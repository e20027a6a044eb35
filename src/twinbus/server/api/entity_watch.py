"""The figures of each entity in this process, with those found last.

Owns the detection of changes. A namespace may have 10,000 entities, most of which do not change between two requests:
an unchanged entity keeps its `EntityFigures` object, so that whoever made text of it can keep the text. Nothing is
added to the path of a message: an entity is compared when it is asked for, and only with objects that a commit or a
link replaces anyway.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.broker.namespace import Topic
from twinbus.broker.ports.inspection import add_figures
from twinbus.model.path import SubQueue, canonical_key
from twinbus.server.amqp.outgoing_link import OutgoingLink
from twinbus.server.api.process_calls import EntityFigures
from twinbus.server.api.usage_rates import NO_RATES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from twinbus.broker.namespace import Queue, Subscription
    from twinbus.broker.ports.inspection import PartFigures, PartInspection
    from twinbus.server.api.oldest_messages import OldestMessages

MIN_KEPT_WATCHES: Final = 100


class EntityWatch:
    """One entity, with the figures that were found last."""

    __slots__ = (
        "_accessed_ms",
        "_described",
        "_dispatchers",
        "_figures",
        "_oldest_ms",
        "_only_part",
        "_path_key",
        "_rates",
        "_receivers",
        "_senders",
        "entity",
        "is_active",
        "parts",
    )

    def __init__(self, entity: Queue | Topic | Subscription) -> None:
        """Create a watch without figures."""
        self.entity = entity
        inspections = [part.inspect() for part in entity.parts]
        self.parts: list[PartInspection] = [one for one in inspections if one is not None]
        """The inspections of those parts that this process owns."""
        self._only_part = self.parts[0] if len(self.parts) == 1 else None
        self.is_active = False
        """Whether these parts have active messages."""
        self._dispatchers = [] if isinstance(entity, Topic) else [part.main.dispatcher for part in entity.parts]
        self._path_key = canonical_key(entity.path)
        self._figures: PartFigures | None = None
        self._oldest_ms: int | None = None
        self._senders = self._receivers = self._accessed_ms = 0
        self._rates = NO_RATES
        self._described: EntityFigures | None = None

    def read(
        self, rates: Mapping[str, tuple[float, float, float]], oldest: OldestMessages | None = None
    ) -> EntityFigures:
        """Return the figures: the same object as before, unless a figure has changed.

        `rates` are by canonical path. The enqueued time of the oldest message is taken from `oldest`, if given.
        """
        entity, figures = self.entity, self._figures
        if self._only_part is not None:
            figures = self._only_part.figures()
        elif self.parts:
            added = add_figures([part.figures() for part in self.parts])
            figures = added if added != figures else figures
        is_same = self._described is not None
        if figures is not self._figures:
            self._figures, self.is_active, is_same = figures, figures is not None and figures.active > 0, False
        senders = sum([link.is_sender for link in entity.links]) if entity.links else 0
        receivers = 0
        for dispatcher in self._dispatchers:
            if dispatcher.consumers:
                receivers = self._count_receivers()
                break
        own_rates = rates.get(self._path_key, NO_RATES) if rates else NO_RATES
        oldest_ms = self._oldest_ms if self.is_active else None
        if oldest is not None and self.is_active:
            known = [oldest.known(part) for part in self.parts]
            oldest_ms = min([one for one in known if one is not None], default=None)
        if (
            is_same
            and self._described is not None
            and senders == self._senders
            and receivers == self._receivers
            and entity.accessed_ms == self._accessed_ms
            and oldest_ms == self._oldest_ms
            and own_rates == self._rates
        ):
            return self._described
        self._senders, self._receivers, self._accessed_ms = senders, receivers, entity.accessed_ms
        self._oldest_ms, self._rates = oldest_ms, own_rates
        self._described = described = EntityFigures(
            entity.entity_id, figures, oldest_ms, senders, receivers, entity.accessed_ms, own_rates
        )
        return described

    def _count_receivers(self) -> int:
        return 0 if isinstance(self.entity, Topic) else len(own_receivers(self.entity, SubQueue.MAIN))


class EntityWatches:
    """The watches of a process's entities."""

    def __init__(self) -> None:
        """Create an empty table."""
        self._by_id: dict[int, EntityWatch] = {}

    def of(self, entity: Queue | Topic | Subscription) -> EntityWatch:
        """Return the watch of an entity."""
        watch = self._by_id.get(entity.entity_id)
        if watch is None or watch.entity is not entity:
            watch = self._by_id[entity.entity_id] = EntityWatch(entity)
        return watch

    def forget_deleted(self, entity_count: int) -> None:
        """Drop everything if most of it belongs to deleted entities."""
        if len(self._by_id) > 2 * entity_count + MIN_KEPT_WATCHES:
            self._by_id.clear()


def own_receivers(entity: Queue | Subscription, sub_queue: SubQueue) -> set[OutgoingLink]:
    """Return the links of this process's clients that receive from an entity, whoever owns its fragments."""
    fragments = [part.main for part in entity.parts] if sub_queue is SubQueue.MAIN else entity.fragments_of(sub_queue)
    receivers: set[OutgoingLink] = set()
    for fragment in fragments:
        consumers = fragment.dispatcher.consumers
        if consumers:
            receivers.update(consumer for consumer in consumers if isinstance(consumer, OutgoingLink))
    return receivers
