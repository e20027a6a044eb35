"""Two namespaces in memory, for those who fail over from one to the other.

    async with InMemoryPair() as pair:
        await pair.primary.create_queue("orders")
        primary, secondary = pair.factories()
        pair.primary.outage.stop()

Owns: that both are there, on one clock. How an application pairs them is its own affair.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from twinbus.testing.clock import LoopClock
from twinbus.testing.namespace import InMemoryNamespace

if TYPE_CHECKING:
    from types import TracebackType

    from twinbus.client import MessagingFactory


class InMemoryPair:
    """A primary and a secondary. Needs a FakeTimeLoop."""

    def __init__(
        self,
        primary: str = "contoso",
        secondary: str = "contoso-backup",
        **settings: Any,  # noqa: ANN401  # each has a type of its own
    ) -> None:
        """Not started; `settings` are for both."""
        self.clock = LoopClock()
        self.primary = InMemoryNamespace(primary, clock=self.clock, **settings)
        self.secondary = InMemoryNamespace(secondary, clock=self.clock, **settings)

    async def __aenter__(self) -> Self:
        await self.primary.start()
        await self.secondary.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await self.primary.__aexit__(kind, error, traceback)
        finally:
            await self.secondary.__aexit__(kind, error, traceback)

    def factories(self, **options: Any) -> tuple[MessagingFactory, MessagingFactory]:  # noqa: ANN401  # as above
        """A client of the primary and one of the secondary; `options` are for both."""
        return self.primary.factory(**options), self.secondary.factory(**options)
