"""Hosts: which simulated machine a task or callback runs on.

    with on_host("app-1"):
        task = asyncio.create_task(main())      # connects from app-1, and freezes or ends with it

The host is a context variable, so every task and callback inherits it from whoever started it. The network takes the
client's address from it, and a FakeTimeLoop can freeze or end all that runs on a host. What is started outside of any
such block belongs to no host.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextvars import Context

_CURRENT_HOST: Final[ContextVar[str | None]] = ContextVar("twinbus_testing_host", default=None)


@contextmanager
def on_host(name: str | None) -> Iterator[None]:
    """Run the block on a host of that name; None: on no host."""
    token = _CURRENT_HOST.set(name)
    try:
        yield
    finally:
        _CURRENT_HOST.reset(token)


def current_host() -> str | None:
    """The host that the caller runs on."""
    return _CURRENT_HOST.get()


def host_of_context(context: Context) -> str | None:
    """The host that callbacks of a context run on."""
    return context.get(_CURRENT_HOST)
