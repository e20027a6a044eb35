"""Clients for queues, topics and subscriptions: one object per entity, with its sender, its receiver or both.

    queue = factory.create_queue_client("orders")
    await queue.send(BrokeredMessage("two pounds of apples"))
    message = await queue.receive()

Owns the creation of the sender and the receiver. Sending and receiving are in `sender` and `receiver`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.amqp.types import Array, Int, Timestamp
from twinbus.client.client_entity import ClientEntity
from twinbus.client.message_session import MessageSession
from twinbus.model.path import SubQueue, subscription_path
from twinbus.model.times import to_wire

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import AsyncIterator, Iterable, Mapping

    from twinbus.client.factory import MessagingFactory
    from twinbus.client.receiver import MessageReceiver, ReceiveMode
    from twinbus.client.sender import MessageSender
    from twinbus.client.transaction import Transaction
    from twinbus.model.message import BrokeredMessage

_ALL_SESSIONS: Timestamp = Timestamp(253_402_300_800_000)
"""A time in the year 10000, for which Azure lists all sessions that have messages or a state."""
_PAGE_SIZE: int = 100


class SendingClient(ClientEntity):
    """Base class of queue clients and topic clients: sends messages."""

    def __init__(self, factory: MessagingFactory, path: str) -> None:
        """Create a client and its sender. Applications call the methods of MessagingFactory instead."""
        super().__init__(factory, path)
        self.sender: MessageSender = factory.create_message_sender(path)
        """The sender of the client. The sender of a paired factory parks messages the primary cannot accept."""

    async def send(
        self,
        message: BrokeredMessage,
        *,
        transaction: Transaction | None = None,
        timeout: dt.timedelta | float | None = None,  # noqa: ASYNC109
    ) -> None:
        """Send a message; when this returns, the namespace has stored the message."""
        await self.sender.send(message, transaction=transaction, timeout=timeout)

    async def send_batch(
        self,
        messages: Iterable[BrokeredMessage],
        *,
        transaction: Transaction | None = None,
        timeout: dt.timedelta | float | None = None,  # noqa: ASYNC109
    ) -> None:
        """Send messages as one batch: the entity stores all of them or none."""
        await self.sender.send_batch(messages, transaction=transaction, timeout=timeout)

    def can_be_parked(self, messages: BrokeredMessage | Iterable[BrokeredMessage]) -> bool:
        """Return whether a message, or a batch, can also be sent while the entity is failed over.

        The result is True if each message is small enough to be parked, and False if the factory is not paired.
        """
        return self.sender.can_be_parked(messages)

    async def schedule(self, message: BrokeredMessage, when: dt.datetime) -> int:
        """Schedule a message for `when`; return the sequence number with which it can be cancelled."""
        return await self.sender.schedule(message, when)

    async def cancel_scheduled(self, *sequence_numbers: int) -> None:
        """Cancel scheduled messages by their sequence numbers."""
        await self.sender.cancel_scheduled(*sequence_numbers)

    async def _close(self) -> None:
        await self.sender.close()


class ReceivingClient(ClientEntity):
    """Base class of queue clients and subscription clients: receives and settles messages."""

    def __init__(self, factory: MessagingFactory, path: str, mode: ReceiveMode) -> None:
        """Create a client; its receiver is created on first use."""
        super().__init__(factory, path)
        self.mode = mode
        self.prefetch = 0
        """Prefetch count of the receiver; set it before the first receive."""
        self._receiver: MessageReceiver | None = None

    @property
    def receiver(self) -> MessageReceiver:
        """The receiver, created on first use."""
        self.check_open()
        if self._receiver is None:
            self._receiver = self.factory.create_message_receiver(self.path, self.mode, prefetch=self.prefetch)
        return self._receiver

    def dead_letter_receiver(self, mode: ReceiveMode | None = None) -> MessageReceiver:
        """Create a receiver for this entity's dead-letter queue."""
        path = self.path + SubQueue.DEAD_LETTER.value
        return self.factory.create_message_receiver(path, mode if mode is not None else self.mode)

    async def receive(
        self,
        timeout: dt.timedelta | float | None = None,  # noqa: ASYNC109
    ) -> BrokeredMessage | None:
        """Receive the next message; return None if none arrives within the timeout."""
        return await self.receiver.receive(timeout)

    async def receive_batch(
        self,
        max_count: int,
        timeout: dt.timedelta | float | None = None,  # noqa: ASYNC109
    ) -> list[BrokeredMessage]:
        """Receive up to `max_count` messages, as soon as at least one is available."""
        return await self.receiver.receive_batch(max_count, timeout)

    def __aiter__(self) -> AsyncIterator[BrokeredMessage]:
        """Receive messages one at a time until the client is closed."""
        return self.receiver.__aiter__()

    async def complete(self, message: BrokeredMessage, *, transaction: Transaction | None = None) -> None:
        """Complete a message, which deletes it from the entity."""
        await self.receiver.complete(message, transaction=transaction)

    async def abandon(
        self,
        message: BrokeredMessage,
        properties_to_modify: Mapping[str, object] | None = None,
        *,
        transaction: Transaction | None = None,
    ) -> None:
        """Abandon a message: change some of its properties, and unlock it for redelivery."""
        await self.receiver.abandon(message, properties_to_modify, transaction=transaction)

    async def defer(
        self,
        message: BrokeredMessage,
        properties_to_modify: Mapping[str, object] | None = None,
        *,
        transaction: Transaction | None = None,
    ) -> None:
        """Defer a message, so that only `receive_deferred` returns it."""
        await self.receiver.defer(message, properties_to_modify, transaction=transaction)

    async def dead_letter(
        self,
        message: BrokeredMessage,
        reason: str | None = None,
        description: str | None = None,
        *,
        transaction: Transaction | None = None,
    ) -> None:
        """Move a message to the dead-letter queue."""
        await self.receiver.dead_letter(message, reason, description, transaction=transaction)

    async def renew_lock(self, message: BrokeredMessage) -> dt.datetime:
        """Renew the lock of a message; return its new expiry time."""
        return await self.receiver.renew_lock(message)

    async def receive_deferred(self, *sequence_numbers: int) -> list[BrokeredMessage]:
        """Receive deferred messages by their sequence numbers."""
        return await self.receiver.receive_deferred(*sequence_numbers)

    async def peek(self, from_sequence_number: int | None = None) -> BrokeredMessage | None:
        """Return the next message without locking it, or None if there is none."""
        return await self.receiver.peek(from_sequence_number)

    async def peek_batch(self, max_count: int, from_sequence_number: int | None = None) -> list[BrokeredMessage]:
        """Return up to `max_count` messages without locking them."""
        return await self.receiver.peek_batch(max_count, from_sequence_number)

    async def accept_session(
        self,
        session_id: str | None = None,
        *,
        prefetch: int = 0,
        timeout: dt.timedelta | float | None = None,  # noqa: ASYNC109
        auto_renew: dt.timedelta | float | None = None,
    ) -> MessageSession:
        """Accept a session (default: the next free one). `auto_renew` is how long the session lock is renewed."""
        self.check_open()
        return await MessageSession.accept(
            self.factory, self.path, self.mode, session_id, prefetch=prefetch, timeout=timeout, auto_renew=auto_renew
        )

    async def get_message_sessions(self, updated_since: dt.datetime | None = None) -> list[str]:
        """Return the ids of sessions that have messages or a state, or whose state was set since `updated_since`."""
        from_time: object = _ALL_SESSIONS
        if updated_since is not None:
            from_time = to_wire(updated_since)
        session_ids: list[str] = []
        while True:
            body = {"last-updated-time": from_time, "skip": Int(len(session_ids)), "top": Int(_PAGE_SIZE)}
            response = await self._request("com.microsoft:get-message-sessions", body)
            ids = response.body.get("sessions-ids")
            page = [str(session_id) for session_id in ids.items] if isinstance(ids, Array) else []
            session_ids += page
            if len(page) < _PAGE_SIZE:
                return session_ids

    async def _close(self) -> None:
        if self._receiver is not None:
            await self._receiver.close()


class QueueClient(SendingClient, ReceivingClient):
    """Client that sends to a queue and receives from it."""

    def __init__(self, factory: MessagingFactory, path: str, mode: ReceiveMode) -> None:
        """Create a client and its sender; the receiver is created on first use."""
        ReceivingClient.__init__(self, factory, path, mode)
        self.sender = factory.create_message_sender(path)

    async def _close(self) -> None:
        await self.sender.close()
        if self._receiver is not None:
            await self._receiver.close()


class TopicClient(SendingClient):
    """Client that sends to a topic."""


class SubscriptionClient(ReceivingClient):
    """Client that receives from a subscription."""

    def __init__(self, factory: MessagingFactory, topic: str, name: str, mode: ReceiveMode) -> None:
        """Create a client; its receiver is created on first use."""
        super().__init__(factory, subscription_path(topic, name), mode)
        self.topic = topic
        self.name = name
