"""Consumers, as fragments see them.

The gateway has one consumer for each receiving link. A fragment reads a consumer's `available_credit` before each
delivery and delivers no more messages than that credit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

Delivery: TypeAlias = "tuple[bytes, bytes]"
"""A message for a consumer: its encoded bytes and its delivery tag. The tag is the lock token in the byte order of a
.NET GUID, or the sequence number of a message that was deleted before delivery."""

if TYPE_CHECKING:
    from twinbus.model.errors import ServiceBusError


class Consumer(Protocol):
    """A receiving link."""

    receive_and_delete: bool
    """Whether messages are deleted from the store before they are delivered to this consumer."""

    @property
    def is_closed(self) -> bool:
        """Whether the consumer is closed, so that no more messages are delivered to it."""

    @property
    def available_credit(self) -> int:
        """Number of messages that the consumer accepts now."""

    def reserve_credit(self, count: int) -> None:
        """Reserve credit for `count` messages that a fragment delivers later; a negative `count` releases credit.

        A fragment reserves credit while it deletes messages that it delivers afterwards, or while another process may
        send messages. `available_credit` does not include reserved credit.
        """

    def deliver(self, deliveries: list[Delivery]) -> int:
        """Accept messages from the first one on, and return the number of accepted messages.

        The consumer may accept fewer messages than its reserved credit, if its credit has shrunk since the reservation.
        """

    def request_messages(self) -> None:
        """Ask all fragments for messages, because credit is available again."""

    def force_detach(self, error: ServiceBusError) -> None:
        """Detach the link with an error, for example because the entity was deleted or claimed by another receiver."""

    def on_session_lock_lost(self, error: ServiceBusError) -> None:
        """Handle the loss of the consumer's session lock."""


class ReceiverIdentity:
    """Identity of a receiver: its link, its client, and the epoch with which it claims the entity, if any."""

    __slots__ = ("client_id", "epoch", "is_withholding", "link_id", "only_if_free")

    def __init__(
        self, link_id: int = 0, client_id: int = 0, epoch: int | None = None, *, only_if_free: bool = False
    ) -> None:
        """Create an identity; the process that the client is connected to assigns the ids (0: no link or client)."""
        self.link_id = link_id
        self.client_id = client_id
        self.epoch = epoch
        self.only_if_free = only_if_free
        """Whether the receiver claims the entity only if no other receiver holds it."""
        self.is_withholding = False
        """Whether the owners of fragments withhold some messages from the receiver."""


class GatewayConsumer(Consumer, Protocol):
    """A consumer that can also receive from fragments in other processes."""

    receiver_identity: ReceiverIdentity

    def on_admitted(self) -> None:
        """Count a fragment in another process that has admitted the receiver."""


class BrowseReader(Protocol):
    """A link that browses messages without receiving them, as a fragment sees it."""

    @property
    def wants_messages(self) -> bool:
        """Whether the reader wants messages, even if it has no credit now."""

    @property
    def available_credit(self) -> int:
        """Number of messages that the reader accepts now."""

    def deliver_browsed(self, deliveries: list[Delivery]) -> int:
        """Accept messages from the first one on, and return the number of accepted messages.

        The reader accepts fewer messages if its credit has shrunk meanwhile.
        """

    def force_detach(self, error: ServiceBusError) -> None:
        """Detach the link with an error: the entity was deleted or disabled, or the whole range was delivered."""


class GatewayBrowseReader(GatewayConsumer, Protocol):
    """A browse reader that can also read fragments in other processes; its credit is reserved like a receiver's."""

    @property
    def wants_messages(self) -> bool:
        """Whether the reader wants messages, even if it has no credit now."""

    def deliver_browsed(self, deliveries: list[Delivery]) -> int:
        """Accept messages from the first one on, and return the number of accepted messages.

        The reader accepts fewer messages if its credit has shrunk meanwhile.
        """
