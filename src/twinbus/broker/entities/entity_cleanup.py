"""Cleanup: removing the records of a deleted entity from a store.

Owns: the order of removal. The records of an entity are one range of keys, removed by one range deletion per table. The
messages of a subscription are read first, in batches: they may refer to shared bodies, and a reference that is not
released would keep a body in the store forever. A cleanup may be interrupted at any point and started again.
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

    For a subscription whose topic still exists, `shared_bodies` has the number and the shared bodies of each fragment
    of the topic in this store. Otherwise, `shared_bodies` is empty.
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
    """Remove the messages of a subscription's fragment, batch by batch, and release their shared bodies."""
    number, shared_bodies = all_shared_bodies[0]
    prefix = area_prefix(entity_id, number, Area.MAIN)

    def on_rows(rows: list[Row] | StoreError) -> None:
        if isinstance(rows, StoreError):
            on_done(StoreUnavailable(str(rows)))
        elif not rows:
            delete_entity_records(commit_log, entity_id, all_shared_bodies[1:], on_done)
        else:
            for _, record in rows:
                body_number = shared_body_of(record)
                if body_number:
                    shared_bodies.release(body_number)
            commit_log.batch.delete_range(rows[0][0], rows[-1][0] + b"\0")
            commit_log.add_without_participant(on_removed)

    def on_removed(error: ServiceBusError | None) -> None:
        if error is not None:
            on_done(error)
        else:
            shared_bodies.resume()
            _delete_subscription_messages(commit_log, entity_id, all_shared_bodies, on_done)

    commit_log.scan(
        prefix + ACTIVE, kind_end(prefix, ACTIVE), on_rows, limit=SCAN_BATCH_SIZE, max_bytes=SCAN_BATCH_SIZE * 65_536
    )
