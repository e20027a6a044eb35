"""Blocking senders. What they do is in `twinbus.client.sender`."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from twinbus.client.sync.background import wait
from twinbus.client.sync.facade import Facade
from twinbus.client.sync.transaction import inner_of

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterable

    from twinbus.client import clients, sender
    from twinbus.client.sync.transaction import Transaction
    from twinbus.model.message import BrokeredMessage

SendingT = TypeVar("SendingT", bound="sender.MessageSender | clients.SendingClient")


class Sending(Facade[SendingT]):
    """What can send."""

    def send(
        self,
        message: BrokeredMessage,
        *,
        transaction: Transaction | None = None,
        timeout: dt.timedelta | float | None = None,
    ) -> None:
        """Send a message; it is safe when this returns. In a transaction: once that is committed."""
        wait(lambda: self.inner.send(message, transaction=inner_of(transaction), timeout=timeout))

    def send_batch(
        self,
        messages: Iterable[BrokeredMessage],
        *,
        transaction: Transaction | None = None,
        timeout: dt.timedelta | float | None = None,
    ) -> None:
        """Send messages together: all are taken, or none."""
        batch = list(messages)  # an iterable of the application's is not to run on our thread
        wait(lambda: self.inner.send_batch(batch, transaction=inner_of(transaction), timeout=timeout))

    def can_be_parked(self, messages: BrokeredMessage | Iterable[BrokeredMessage]) -> bool:
        """Return whether a message, or a batch, can also be sent while the entity is failed over.

        That is so if each message is small enough to be parked. False if the factory is not paired.
        """
        return self.inner.can_be_parked(messages)

    def schedule(self, message: BrokeredMessage, when: dt.datetime) -> int:
        """Send a message that appears at `when`; the number by which it can be cancelled until then."""
        return wait(lambda: self.inner.schedule(message, when))

    def cancel_scheduled(self, *sequence_numbers: int) -> None:
        """Take back scheduled messages; MessageNotFound, and none is taken back, if one of them is not there."""
        wait(lambda: self.inner.cancel_scheduled(*sequence_numbers))


class MessageSender(Sending["sender.MessageSender"]):
    """Sends to one entity."""

    def open(self) -> None:
        """Attach now instead of with the first send: what is wrong with the entity is known then."""
        wait(self.inner.open)

    def max_message_bytes(self) -> int | None:
        """The largest message, or batch, that the entity takes; None where it does not say."""
        return wait(self.inner.max_message_bytes)
