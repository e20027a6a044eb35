"""Burial: what a deleted entity leaves in a store is removed.

Owns: the order. All of an entity is one range of keys, and goes at the cost of one. Only a subscription is looked
through before: its messages may have bodies that other subscriptions need, and that one of them would else be thought
to need for ever. It may be cut off at any time, and begin again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.broker.message_record import shared_body_of
from twinbus.broker.store_keys import ACTIVE, Area, area_prefix, entity_key_range, kind_end
from twinbus.model.errors import StoreUnavailable
from twinbus.store.protocol import StoreError, Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinbus.broker.commit_log import CommitLog
    from twinbus.broker.fragment.shared_bodies import SharedBodies
    from twinbus.broker.ports.callbacks import OnDone
    from twinbus.model.errors import ServiceBusError
    from twinbus.store.protocol import Row

SCAN_BATCH_SIZE: Final = 500


def delete_entity_records(
    commit_log: CommitLog, entity_id: int, shared_bodies: Sequence[tuple[int, SharedBodies]], on_done: OnDone
) -> None:
    """Remove all records of a deleted entity from a store.

    `bodies` are those of the topic that goes on without it, with the numbers of their fragments.
    """
    commit_log.check_available()
    if shared_bodies:
        _delete_subscription_messages(commit_log, entity_id, shared_bodies, on_done)
        return
    start, end = entity_key_range(entity_id)
    for table in Table:
        commit_log.batch.delete_range(start, end, table)
    commit_log.add_without_participant(on_done)


def _delete_subscription_messages(
    commit_log: CommitLog, entity_id: int, all_shared_bodies: Sequence[tuple[int, SharedBodies]], on_done: OnDone
) -> None:
    """Remove the first messages of a subscription's fragment, and what they needed; then the next."""
    number, bodies = all_shared_bodies[0]
    prefix = area_prefix(entity_id, number, Area.MAIN)

    def found(rows: list[Row] | StoreError) -> None:
        if isinstance(rows, StoreError):
            on_done(StoreUnavailable(str(rows)))
        elif not rows:
            delete_entity_records(commit_log, entity_id, all_shared_bodies[1:], on_done)
        else:
            for _, record in rows:
                shared = shared_body_of(record)
                if shared:
                    bodies.release(shared)
            commit_log.batch.delete_range(rows[0][0], rows[-1][0] + b"\0")
            commit_log.add_without_participant(removed)

    def removed(error: ServiceBusError | None) -> None:
        if error is not None:
            on_done(error)
        else:
            bodies.resume()
            _delete_subscription_messages(commit_log, entity_id, all_shared_bodies, on_done)

    commit_log.scan(
        prefix + ACTIVE, kind_end(prefix, ACTIVE), found, limit=SCAN_BATCH_SIZE, max_bytes=SCAN_BATCH_SIZE * 65_536
    )
