"""Blocking senders, receivers, sessions, transactions, and clients of queues, topics and subscriptions.

Owns: that each call waits. The modules of `twinbus.client` with the same names do the work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self, TypeVar

from twinbus.client import message_session
from twinbus.client.sync.background_loop import BlockingEntity, call_blocking, run_blocking

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from types import TracebackType

    from twinbus.client import clients, receiver, sender, transaction
    from twinbus.client.receiver import ReceiveMode
    from twinbus.client.transaction import TransactionState
    from twinbus.model.message import BrokeredMessage

# --- transactions -----------------------------------------------------------------------------------------------------


class Transaction:
    """One transaction. It is declared with its first operation; leaving its block commits, an exception rolls back."""

    def __init__(self, inner: transaction.Transaction) -> None:
        """Made by a factory."""
        self.inner = inner

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        run_blocking(lambda: self.inner.__aexit__(kind, error, traceback))

    @property
    def state(self) -> TransactionState:
        """What became of it."""
        return self.inner.state

    def commit(self) -> None:
        """All of it, now; TransactionRolledBack, and nothing of it, if that cannot be."""
        run_blocking(self.inner.commit)

    def rollback(self) -> None:
        """Nothing of it: what was settled in it is locked as before."""
        run_blocking(self.inner.rollback)


def unwrap(wrapper: Transaction | None) -> transaction.Transaction | None:
    """The one that does the work."""
    return None if wrapper is None else wrapper.inner


# --- senders ----------------------------------------------------------------------------------------------------------

InnerSenderT = TypeVar("InnerSenderT", bound="sender.MessageSender | clients.SendingClient")


class BlockingSender(BlockingEntity[InnerSenderT]):
    """What can send."""

    def send(
        self,
        message: BrokeredMessage,
        *,
        transaction: Transaction | None = None,
        timeout: dt.timedelta | float | None = None,
    ) -> None:
        """Send a message; it is safe when this returns. In a transaction: once that is committed."""
        run_blocking(lambda: self.inner.send(message, transaction=unwrap(transaction), timeout=timeout))

    def send_batch(
        self,
        messages: Iterable[BrokeredMessage],
        *,
        transaction: Transaction | None = None,
        timeout: dt.timedelta | float | None = None,
    ) -> None:
        """Send messages together: all are taken, or none."""
        batch = list(messages)  # an iterable of the application's is not to run on our thread
        run_blocking(lambda: self.inner.send_batch(batch, transaction=unwrap(transaction), timeout=timeout))

    def can_be_parked(self, messages: BrokeredMessage | Iterable[BrokeredMessage]) -> bool:
        """Return whether a message, or a batch, can also be sent while the entity is failed over.

        That is so if each message is small enough to be parked. False if the factory is not paired.
        """
        return self.inner.can_be_parked(messages)

    def schedule(self, message: BrokeredMessage, when: dt.datetime) -> int:
        """Send a message that appears at `when`; the number by which it can be cancelled until then."""
        return run_blocking(lambda: self.inner.schedule(message, when))

    def cancel_scheduled(self, *sequence_numbers: int) -> None:
        """Take back scheduled messages; MessageNotFound, and none is taken back, if one of them is not there."""
        run_blocking(lambda: self.inner.cancel_scheduled(*sequence_numbers))


class MessageSender(BlockingSender["sender.MessageSender"]):
    """Sends to one entity."""

    def open(self) -> None:
        """Attach now instead of with the first send: what is wrong with the entity is known then."""
        run_blocking(self.inner.open)

    def max_message_bytes(self) -> int | None:
        """The largest message, or batch, that the entity takes; None where it does not say."""
        return run_blocking(self.inner.max_message_bytes)


# --- receivers and sessions -------------------------------------------------------------------------------------------

InnerReceivingT = TypeVar("InnerReceivingT", bound="receiver.MessageReceiver | clients.ReceivingClient")
InnerReceiverT = TypeVar("InnerReceiverT", bound="receiver.MessageReceiver")


class BlockingReceiver(BlockingEntity[InnerReceivingT]):
    """What can receive."""

    def receive(self, timeout: dt.timedelta | float | None = None) -> BrokeredMessage | None:
        """The next message; None if there was none in that time (the factory's operation timeout, if not said)."""
        return run_blocking(lambda: self.inner.receive(timeout))

    def receive_batch(self, max_count: int, timeout: dt.timedelta | float | None = None) -> list[BrokeredMessage]:
        """Up to `max_count` messages, as soon as there are any."""
        return run_blocking(lambda: self.inner.receive_batch(max_count, timeout))

    def __iter__(self) -> Iterator[BrokeredMessage]:
        """All messages, for as long as it is open."""
        while not self.is_closed:
            message = self.receive()
            if message is not None:
                yield message

    def complete(self, message: BrokeredMessage, *, transaction: Transaction | None = None) -> None:
        """It was dealt with, and is gone. In a transaction: once that is committed."""
        run_blocking(lambda: self.inner.complete(message, transaction=unwrap(transaction)))

    def abandon(
        self,
        message: BrokeredMessage,
        properties_to_modify: Mapping[str, object] | None = None,
        *,
        transaction: Transaction | None = None,
    ) -> None:
        """It goes back, to be received again, with some properties changed."""
        run_blocking(lambda: self.inner.abandon(message, properties_to_modify, transaction=unwrap(transaction)))

    def defer(
        self,
        message: BrokeredMessage,
        properties_to_modify: Mapping[str, object] | None = None,
        *,
        transaction: Transaction | None = None,
    ) -> None:
        """It is put aside, and received by its sequence number only: `receive_deferred`."""
        run_blocking(lambda: self.inner.defer(message, properties_to_modify, transaction=unwrap(transaction)))

    def dead_letter(
        self,
        message: BrokeredMessage,
        reason: str | None = None,
        description: str | None = None,
        *,
        transaction: Transaction | None = None,
    ) -> None:
        """It goes to the dead-letter queue, with the reason among its properties."""
        run_blocking(lambda: self.inner.dead_letter(message, reason, description, transaction=unwrap(transaction)))

    def renew_lock(self, message: BrokeredMessage) -> dt.datetime:
        """Have a message for longer; until when. MessageLockLost if it is too late."""
        return run_blocking(lambda: self.inner.renew_lock(message))

    def receive_deferred(self, *sequence_numbers: int) -> list[BrokeredMessage]:
        """Deferred messages, by their numbers; MessageNotFound if one is not deferred, or somebody has it."""
        return run_blocking(lambda: self.inner.receive_deferred(*sequence_numbers))

    def peek(self, from_sequence_number: int | None = None) -> BrokeredMessage | None:
        """The next message, without a lock: from a number on, or after the last that was peeked at."""
        return run_blocking(lambda: self.inner.peek(from_sequence_number))

    def peek_batch(self, max_count: int, from_sequence_number: int | None = None) -> list[BrokeredMessage]:
        """Up to `max_count` messages, whatever their state, in the order of their numbers."""
        return run_blocking(lambda: self.inner.peek_batch(max_count, from_sequence_number))


class _LinkReceiver(BlockingReceiver[InnerReceiverT]):
    """What receivers and sessions have in common."""

    def open(self) -> None:
        """Attach now instead of with the first receive: what is wrong with the entity is known then."""
        run_blocking(self.inner.open)

    def complete_batch(self, messages: Sequence[BrokeredMessage]) -> None:
        """The same as `complete` for several; the first error, if some cannot be, after all others are."""
        run_blocking(lambda: self.inner.complete_batch(messages))

    def release(self, message: BrokeredMessage) -> None:
        """It goes back as if it had never been received: not counted as a delivery."""
        run_blocking(lambda: self.inner.release(message))

    def renew_locks(self, messages: Sequence[BrokeredMessage]) -> list[dt.datetime]:
        """The same as `renew_lock` for several: if one is lost, none is renewed."""
        return run_blocking(lambda: self.inner.renew_locks(messages))

    def delete_batch(self, max_count: int, before: dt.datetime | None = None) -> int:
        """Delete up to `max_count` of the oldest messages that nobody has; how many were."""
        return run_blocking(lambda: self.inner.delete_batch(max_count, before))


class MessageReceiver(_LinkReceiver["receiver.MessageReceiver"]):
    """Receives from one entity."""


class MessageSession(_LinkReceiver[message_session.MessageSession]):
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
        return run_blocking(self.inner.renew_session_lock)

    def get_state(self) -> bytes | None:
        """What was last kept for the session."""
        return run_blocking(self.inner.get_state)

    def set_state(self, state: bytes | None) -> None:
        """Keep something for the session; None: nothing any more."""
        run_blocking(lambda: self.inner.set_state(state))


# --- clients ----------------------------------------------------------------------------------------------------------

InnerSendingClientT = TypeVar("InnerSendingClientT", bound="clients.SendingClient")
InnerReceivingClientT = TypeVar("InnerReceivingClientT", bound="clients.ReceivingClient")


class _SendingClient(BlockingSender[InnerSendingClientT]):
    """What queues and topics have in common: one can send to them."""

    @property
    def sender(self) -> MessageSender:
        """What sends."""
        return MessageSender(self.inner.sender)


class _ReceivingClient(BlockingReceiver[InnerReceivingClientT]):
    """What queues and subscriptions have in common: one can receive from them."""

    @property
    def prefetch(self) -> int:
        """How many messages are asked for ahead. Set it before the first receive."""
        return self.inner.prefetch

    @prefetch.setter
    def prefetch(self, count: int) -> None:
        self.inner.prefetch = count

    @property
    def receiver(self) -> MessageReceiver:
        """What receives."""
        return MessageReceiver(call_blocking(lambda: self.inner.receiver))

    def dead_letter_receiver(self, mode: ReceiveMode | None = None) -> MessageReceiver:
        """A receiver of its dead-letter queue."""
        return MessageReceiver(call_blocking(lambda: self.inner.dead_letter_receiver(mode)))

    def accept_session(
        self,
        session_id: str | None = None,
        *,
        prefetch: int = 0,
        timeout: dt.timedelta | float | None = None,
        auto_renew: dt.timedelta | float | None = None,
    ) -> MessageSession:
        """Take a session; without an id the next that nobody has. `auto_renew`: for how long to keep its lock."""
        inner = run_blocking(
            lambda: self.inner.accept_session(session_id, prefetch=prefetch, timeout=timeout, auto_renew=auto_renew)
        )
        return MessageSession(inner)

    def get_message_sessions(self, updated_since: dt.datetime | None = None) -> list[str]:
        """Ids of the sessions that have messages or a state; or whose state was set since a time."""
        return run_blocking(lambda: self.inner.get_message_sessions(updated_since))


class QueueClient(_SendingClient["clients.QueueClient"], _ReceivingClient["clients.QueueClient"]):
    """Sends to a queue and receives from it."""


class TopicClient(_SendingClient["clients.TopicClient"]):
    """Sends to a topic."""


class SubscriptionClient(_ReceivingClient["clients.SubscriptionClient"]):
    """Receives from a subscription."""
