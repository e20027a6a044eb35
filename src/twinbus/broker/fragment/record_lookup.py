"""Looking up many records of a fragment by their keys, a bounded number in a turn.

Owns: that whoever asks is answered once, also if the store fails or is silent on the way. What is done with each record
is for who asks; none is kept here.
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
    """Show each record, or that there is none, to `visit`, with the place of its key; then tell `done`.

    StoreUnavailable is told if the store failed meanwhile: then not all were shown, and what was is void.
    """
    if start >= len(keys):
        on_done(None)
        return
    life, end = fragment.incarnation, start + AT_ONCE

    def told(error: ServiceBusError | None) -> None:
        if error is not None:
            on_done(error)
        else:
            look_up_records(fragment, keys, on_record, on_done, end)

    promise = fragment.commit_log.watch_read(told)

    def read(values: list[bytes | None] | StoreError) -> None:
        if not promise.is_pending:
            return
        if life != fragment.incarnation or isinstance(values, StoreError):
            promise.finish(StoreUnavailable("the store failed before all messages were read"))
            return
        for place, value in enumerate(values, start):
            on_record(place, value)
        promise.finish(None)

    fragment.read(list(keys[start:end]), read)
