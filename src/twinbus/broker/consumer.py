"""Whoever takes messages from a fragment: what the fragment needs to know of it.

The gateway has one for each receiving link. The order of calls: a hungry consumer is asked for its `room`, then given
no more than that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

Delivery: TypeAlias = "tuple[bytes, bytes]"
"""One message for one consumer: its bytes as they go on the wire, and its tag: the lock token as .NET writes a GUID, or
any bytes for a message that was deleted already."""

if TYPE_CHECKING:
    from twinbus.model.errors import ServiceBusError


class Consumer(Protocol):
    """A receiving link."""

    deletes: bool
    """It receives and deletes: what it gets is gone from the store before."""

    @property
    def is_gone(self) -> bool:
        """It was closed: what was meant for it stays."""

    @property
    def room(self) -> int:
        """How many messages it takes now."""

    def reserve(self, count: int) -> None:
        """So many will be delivered once they are deleted: `room` is less by them until then. Negative: given up."""

    def deliver(self, deliveries: list[Delivery]) -> int:
        """Take messages; how many of them, from the first on. Less room than was reserved may be left by then."""

    def entity_gone(self, error: ServiceBusError) -> None:
        """The entity was deleted or disabled, or another receiver has claimed it."""

    def session_lost(self, error: ServiceBusError) -> None:
        """The time for which it had its session is over."""
