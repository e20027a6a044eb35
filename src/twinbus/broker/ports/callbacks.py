"""Callbacks by which the broker reports results, during the call or later."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from twinbus.model.errors import ServiceBusError

OnDone: TypeAlias = Callable[[ServiceBusError | None], None]
"""Callback that is called with None when an operation is on disk, or with the error if it failed."""


def when_all(count: int, on_done: OnDone) -> OnDone:
    """Return a callback for `count` operations, which calls `on_done` once after the last operation.

    `on_done` gets the first error, or None if all operations succeeded.
    """
    remaining = count
    first_error: ServiceBusError | None = None

    def on_one_done(error: ServiceBusError | None) -> None:
        nonlocal remaining, first_error
        remaining -= 1
        if first_error is not None and error is not None and error.may_have_happened:
            first_error = first_error.copy_with(may_have_happened=True)
        first_error = first_error or error
        if not remaining:
            on_done(first_error)

    return on_one_done
