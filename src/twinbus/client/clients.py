"""Clients of a queue, a topic or a subscription: a sender and a receiver under one name.

    queue = factory.create_queue_client("orders")
    await queue.send(BrokeredMessage("two pounds of apples"))
    message = await queue.receive()

Owns: which of them is made when. What they do is in `sender` and `receiver`.
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
"""The year 10000: sessions that have messages or a state."""
_PAGE_SIZE: int = 100


class SendingClient(ClientEntity):
    """What queues and topics have in common: one can send to them."""

    def __init__(self, factory: MessagingFactory, path: str) -> None:
        """Made by a factory."""
        super().__init__(factory, path)
        self.sender: MessageSender = factory.create_message_sender(path)
        """What sends. On a paired factory it parks what the primary does not take."""

    async def send(
        self,
        message: BrokeredMessage,
        *,
        transaction: Transaction | None = None,
        timeout: dt.timedelta | float | None = None,  # noqa: ASYNC109
    ) -> None:
        """Send a message; it is safe when this returns."""
        await self.sender.send(message, transaction=transaction, timeout=timeout)

    async def send_batch(
        self,
        messages: Iterable[BrokeredMessage],
        *,
        transaction: Transaction | None = None,
        timeout: dt.timedelta | float | None = None,  # noqa: ASYNC109
    ) -> None:
        """Send messages together: all are taken, or none."""
        await self.sender.send_batch(messages, transaction=transaction, timeout=timeout)

    def can_be_parked(self, messages: BrokeredMessage | Iterable[BrokeredMessage]) -> bool:
        """Return whether a message, or a batch, can also be sent while the entity is failed over.

        That is so if each message is small enough to be parked. False if the factory is not paired.
        """
        return self.sender.can_be_parked(messages)

    async def schedule(self, message: BrokeredMessage, when: dt.datetime) -> int:
        """Send a message that appears at `when`; the number by which it can be cancelled until then."""
        return await self.sender.schedule(message, when)

    async def cancel_scheduled(self, *sequence_numbers: int) -> None:
        """Take back scheduled messages."""
        await self.sender.cancel_scheduled(*sequence_numbers)

    async def _close(self) -> None:
        await self.sender.close()


class ReceivingClient(ClientEntity):
    """What queues and subscriptions have in common: one can receive from them."""

    def __init__(self, factory: MessagingFactory, path: str, mode: ReceiveMode) -> None:
        """Made by a factory."""
        super().__init__(factory, path)
        self.mode = mode
        self.prefetch = 0
        """Set it before the first receive."""
        self._receiver: MessageReceiver | None = None

    @property
    def receiver(self) -> MessageReceiver:
        """What receives; made when it is first asked for."""
        self.check_open()
        if self._receiver is None:
            self._receiver = self.factory.create_message_receiver(self.path, self.mode, prefetch=self.prefetch)
        return self._receiver

    def dead_letter_receiver(self, mode: ReceiveMode | None = None) -> MessageReceiver:
        """A receiver of its dead-letter queue."""
        path = self.path + SubQueue.DEAD_LETTER.value
        return self.factory.create_message_receiver(path, mode if mode is not None else self.mode)

    async def receive(
        self,
        timeout: dt.timedelta | float | None = None,  # noqa: ASYNC109
    ) -> BrokeredMessage | None:
        """The next message; None if there was none in that time."""
        return await self.receiver.receive(timeout)

    async def receive_batch(
        self,
        max_count: int,
        timeout: dt.timedelta | float | None = None,  # noqa: ASYNC109
    ) -> list[BrokeredMessage]:
        """Up to `max_count` messages, as soon as there are any."""
        return await self.receiver.receive_batch(max_count, timeout)

    def __aiter__(self) -> AsyncIterator[BrokeredMessage]:
        """All messages, for as long as the client is open."""
        return self.receiver.__aiter__()

    async def complete(self, message: BrokeredMessage, *, transaction: Transaction | None = None) -> None:
        """It was dealt with, and is gone."""
        await self.receiver.complete(message, transaction=transaction)

    async def abandon(
        self,
        message: BrokeredMessage,
        properties_to_modify: Mapping[str, object] | None = None,
        *,
        transaction: Transaction | None = None,
    ) -> None:
        """It goes back, to be received again."""
        await self.receiver.abandon(message, properties_to_modify, transaction=transaction)

    async def defer(
        self,
        message: BrokeredMessage,
        properties_to_modify: Mapping[str, object] | None = None,
        *,
        transaction: Transaction | None = None,
    ) -> None:
        """It is put aside, for `receive_deferred`."""
        await self.receiver.defer(message, properties_to_modify, transaction=transaction)

    async def dead_letter(
        self,
        message: BrokeredMessage,
        reason: str | None = None,
        description: str | None = None,
        *,
        transaction: Transaction | None = None,
    ) -> None:
        """It goes to the dead-letter queue."""
        await self.receiver.dead_letter(message, reason, description, transaction=transaction)

    async def renew_lock(self, message: BrokeredMessage) -> dt.datetime:
        """Have a message for longer; until when."""
        return await self.receiver.renew_lock(message)

    async def receive_deferred(self, *sequence_numbers: int) -> list[BrokeredMessage]:
        """Deferred messages, by their numbers."""
        return await self.receiver.receive_deferred(*sequence_numbers)

    async def peek(self, from_sequence_number: int | None = None) -> BrokeredMessage | None:
        """The next message, without a lock."""
        return await self.receiver.peek(from_sequence_number)

    async def peek_batch(self, max_count: int, from_sequence_number: int | None = None) -> list[BrokeredMessage]:
        """Up to `max_count` messages, without locks."""
        return await self.receiver.peek_batch(max_count, from_sequence_number)

    async def accept_session(
        self,
        session_id: str | None = None,
        *,
        prefetch: int = 0,
        timeout: dt.timedelta | float | None = None,  # noqa: ASYNC109
        auto_renew: dt.timedelta | float | None = None,
    ) -> MessageSession:
        """Take a session; without an id the next that nobody has. `auto_renew`: for how long to keep its lock."""
        self.check_open()
        return await MessageSession.accept(
            self.factory, self.path, self.mode, session_id, prefetch=prefetch, timeout=timeout, auto_renew=auto_renew
        )

    async def get_message_sessions(self, updated_since: dt.datetime | None = None) -> list[str]:
        """Ids of the sessions that have messages or a state; or whose state was set since a time."""
        from_time: object = _ALL_SESSIONS
        if updated_since is not None:
            from_time = to_wire(updated_since)
        found: list[str] = []
        while True:
            body = {"last-updated-time": from_time, "skip": Int(len(found)), "top": Int(_PAGE_SIZE)}
            answer = await self._request("com.microsoft:get-message-sessions", body)
            ids = answer.body.get("sessions-ids")
            page = [str(one) for one in ids.items] if isinstance(ids, Array) else []
            found += page
            if len(page) < _PAGE_SIZE:
                return found

    async def _close(self) -> None:
        if self._receiver is not None:
            await self._receiver.close()


class QueueClient(SendingClient, ReceivingClient):
    """Sends to a queue and receives from it."""

    def __init__(self, factory: MessagingFactory, path: str, mode: ReceiveMode) -> None:
        """Made by a factory."""
        ReceivingClient.__init__(self, factory, path, mode)
        self.sender = factory.create_message_sender(path)

    async def _close(self) -> None:
        await self.sender.close()
        if self._receiver is not None:
            await self._receiver.close()


class TopicClient(SendingClient):
    """Sends to a topic."""


class SubscriptionClient(ReceivingClient):
    """Receives from a subscription."""

    def __init__(self, factory: MessagingFactory, topic: str, name: str, mode: ReceiveMode) -> None:
        """Made by a factory."""
        super().__init__(factory, subscription_path(topic, name), mode)
        self.topic = topic
        self.name = name
