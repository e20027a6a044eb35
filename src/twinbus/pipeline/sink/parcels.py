"""Messages put together for sending.

Owns: what goes into one batch: messages of one entity and one key, few and small enough for any namespace, and for a
backlog queue should they be parked. A namespace takes a batch as a whole only if all of it leads to one place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.model.partition_key import chosen_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from twinbus.client import BrokeredMessage
    from twinbus.pipeline.sink.messages import Outgoing

MOST_MESSAGES: Final = 100
MOST_BYTES: Final = 128 * 1024
"""Half of what a namespace of the Standard tier, and a backlog queue, takes at once."""
MOST_OPEN: Final = 256
"""Batches that are being filled at a time."""


class Parcel:
    """One batch."""

    __slots__ = ("entity", "keys", "messages", "session_id", "size")

    def __init__(self, entity: str, session_id: str | None) -> None:
        """Nothing in it yet."""
        self.entity = entity
        self.session_id = session_id
        """Of all its messages."""
        self.messages: list[BrokeredMessage] = []
        self.keys: dict[object, str] = {}
        """By message id: what identifies the row, where the id was derived from that."""
        self.size = 0


def parcels_of(outgoing: Iterable[Outgoing]) -> Iterator[Parcel]:
    """All of them, each batch as soon as it is full; what is left at the end."""
    filling: dict[tuple[str, str | None], Parcel] = {}
    for entity, message, size, row_key in outgoing:
        session_id = message.session_id
        key = (entity, chosen_key(session_id, message.partition_key))
        parcel = filling.get(key)
        if parcel is not None and parcel.size + size > MOST_BYTES:
            yield filling.pop(key)
            parcel = None
        if parcel is None:
            if len(filling) >= MOST_OPEN:
                yield filling.pop(next(iter(filling)))
            parcel = filling[key] = Parcel(entity, session_id)
        parcel.messages.append(message)
        if row_key is not None:
            parcel.keys[message.message_id] = row_key
        parcel.size += size
        if len(parcel.messages) >= MOST_MESSAGES:
            yield filling.pop(key)
    yield from filling.values()
