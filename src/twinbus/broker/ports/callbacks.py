"""How the broker answers: by callbacks, later than the call or during it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from twinbus.model.errors import ServiceBusError

OnDone: TypeAlias = Callable[[ServiceBusError | None], None]
"""Is called when an operation is on disk, or with the reason why it failed."""


def when_all(count: int, on_done: OnDone) -> OnDone:
    """Return a callback for `count` operations; `answer` is called after the last, with the first error, if any."""
    left = count
    first: ServiceBusError | None = None

    def told(error: ServiceBusError | None) -> None:
        nonlocal left, first
        left -= 1
        if first is not None and error is not None and error.may_have_happened:
            first = first.copy_with(may_have_happened=True)
        first = first or error
        if not left:
            on_done(first)

    return told
