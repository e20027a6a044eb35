"""Looking up many records in a fragment by their keys, a bounded number per turn.

Owns: the guarantee that the caller gets exactly one final callback, even if the store fails or does not respond.
Records are passed to the caller one by one, and not kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.broker.ports.fragment import READ_BATCH_SIZE as AT_ONCE
from twinbus.model.errors import ServiceBusError, StoreUnavailable
from twinbus.store.protocol import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twinbus.broker.fragment.fragment import Fragment
    from twinbus.broker.ports.callbacks import OnDone


def look_up_records(
    fragment: Fragment,
    keys: Sequence[bytes],
    on_record: Callable[[int, bytes | None], None],
    on_done: OnDone,
    start: int = 0,
) -> None:
    """Call `on_record` with the index of each key and its record, or None; then call `on_done`.

    If the store fails, `on_done` gets StoreUnavailable. In that case, not all records were read, and locks on the
    messages are lost.
    """
    if start >= len(keys):
        on_done(None)
        return
    incarnation, end = fragment.incarnation, start + AT_ONCE

    def on_batch_done(error: ServiceBusError | None) -> None:
        if error is not None:
            on_done(error)
        else:
            look_up_records(fragment, keys, on_record, on_done, end)

    watched_read = fragment.commit_log.watch_read(on_batch_done)

    def on_read(values: list[bytes | None] | StoreError) -> None:
        if not watched_read.is_pending:
            return
        if incarnation != fragment.incarnation or isinstance(values, StoreError):
            watched_read.finish(StoreUnavailable("the store failed before all messages were read"))
            return
        for index, value in enumerate(values, start):
            on_record(index, value)
        watched_read.finish(None)

    fragment.read(list(keys[start:end]), on_read)
