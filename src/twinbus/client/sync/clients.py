"""Blocking senders, receivers, sessions, transactions, and clients for queues, topics and subscriptions.

Each class wraps the class of the same name in `twinbus.client`, and its methods block until they have a result.
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
    """A transaction, declared with its first operation. Leaving the block commits; an exception rolls back."""

    def __init__(self, inner: transaction.Transaction) -> None:
        """Wrap a transaction. Applications call `MessagingFactory.transaction` instead."""
        self.inner = inner

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        run_blocking(lambda: self.inner.__aexit__(kind, error, traceback))

    @property
    def state(self) -> TransactionState:
        """State of the transaction."""
        return self.inner.state

    def commit(self) -> None:
        """Commit all operations. Raise TransactionRolledBack if the transaction was rolled back instead."""
        run_blocking(self.inner.commit)

    def rollback(self) -> None:
        """Roll back all operations. Messages settled in the transaction are locked, as before the settlement."""
        run_blocking(self.inner.rollback)


def unwrap(wrapper: Transaction | None) -> transaction.Transaction | None:
    """Return the wrapped transaction, or None."""
    return None if wrapper is None else wrapper.inner


# --- senders ----------------------------------------------------------------------------------------------------------

InnerSenderT = TypeVar("InnerSenderT", bound="sender.MessageSender | clients.SendingClient")


class BlockingSender(BlockingEntity[InnerSenderT]):
    """Base class of blocking senders and of clients that send."""

    def send(
        self,
        message: BrokeredMessage,
        *,
        transaction: Transaction | None = None,
        timeout: dt.timedelta | float | None = None,
    ) -> None:
        """Send a message; when this returns, the namespace has stored it (in a transaction: at the commit)."""
        run_blocking(lambda: self.inner.send(message, transaction=unwrap(transaction), timeout=timeout))

    def send_batch(
        self,
        messages: Iterable[BrokeredMessage],
        *,
        transaction: Transaction | None = None,
        timeout: dt.timedelta | float | None = None,
    ) -> None:
        """Send messages as one batch: the entity stores all of them or none."""
        batch = list(messages)  # the application's iterable must not run on the background thread
        run_blocking(lambda: self.inner.send_batch(batch, transaction=unwrap(transaction), timeout=timeout))

    def can_be_parked(self, messages: BrokeredMessage | Iterable[BrokeredMessage]) -> bool:
        """Return whether a message, or a batch, can also be sent while the entity is failed over.

        The result is True if each message is small enough to be parked, and False if the factory is not paired.
        """
        return self.inner.can_be_parked(messages)

    def schedule(self, message: BrokeredMessage, when: dt.datetime) -> int:
        """Schedule a message for `when`; return the sequence number with which it can be cancelled."""
        return run_blocking(lambda: self.inner.schedule(message, when))

    def cancel_scheduled(self, *sequence_numbers: int) -> None:
        """Cancel scheduled messages. Raise MessageNotFound, and cancel none, if one of them does not exist."""
        run_blocking(lambda: self.inner.cancel_scheduled(*sequence_numbers))


class MessageSender(BlockingSender["sender.MessageSender"]):
    """Blocking sender of messages to one entity."""

    def open(self) -> None:
        """Attach now instead of at the first send, to get the entity's errors early."""
        run_blocking(self.inner.open)

    def max_message_bytes(self) -> int | None:
        """Return the size of the largest message or batch that the entity accepts; None if the entity sets no limit."""
        return run_blocking(self.inner.max_message_bytes)


# --- receivers and sessions -------------------------------------------------------------------------------------------

InnerReceivingT = TypeVar("InnerReceivingT", bound="receiver.MessageReceiver | clients.ReceivingClient")
InnerReceiverT = TypeVar("InnerReceiverT", bound="receiver.MessageReceiver")


class BlockingReceiver(BlockingEntity[InnerReceivingT]):
    """Base class of blocking receivers and of clients that receive."""

    def receive(self, timeout: dt.timedelta | float | None = None) -> BrokeredMessage | None:
        """Receive the next message; None after the timeout (default: the factory's operation timeout)."""
        return run_blocking(lambda: self.inner.receive(timeout))

    def receive_batch(self, max_count: int, timeout: dt.timedelta | float | None = None) -> list[BrokeredMessage]:
        """Receive up to `max_count` messages, as soon as at least one is available; empty after the timeout."""
        return run_blocking(lambda: self.inner.receive_batch(max_count, timeout))

    def __iter__(self) -> Iterator[BrokeredMessage]:
        """Yield messages until the receiver is closed."""
        while not self.is_closed:
            message = self.receive()
            if message is not None:
                yield message

    def complete(self, message: BrokeredMessage, *, transaction: Transaction | None = None) -> None:
        """Complete a message, which deletes it from the entity (in a transaction: at the commit)."""
        run_blocking(lambda: self.inner.complete(message, transaction=unwrap(transaction)))

    def abandon(
        self,
        message: BrokeredMessage,
        properties_to_modify: Mapping[str, object] | None = None,
        *,
        transaction: Transaction | None = None,
    ) -> None:
        """Abandon a message: change some of its properties, and unlock it for redelivery."""
        run_blocking(lambda: self.inner.abandon(message, properties_to_modify, transaction=unwrap(transaction)))

    def defer(
        self,
        message: BrokeredMessage,
        properties_to_modify: Mapping[str, object] | None = None,
        *,
        transaction: Transaction | None = None,
    ) -> None:
        """Defer a message, so that only `receive_deferred` returns it, by its sequence number."""
        run_blocking(lambda: self.inner.defer(message, properties_to_modify, transaction=unwrap(transaction)))

    def dead_letter(
        self,
        message: BrokeredMessage,
        reason: str | None = None,
        description: str | None = None,
        *,
        transaction: Transaction | None = None,
    ) -> None:
        """Move a message to the dead-letter queue, with the reason and description as properties."""
        run_blocking(lambda: self.inner.dead_letter(message, reason, description, transaction=unwrap(transaction)))

    def renew_lock(self, message: BrokeredMessage) -> dt.datetime:
        """Renew the lock of a message; return its new expiry time. Raise MessageLockLost if the lock has expired."""
        return run_blocking(lambda: self.inner.renew_lock(message))

    def receive_deferred(self, *sequence_numbers: int) -> list[BrokeredMessage]:
        """Receive deferred messages by sequence number.

        Raise MessageNotFound if a message is locked or not deferred.
        """
        return run_blocking(lambda: self.inner.receive_deferred(*sequence_numbers))

    def peek(self, from_sequence_number: int | None = None) -> BrokeredMessage | None:
        """Return the next message, from a sequence number or after the last message peeked, without locking it."""
        return run_blocking(lambda: self.inner.peek(from_sequence_number))

    def peek_batch(self, max_count: int, from_sequence_number: int | None = None) -> list[BrokeredMessage]:
        """Return up to `max_count` messages in any state, by sequence number, without locking them."""
        return run_blocking(lambda: self.inner.peek_batch(max_count, from_sequence_number))


class _LinkReceiver(BlockingReceiver[InnerReceiverT]):
    """Base class of blocking receivers and sessions."""

    def open(self) -> None:
        """Attach now instead of at the first receive, to get the entity's errors early."""
        run_blocking(self.inner.open)

    def complete_batch(self, messages: Sequence[BrokeredMessage]) -> None:
        """Complete several messages; if some fail, complete the others and then raise the first error."""
        run_blocking(lambda: self.inner.complete_batch(messages))

    def release(self, message: BrokeredMessage) -> None:
        """Release a message: unlock it without increasing its delivery count."""
        run_blocking(lambda: self.inner.release(message))

    def renew_locks(self, messages: Sequence[BrokeredMessage]) -> list[dt.datetime]:
        """Renew the locks of several messages; return the new expiry times. If one lock is lost, none is renewed."""
        return run_blocking(lambda: self.inner.renew_locks(messages))

    def delete_batch(self, max_count: int, before: dt.datetime | None = None) -> int:
        """Delete up to `max_count` of the oldest unlocked messages (with `before`, only messages enqueued before then).

        Return the number of deleted messages.
        """
        return run_blocking(lambda: self.inner.delete_batch(max_count, before))


class MessageReceiver(_LinkReceiver["receiver.MessageReceiver"]):
    """Blocking receiver of messages from one entity."""


class MessageSession(_LinkReceiver[message_session.MessageSession]):
    """Blocking receiver of one accepted session."""

    @property
    def session_id(self) -> str | None:
        """Id of the session."""
        return self.inner.session_id

    @property
    def locked_until_utc(self) -> dt.datetime:
        """Expiry time of the session lock, unless it is renewed."""
        return self.inner.locked_until_utc

    def renew_session_lock(self) -> dt.datetime:
        """Renew the session lock; return its new expiry time."""
        return run_blocking(self.inner.renew_session_lock)

    def get_state(self) -> bytes | None:
        """Return the session state, or None if none is set."""
        return run_blocking(self.inner.get_state)

    def set_state(self, state: bytes | None) -> None:
        """Set the session state; None deletes it."""
        run_blocking(lambda: self.inner.set_state(state))


# --- clients ----------------------------------------------------------------------------------------------------------

InnerSendingClientT = TypeVar("InnerSendingClientT", bound="clients.SendingClient")
InnerReceivingClientT = TypeVar("InnerReceivingClientT", bound="clients.ReceivingClient")


class _SendingClient(BlockingSender[InnerSendingClientT]):
    """Base class of blocking queue clients and topic clients."""

    @property
    def sender(self) -> MessageSender:
        """The sender of the client."""
        return MessageSender(self.inner.sender)


class _ReceivingClient(BlockingReceiver[InnerReceivingClientT]):
    """Base class of blocking queue clients and subscription clients."""

    @property
    def prefetch(self) -> int:
        """Number of messages to receive ahead; set it before the first receive."""
        return self.inner.prefetch

    @prefetch.setter
    def prefetch(self, count: int) -> None:
        self.inner.prefetch = count

    @property
    def receiver(self) -> MessageReceiver:
        """The receiver of the client, created on first use."""
        return MessageReceiver(call_blocking(lambda: self.inner.receiver))

    def dead_letter_receiver(self, mode: ReceiveMode | None = None) -> MessageReceiver:
        """Create a receiver for this entity's dead-letter queue."""
        return MessageReceiver(call_blocking(lambda: self.inner.dead_letter_receiver(mode)))

    def accept_session(
        self,
        session_id: str | None = None,
        *,
        prefetch: int = 0,
        timeout: dt.timedelta | float | None = None,
        auto_renew: dt.timedelta | float | None = None,
    ) -> MessageSession:
        """Accept a session (default: the next free one). `auto_renew` is how long the session lock is renewed."""
        inner = run_blocking(
            lambda: self.inner.accept_session(session_id, prefetch=prefetch, timeout=timeout, auto_renew=auto_renew)
        )
        return MessageSession(inner)

    def get_message_sessions(self, updated_since: dt.datetime | None = None) -> list[str]:
        """Return the ids of sessions that have messages or a state, or whose state was set since `updated_since`."""
        return run_blocking(lambda: self.inner.get_message_sessions(updated_since))


class QueueClient(_SendingClient["clients.QueueClient"], _ReceivingClient["clients.QueueClient"]):
    """Blocking client that sends to a queue and receives from it."""


class TopicClient(_SendingClient["clients.TopicClient"]):
    """Blocking client that sends to a topic."""


class SubscriptionClient(_ReceivingClient["clients.SubscriptionClient"]):
    """Blocking client that receives from a subscription."""
