"""Access to the parts of an entity that are stored in the test's process."""

from __future__ import annotations

from typing import TYPE_CHECKING, overload

from twinbus.broker.entities.local_parts import ReceivablePart, TopicPart

if TYPE_CHECKING:
    from twinbus.broker.entities.entity import Entity, ReceivableEntity
    from twinbus.broker.entities.topic import Topic


@overload
def local_part(entity: ReceivableEntity, number: int = 0) -> ReceivablePart: ...
@overload
def local_part(entity: Topic, number: int = 0) -> TopicPart: ...
def local_part(entity: Entity, number: int = 0) -> ReceivablePart | TopicPart:
    """Return a part of an entity (default: the first, which is the only part of a plain entity)."""
    part = entity.parts[number]
    assert isinstance(part, ReceivablePart | TopicPart)
    return part
