"""Looking up many records of a fragment by their keys, a bounded number in a turn.

Owns: that whoever asks is answered once, also if the store fails or is silent on the way. What is done with each record
is for who asks; none is kept here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.broker.ports.removal import READ_TOGETHER as AT_ONCE
from twinbus.model.errors import ServiceBusError, StoreUnavailable
from twinbus.store.protocol import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twinbus.broker.fragment import Fragment
    from twinbus.broker.ports.callbacks import Answered


def look_up(
    fragment: Fragment,
    keys: Sequence[bytes],
    visit: Callable[[int, bytes | None], None],
    done: Answered,
    start: int = 0,
) -> None:
    """Show each record, or that there is none, to `visit`, with the place of its key; then tell `done`.

    StoreUnavailable is told if the store failed meanwhile: then not all were shown, and what was is void.
    """
    if start >= len(keys):
        done(None)
        return
    life, end = fragment.life, start + AT_ONCE

    def told(error: ServiceBusError | None) -> None:
        if error is not None:
            done(error)
        else:
            look_up(fragment, keys, visit, done, end)

    promise = fragment.journal.promise(told)

    def read(values: list[bytes | None] | StoreError) -> None:
        if not promise.is_open:
            return
        if life != fragment.life or isinstance(values, StoreError):
            promise.give(StoreUnavailable("the store failed before all messages were read"))
            return
        for place, value in enumerate(values, start):
            visit(place, value)
        promise.give(None)

    fragment.read(list(keys[start:end]), read)
