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

    receive_and_delete: bool
    """It receives and deletes: what it gets is gone from the store before."""

    @property
    def is_closed(self) -> bool:
        """It was closed: what was meant for it stays."""

    @property
    def available_credit(self) -> int:
        """How many messages it takes now."""

    def reserve_credit(self, count: int) -> None:
        """So many will be delivered once they are deleted: `room` is less by them until then. Negative: given up."""

    def deliver(self, deliveries: list[Delivery]) -> int:
        """Take messages; how many of them, from the first on. Less room than was reserved may be left by then."""

    def request_messages(self) -> None:
        """There is room again: ask all fragments for messages."""

    def force_detach(self, error: ServiceBusError) -> None:
        """The entity was deleted or disabled, or another receiver has claimed it."""

    def on_session_lock_lost(self, error: ServiceBusError) -> None:
        """The time for which it had its session is over."""


class ReceiverIdentity:
    """Who a receiver is: its link, the client of that, and the epoch with which it claims the entity."""

    __slots__ = ("client_id", "epoch", "is_withholding", "link_id", "only_if_free")

    def __init__(
        self, link_id: int = 0, client_id: int = 0, epoch: int | None = None, *, only_if_free: bool = False
    ) -> None:
        """Numbers of the process that the client is connected to; 0 if it has no link."""
        self.link_id = link_id
        self.client_id = client_id
        self.epoch = epoch
        self.only_if_free = only_if_free
        """It claims the entity only if nobody has it."""
        self.is_withholding = False
        """The owners of fragments were told to withhold messages from it."""


class GatewayConsumer(Consumer, Protocol):
    """A receiver that may take messages from fragments of other processes, too."""

    receiver_identity: ReceiverIdentity

    def on_admitted(self) -> None:
        """One more fragment has admitted it."""


class BrowseReader(Protocol):
    """A link that looks at messages, as a fragment knows it."""

    @property
    def wants_messages(self) -> bool:
        """It wants messages, though it may not have room now."""

    @property
    def available_credit(self) -> int:
        """How many messages it takes now."""

    def deliver_browsed(self, deliveries: list[Delivery]) -> int:
        """See messages; how many, from the first on. Less room may be left by then."""

    def force_detach(self, error: ServiceBusError) -> None:
        """The entity was deleted or disabled, or its range is over."""


class GatewayBrowseReader(GatewayConsumer, Protocol):
    """A reader that may look at messages of other processes, too: room is reserved for them, as for a receiver."""

    @property
    def wants_messages(self) -> bool:
        """It wants messages, though it may not have room now."""

    def deliver_browsed(self, deliveries: list[Delivery]) -> int:
        """See messages; how many, from the first on. Less room may be left by then."""
