"""The parts of an entity that this process stores, as tests look into them."""

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
    """Return one part of an entity: by default the first, which is the only one of a plain entity."""
    part = entity.parts[number]
    assert isinstance(part, ReceivablePart | TopicPart)
    return part
