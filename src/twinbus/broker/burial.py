"""Burial: what a deleted entity leaves in a store is removed.

Owns: the order. All of an entity is one range of keys, and goes at the cost of one. Only a subscription is looked
through before: its messages may have bodies that other subscriptions need, and that one of them would else be thought
to need for ever. It may be cut off at any time, and begin again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.broker.keys import ACTIVE, Area, after_kind, area_prefix, entity_range
from twinbus.broker.record import shared_of
from twinbus.model.errors import StoreUnavailable
from twinbus.store.protocol import StoreError, Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinbus.broker.bodies import Bodies
    from twinbus.broker.journal import Journal
    from twinbus.broker.ports.callbacks import Answered
    from twinbus.model.errors import ServiceBusError
    from twinbus.store.protocol import Row

AT_ONCE: Final = 500


def bury(journal: Journal, entity_id: int, bodies: Sequence[tuple[int, Bodies]], answer: Answered) -> None:
    """Remove all records of a deleted entity from a store.

    `bodies` are those of the topic that goes on without it, with the numbers of their fragments.
    """
    journal.check_works()
    if bodies:
        _release(journal, entity_id, bodies, answer)
        return
    start, end = entity_range(entity_id)
    for table in Table:
        journal.batch.delete_range(start, end, table)
    journal.add_loose(answer)


def _release(journal: Journal, entity_id: int, all_bodies: Sequence[tuple[int, Bodies]], answer: Answered) -> None:
    """Remove the first messages of a subscription's fragment, and what they needed; then the next."""
    number, bodies = all_bodies[0]
    prefix = area_prefix(entity_id, number, Area.MAIN)

    def found(rows: list[Row] | StoreError) -> None:
        if isinstance(rows, StoreError):
            answer(StoreUnavailable(str(rows)))
        elif not rows:
            bury(journal, entity_id, all_bodies[1:], answer)
        else:
            for _, record in rows:
                shared = shared_of(record)
                if shared:
                    bodies.release(shared)
            journal.batch.delete_range(rows[0][0], rows[-1][0] + b"\0")
            journal.add_loose(removed)

    def removed(error: ServiceBusError | None) -> None:
        if error is not None:
            answer(error)
        else:
            bodies.settled_down()
            _release(journal, entity_id, all_bodies, answer)

    journal.scan(prefix + ACTIVE, after_kind(prefix, ACTIVE), found, limit=AT_ONCE, max_bytes=AT_ONCE * 65_536)
