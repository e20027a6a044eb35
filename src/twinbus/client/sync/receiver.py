"""Blocking receivers and sessions. What they do is in `twinbus.client.receiver` and `message_session`."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from twinbus.client import message_session
from twinbus.client.sync.background import wait
from twinbus.client.sync.facade import Facade
from twinbus.client.sync.transaction import inner_of

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterator, Mapping, Sequence

    from twinbus.client import clients, receiver
    from twinbus.client.sync.transaction import Transaction
    from twinbus.model.message import BrokeredMessage

ReceivingT = TypeVar("ReceivingT", bound="receiver.MessageReceiver | clients.ReceivingClient")
ReceiverT = TypeVar("ReceiverT", bound="receiver.MessageReceiver")


class Receiving(Facade[ReceivingT]):
    """What can receive."""

    def receive(self, timeout: dt.timedelta | float | None = None) -> BrokeredMessage | None:
        """The next message; None if there was none in that time (the factory's operation timeout, if not said)."""
        return wait(lambda: self.inner.receive(timeout))

    def receive_batch(self, max_count: int, timeout: dt.timedelta | float | None = None) -> list[BrokeredMessage]:
        """Up to `max_count` messages, as soon as there are any."""
        return wait(lambda: self.inner.receive_batch(max_count, timeout))

    def __iter__(self) -> Iterator[BrokeredMessage]:
        """All messages, for as long as it is open."""
        while not self.is_closed:
            message = self.receive()
            if message is not None:
                yield message

    def complete(self, message: BrokeredMessage, *, transaction: Transaction | None = None) -> None:
        """It was dealt with, and is gone. In a transaction: once that is committed."""
        wait(lambda: self.inner.complete(message, transaction=inner_of(transaction)))

    def abandon(
        self,
        message: BrokeredMessage,
        properties_to_modify: Mapping[str, object] | None = None,
        *,
        transaction: Transaction | None = None,
    ) -> None:
        """It goes back, to be received again, with some properties changed."""
        wait(lambda: self.inner.abandon(message, properties_to_modify, transaction=inner_of(transaction)))

    def defer(
        self,
        message: BrokeredMessage,
        properties_to_modify: Mapping[str, object] | None = None,
        *,
        transaction: Transaction | None = None,
    ) -> None:
        """It is put aside, and received by its sequence number only: `receive_deferred`."""
        wait(lambda: self.inner.defer(message, properties_to_modify, transaction=inner_of(transaction)))

    def dead_letter(
        self,
        message: BrokeredMessage,
        reason: str | None = None,
        description: str | None = None,
        *,
        transaction: Transaction | None = None,
    ) -> None:
        """It goes to the dead-letter queue, with the reason among its properties."""
        wait(lambda: self.inner.dead_letter(message, reason, description, transaction=inner_of(transaction)))

    def renew_lock(self, message: BrokeredMessage) -> dt.datetime:
        """Have a message for longer; until when. MessageLockLost if it is too late."""
        return wait(lambda: self.inner.renew_lock(message))

    def receive_deferred(self, *sequence_numbers: int) -> list[BrokeredMessage]:
        """Deferred messages, by their numbers; MessageNotFound if one is not deferred, or somebody has it."""
        return wait(lambda: self.inner.receive_deferred(*sequence_numbers))

    def peek(self, from_sequence_number: int | None = None) -> BrokeredMessage | None:
        """The next message, without a lock: from a number on, or after the last that was peeked at."""
        return wait(lambda: self.inner.peek(from_sequence_number))

    def peek_batch(self, max_count: int, from_sequence_number: int | None = None) -> list[BrokeredMessage]:
        """Up to `max_count` messages, whatever their state, in the order of their numbers."""
        return wait(lambda: self.inner.peek_batch(max_count, from_sequence_number))


class _Receiver(Receiving[ReceiverT]):
    """What receivers and sessions have in common."""

    def open(self) -> None:
        """Attach now instead of with the first receive: what is wrong with the entity is known then."""
        wait(self.inner.open)

    def complete_batch(self, messages: Sequence[BrokeredMessage]) -> None:
        """The same as `complete` for several; the first error, if some cannot be, after all others are."""
        wait(lambda: self.inner.complete_batch(messages))

    def release(self, message: BrokeredMessage) -> None:
        """It goes back as if it had never been received: not counted as a delivery."""
        wait(lambda: self.inner.release(message))

    def renew_locks(self, messages: Sequence[BrokeredMessage]) -> list[dt.datetime]:
        """The same as `renew_lock` for several: if one is lost, none is renewed."""
        return wait(lambda: self.inner.renew_locks(messages))

    def delete_batch(self, max_count: int, before: dt.datetime | None = None) -> int:
        """Delete up to `max_count` of the oldest messages that nobody has; how many were."""
        return wait(lambda: self.inner.delete_batch(max_count, before))


class MessageReceiver(_Receiver["receiver.MessageReceiver"]):
    """Receives from one entity."""


class MessageSession(_Receiver[message_session.MessageSession]):
    """One session, held."""

    @property
    def session_id(self) -> str | None:
        """Its id."""
        return self.inner.session_id

    @property
    def locked_until_utc(self) -> dt.datetime:
        """When somebody else may have it, unless it is renewed."""
        return self.inner.locked_until_utc

    def renew_session_lock(self) -> dt.datetime:
        """Have it for longer; until when."""
        return wait(self.inner.renew_session_lock)

    def get_state(self) -> bytes | None:
        """What was last kept for the session."""
        return wait(self.inner.get_state)

    def set_state(self, state: bytes | None) -> None:
        """Keep something for the session; None: nothing any more."""
        wait(lambda: self.inner.set_state(state))
