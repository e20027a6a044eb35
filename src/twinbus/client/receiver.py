"""Receivers: receive and settle messages from a queue, a subscription, or a sub-queue.

    async for message in receiver:
        handle(message.body)
        await receiver.complete(message)

Owns settlement, lock renewal, peeking and deferral. A message received under a lock can be settled until the lock
expires, even if the connection was lost in the meantime. Credit and buffering are in `receive_buffer`.
"""

from __future__ import annotations

import uuid
from enum import Enum
from typing import TYPE_CHECKING, Final

from twinbus.amqp.codec.performatives import Error
from twinbus.amqp.outcomes import ACCEPTED, RELEASED, Modified, Rejected
from twinbus.amqp.terminus import Source, Target
from twinbus.amqp.types import Array, Int, Symbol, UInt
from twinbus.client.amqp.lease import silence_limit_property
from twinbus.client.amqp.receiver_link import DEAD_LETTER_CONDITION
from twinbus.client.client_entity import ClientEntity
from twinbus.client.errors import ConnectionFailed, ConnectionLost, MessageNotHeld, UnknownAnswer
from twinbus.client.events import ReceiverOpened, Settled, SettledInBulk
from twinbus.client.lock_renewal import LockRenewal
from twinbus.client.receive_buffer import ReceiveBuffer
from twinbus.client.retry import OperationOutcome
from twinbus.model.errors import InvalidArgument, ServiceBusError
from twinbus.model.message import BrokeredMessage
from twinbus.model.times import duration_s, to_wire

if TYPE_CHECKING:
    import asyncio
    import datetime as dt
    from collections.abc import AsyncIterator, Mapping, Sequence

    from twinbus.amqp.codec.composite import Composite
    from twinbus.amqp.delivery import IncomingDelivery
    from twinbus.client.amqp.receiver_link import ReceiverLink
    from twinbus.client.factory import MessagingFactory
    from twinbus.client.transaction import Transaction

MAX_PREFETCH: Final = 5_000
_SETTLEMENT_NAMES: Final = {
    "complete": "completed",
    "abandon": "abandoned",
    "defer": "deferred",
    "dead_letter": "dead-lettered",
    "release": "released",
    "delete": "received and deleted",
}
"""Name of each settlement in events."""
_DISPOSITION_STATUSES: Final = {
    "complete": "completed",
    "abandon": "abandoned",
    "defer": "defered",
    "dead_letter": "suspended",
}


class ReceiveMode(Enum):
    """Effect of receiving a message."""

    PEEK_LOCK = "peek-lock"
    """The message is locked for the receiver, and deleted when the receiver completes it."""
    RECEIVE_AND_DELETE = "receive-and-delete"
    """The message is deleted as it is sent to the receiver, and lost if the receiver fails before processing it."""


class MessageReceiver(ClientEntity):
    """Receiver of messages from one entity."""

    session_id: str | None = None
    """Id of the accepted session; only a `MessageSession` has one."""
    consumes_messages = True
    """Whether receiving without a lock deletes the message; False for a browser."""

    def __init__(
        self,
        factory: MessagingFactory,
        path: str,
        mode: ReceiveMode = ReceiveMode.PEEK_LOCK,
        *,
        prefetch: int = 0,
        epoch: int | None = None,
        auto_renew: dt.timedelta | float | None = None,
        silence_limit: dt.timedelta | float | None = None,
        if_free: bool = False,
    ) -> None:
        """Create a receiver; the first receive attaches it.

        `prefetch` is the number of messages to receive ahead. Locks of received messages are renewed until the messages
        are settled, but no longer than `auto_renew`. With `epoch` the receiver is exclusive: `silence_limit` is the
        silence after which another receiver may take the entity over, and `if_free` claims the entity only if no other
        receiver holds it.
        """
        if not 0 <= prefetch <= MAX_PREFETCH:
            raise InvalidArgument(f"prefetch is {prefetch}; it must be 0 to {MAX_PREFETCH}")
        super().__init__(factory, path)
        self.mode = mode
        self.prefetch = prefetch
        self.epoch = epoch
        self._exclusive_properties = _exclusive_link_properties(epoch, silence_limit, if_free=if_free)
        self._buffer = ReceiveBuffer(
            f"a receiver of '{self.path}'",
            self._attach,
            prefetch=prefetch,
            is_presettled=mode is ReceiveMode.RECEIVE_AND_DELETE,
            policy=factory.settings.retry_policy,
            attach_limit_s=self._attach_limit_s(),
        )
        self._peeked_up_to = 0
        self._has_published_opened = False
        self._lock_renewal = LockRenewal(self, duration_s(auto_renew)) if auto_renew is not None else None

    # --- receiving ----------------------------------------------------------------------------------------------------

    async def receive(
        self,
        timeout: dt.timedelta | float | None = None,  # noqa: ASYNC109  # how long to wait for a message
    ) -> BrokeredMessage | None:
        """Receive the next message; None after the timeout (default: the factory's operation timeout)."""
        received = await self.receive_batch(1, timeout)
        return received[0] if received else None

    async def receive_batch(
        self,
        max_count: int,
        timeout: dt.timedelta | float | None = None,  # noqa: ASYNC109
    ) -> list[BrokeredMessage]:
        """Receive up to `max_count` messages, as soon as at least one is available; empty after the timeout."""
        if max_count < 1:
            raise InvalidArgument(f"max_count is {max_count}; it must be at least 1")
        self.check_open()
        limit_s = self.factory.settings.operation_timeout_s if timeout is None else duration_s(timeout)
        taken = await self._buffer.take(max_count, limit_s)
        settled = [delivery for _, delivery in taken if delivery.settled]
        if settled:
            taken[0][0].mark_taken(settled)  # all messages came on one link
        return [self._decode_delivery(link, delivery) for link, delivery in taken]

    async def __aiter__(self) -> AsyncIterator[BrokeredMessage]:
        """Yield messages until the receiver is closed.

        Receive one message at a time, so that a `break` leaves none locked.
        """
        while not self.is_closed:
            message = await self.receive()
            if message is not None:
                yield message

    def _decode_delivery(self, link: ReceiverLink, delivery: IncomingDelivery) -> BrokeredMessage:
        if delivery.settled:
            taken = BrokeredMessage.decode(delivery.payload)
            if self.consumes_messages:
                self._publish_settled("delete", taken)
            return taken
        message = BrokeredMessage.decode(delivery.payload, lock=delivery.tag)
        message.received.handle = (link, delivery)
        if self._lock_renewal is not None:
            self._lock_renewal.add(message)
        return message

    # --- settling -----------------------------------------------------------------------------------------------------

    async def complete(self, message: BrokeredMessage, *, transaction: Transaction | None = None) -> None:
        """Complete a message, which deletes it from the entity (in a transaction: at the commit)."""
        await self._settle("complete", message, ACCEPTED, {}, transaction)

    async def complete_batch(self, messages: Sequence[BrokeredMessage]) -> None:
        """Complete several messages; if some fail, complete the others and then raise the first error."""
        dispositions: list[tuple[BrokeredMessage, ReceiverLink | None, asyncio.Future[None] | None]] = []
        errors: list[ServiceBusError] = []
        try:
            for message in messages:
                try:
                    dispositions.append((message, *self._settle_on_link(*self._locked_delivery(message), ACCEPTED)))
                except ServiceBusError as error:
                    errors.append(error)
            for message, link, future in dispositions:
                try:
                    await self._await_confirmation("complete", message, {}, link, future)
                except ServiceBusError as error:
                    errors.append(error)
                    self._publish_settled("complete", message, error=error)
                else:
                    self._publish_settled("complete", message)
        finally:
            for _, link, future in dispositions:
                self._cancel_confirmation(link, future)
        if errors:
            raise errors[0]

    async def abandon(
        self,
        message: BrokeredMessage,
        properties_to_modify: Mapping[str, object] | None = None,
        *,
        transaction: Transaction | None = None,
    ) -> None:
        """Abandon a message: change some of its properties, and unlock it for redelivery."""
        state = _modified_state(properties_to_modify, undeliverable_here=False)
        await self._settle("abandon", message, state, _modify_request(properties_to_modify), transaction)

    async def defer(
        self,
        message: BrokeredMessage,
        properties_to_modify: Mapping[str, object] | None = None,
        *,
        transaction: Transaction | None = None,
    ) -> None:
        """Defer a message, so that only `receive_deferred` returns it, by its sequence number."""
        state = _modified_state(properties_to_modify, undeliverable_here=True)
        await self._settle("defer", message, state, _modify_request(properties_to_modify), transaction)

    async def dead_letter(
        self,
        message: BrokeredMessage,
        reason: str | None = None,
        description: str | None = None,
        *,
        transaction: Transaction | None = None,
    ) -> None:
        """Move a message to the dead-letter queue, with the reason and description as properties."""
        info: dict[str, object] = {}
        if reason is not None:
            info["DeadLetterReason"] = reason
        if description is not None:
            info["DeadLetterErrorDescription"] = description
        state = Rejected(error=Error(condition=Symbol(DEAD_LETTER_CONDITION), description=description, info=info))
        body = {"deadletter-reason": reason or "", "deadletter-description": description or ""}
        await self._settle("dead_letter", message, state, body, transaction)

    async def release(self, message: BrokeredMessage) -> None:
        """Release a message: unlock it without increasing its delivery count."""
        link, delivery = self._locked_delivery(message)
        if link is not None and delivery is not None and link.failure is None:
            link.release([delivery], RELEASED)
            self.mark_settled(message)
            self._publish_settled("release", message)
        else:
            await self.abandon(message)

    async def _settle(
        self,
        operation: str,
        message: BrokeredMessage,
        state: Composite,
        body: Mapping[str, object],
        transaction: Transaction | None,
    ) -> None:
        try:
            await self._send_settlement(operation, message, state, body, transaction)
        except BaseException as error:
            self._publish_settled(operation, message, transaction, error)
            raise
        self._publish_settled(operation, message, transaction)

    def _publish_settled(
        self,
        operation: str,
        message: BrokeredMessage,
        transaction: Transaction | None = None,
        error: BaseException | None = None,
    ) -> None:
        if (events := self.factory.events).listened_kinds:
            settlement, key = _SETTLEMENT_NAMES[operation], None if transaction is None else transaction.key
            events.publish(Settled(self.path, message, settlement, key, error))

    async def _send_settlement(
        self,
        operation: str,
        message: BrokeredMessage,
        state: Composite,
        body: Mapping[str, object],
        transaction: Transaction | None,
    ) -> None:
        link, delivery = self._locked_delivery(message)
        if transaction is not None:
            if link is None or delivery is None:
                raise MessageNotHeld(f"{message!r} was not received on a link: a transaction cannot {operation} it")
            await transaction.settle(self, message, link, delivery, state)
            return
        link, future = self._settle_on_link(link, delivery, state)
        try:
            await self._await_confirmation(operation, message, body, link, future)
        finally:
            self._cancel_confirmation(link, future)

    def _settle_on_link(
        self, link: ReceiverLink | None, delivery: IncomingDelivery | None, state: Composite
    ) -> tuple[ReceiverLink | None, asyncio.Future[None] | None]:
        """Send the disposition on the message's link; return the link and a future for the confirmation.

        Return None for both if the link has ended.
        """
        if link is None or delivery is None or link.failure is not None or delivery.settled:
            return None, None
        future = link.settle(delivery, state)
        link.deadlines.add(future, self.factory.settings.operation_timeout_s)
        return link, future

    def _cancel_confirmation(self, link: ReceiverLink | None, future: asyncio.Future[None] | None) -> None:
        """Stop waiting for a confirmation."""
        if link is not None and future is not None:
            link.deadlines.remove(future, self.factory.settings.operation_timeout_s)
            future.cancel()

    async def _await_confirmation(
        self,
        operation: str,
        message: BrokeredMessage,
        body: Mapping[str, object],
        link: ReceiverLink | None,
        future: asyncio.Future[None] | None,
    ) -> None:
        """Wait for the confirmation of a disposition. If the link is lost or silent, settle by the lock token."""
        is_retry = link is not None and future is not None
        if future is not None:
            try:
                await future
            except ConnectionLost:
                if self.session_id is not None:
                    raise
            except TimeoutError:
                pass  # settled by the lock token below
            else:
                self.mark_settled(message)
                return
        try:
            await self._settle_by_lock(operation, message, body)
        except ServiceBusError as error:  # if the first attempt was carried out, the lock is gone
            if not is_retry or error.may_have_happened:
                raise
            text = f"an earlier attempt got no response and may have been carried out; then {error}"
            raise error.copy_with(may_have_happened=True, text=text) from error
        self.mark_settled(message)

    async def _settle_by_lock(self, operation: str, message: BrokeredMessage, body: Mapping[str, object]) -> None:
        lock = message.lock_token
        request: dict[str, object] = {
            "disposition-status": _DISPOSITION_STATUSES[operation],
            "lock-tokens": _lock_token_array([lock] if lock is not None else []),
            **body,
        }
        if self.session_id is not None:
            request["session-id"] = self.session_id
        await self._request("com.microsoft:update-disposition", request)

    def _locked_delivery(self, message: BrokeredMessage) -> tuple[ReceiverLink | None, IncomingDelivery | None]:
        self.check_open()
        if message.received.lock is None:
            raise MessageNotHeld(
                f"{message!r} has no lock: it was settled, peeked, or received in receive-and-delete mode"
            )
        handle = message.received.handle
        return handle if isinstance(handle, tuple) else (None, None)

    def mark_settled(self, message: BrokeredMessage) -> None:
        """Mark a message as settled: drop its lock token and stop renewing its lock."""
        message.received.lock = message.received.handle = None
        if self._lock_renewal is not None:
            self._lock_renewal.remove(message)

    # --- lock renewal, deferred messages, peeking ---------------------------------------------------------------------

    async def renew_lock(self, message: BrokeredMessage) -> dt.datetime:
        """Renew the lock of a message; return its new expiry time. Raise MessageLockLost if the lock has expired."""
        return (await self.renew_locks([message]))[0]

    async def renew_locks(self, messages: Sequence[BrokeredMessage]) -> list[dt.datetime]:
        """Renew the locks of several messages; return the new expiry times. If one lock is lost, none is renewed."""
        for message in messages:
            self._locked_delivery(message)
        tokens = [token for message in messages if (token := message.lock_token) is not None]
        response = await self._request(
            "com.microsoft:renew-lock", {"lock-tokens": _lock_token_array(tokens)}, link_name=self._link_name()
        )
        expirations = response.body.get("expirations")
        if not isinstance(expirations, Array) or len(expirations.items) != len(messages):
            raise UnknownAnswer(f"the response of '{self.path}' has no expiry times for the renewed locks")
        for message, expiration in zip(messages, expirations.items, strict=True):
            assert isinstance(expiration, int)
            message.received.locked_until_ms = int(expiration)
        return [message.locked_until_utc for message in messages]

    async def receive_deferred(self, *sequence_numbers: int) -> list[BrokeredMessage]:
        """Receive deferred messages by sequence number.

        Raise MessageNotFound if a message is locked or not deferred.
        """
        self._publish_opened()
        body: dict[str, object] = {
            "sequence-numbers": Array(int, list(sequence_numbers)),
            "receiver-settle-mode": UInt(1 if self.mode is ReceiveMode.PEEK_LOCK else 0),
        }
        if self.session_id is not None:
            body["session-id"] = self.session_id
        response = await self._request("com.microsoft:receive-by-sequence-number", body, link_name=self._link_name())
        received = []
        for entry in _message_entries(response.body.get("messages")):
            token = entry.get("lock-token")
            lock = token.bytes_le if isinstance(token, uuid.UUID) and self.mode is ReceiveMode.PEEK_LOCK else None
            message = BrokeredMessage.decode(_payload_of(entry), lock=lock)
            received.append(message)
            if lock is None:
                self._publish_settled("delete", message)
            if self._lock_renewal is not None and lock is not None:
                self._lock_renewal.add(message)
        return received

    async def peek(self, from_sequence_number: int | None = None) -> BrokeredMessage | None:
        """Return the next message, from a sequence number or after the last message peeked, without locking it."""
        peeked = await self.peek_batch(1, from_sequence_number)
        return peeked[0] if peeked else None

    async def peek_batch(self, max_count: int, from_sequence_number: int | None = None) -> list[BrokeredMessage]:
        """Return up to `max_count` messages in any state, by sequence number, without locking them."""
        start = self._peeked_up_to + 1 if from_sequence_number is None else from_sequence_number
        peeked = await self._peek(max_count, start, {})
        if peeked:
            self._peeked_up_to = peeked[-1].sequence_number
        return peeked

    async def peek_deferred(self, max_count: int, from_sequence_number: int) -> tuple[list[BrokeredMessage], int]:
        """Return deferred messages, and the sequence number to continue from (0: no more messages).

        One request peeks at up to `max_count` messages, beginning at `from_sequence_number`.

        twinbus returns only deferred messages. Other servers return messages in all states, which this method filters.
        """
        peeked = await self._peek(max_count, from_sequence_number, {"twinbus:state": "deferred"})
        deferred = [message for message in peeked if message.state == "deferred"]
        return deferred, peeked[-1].sequence_number + 1 if peeked else 0

    async def _peek(self, max_count: int, start: int, options: Mapping[str, object]) -> list[BrokeredMessage]:
        body: dict[str, object] = {"from-sequence-number": start, "message-count": Int(max_count), **options}
        if self.session_id is not None:
            body["session-id"] = self.session_id
        response = await self._request("com.microsoft:peek-message", body)
        return [
            BrokeredMessage.decode(_payload_of(entry), is_peeked=True)
            for entry in _message_entries(response.body.get("messages"))
        ]

    async def delete_batch(self, max_count: int, before: dt.datetime | None = None) -> int:
        """Delete up to `max_count` of the oldest unlocked messages (with `before`, only messages enqueued before then).

        Return the number of deleted messages.
        """
        body: dict[str, object] = {"message-count": Int(max_count)}
        if before is not None:
            body["enqueued-time-utc"] = to_wire(before)
        if self.session_id is not None:
            body["session-id"] = self.session_id
        response = await self._request("com.microsoft:batch-delete-messages", body)
        value = response.body.get("message-count", 0)
        count = int(value) if isinstance(value, int) else 0
        self.factory.events.publish(SettledInBulk(self.path, "deleted in bulk", count))
        return count

    def _link_name(self) -> str | None:
        link = self._buffer.link
        return link.name if link is not None and link.failure is None else None

    # --- the link -----------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Attach now instead of at the first receive, to get the entity's errors early."""
        await self.link()

    async def link(self) -> ReceiverLink:
        """Return the attached link, for pumps that handle deliveries themselves."""
        self.check_open()
        description = f"opening a receiver of '{self.path}'"
        return await self.factory.run_with_retries(
            description, self._attached_link, timeout_s=None, outcome=OperationOutcome()
        )

    async def _attached_link(self) -> ReceiverLink:
        self.check_open()
        try:
            return await self._buffer.attached_link()
        except ConnectionFailed:
            self.check_open()  # the receiver may have been closed in the meantime
            raise

    def _publish_opened(self) -> None:
        """Publish ReceiverOpened once, before this receiver can settle a message."""
        if self.consumes_messages and not self._has_published_opened:
            self._has_published_opened = True
            self.factory.events.publish(ReceiverOpened(self.path))

    async def _attach(self) -> ReceiverLink:
        self._publish_opened()
        connection = await self.factory.authorized_connection(self.path)
        properties: dict[str, object] = {"com.microsoft:receiver-name": self.factory.settings.client_id}
        link = connection.attach_receiver(
            self.path,
            source=self._source(),
            target=Target(address=self.factory.settings.client_id),
            is_presettled=self.mode is ReceiveMode.RECEIVE_AND_DELETE,
            properties=properties | self._exclusive_properties | self._link_properties(),
        )
        await link.wait_attached()
        return link

    def _source(self) -> Source:
        return Source(address=self.path)

    def _link_properties(self) -> dict[str, object]:
        return {}

    def _attach_limit_s(self) -> float:
        return self.factory.settings.operation_timeout_s

    async def _close(self) -> None:
        if self._lock_renewal is not None:
            self._lock_renewal.close()
        await self._buffer.close()


def _exclusive_link_properties(
    epoch: int | None, silence_limit: dt.timedelta | float | None, *, if_free: bool
) -> dict[str, object]:
    """Return the link properties of an exclusive receiver; none without `epoch`."""
    if epoch is None:
        return {}
    properties: dict[str, object] = {"com.microsoft:epoch": epoch}
    if silence_limit is not None:
        properties |= silence_limit_property(duration_s(silence_limit))
    if if_free:
        properties["twinbus:claim-if-free"] = True
    return properties


def _modified_state(changes: Mapping[str, object] | None, *, undeliverable_here: bool) -> Modified:
    if not changes:
        return Modified(delivery_failed=True, undeliverable_here=undeliverable_here)
    annotations: dict[object, object] = {Symbol(name): to_wire(value) for name, value in changes.items()}
    return Modified(delivery_failed=True, undeliverable_here=undeliverable_here, message_annotations=annotations)


def _modify_request(changes: Mapping[str, object] | None) -> dict[str, object]:
    return {"properties-to-modify": {name: to_wire(value) for name, value in changes.items()}} if changes else {}


def _lock_token_array(tokens: Sequence[uuid.UUID]) -> Array:
    return Array(uuid.UUID, list(tokens))


def _message_entries(value: object) -> list[dict[object, object]]:
    """Return the messages in a response, each as a map."""
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def _payload_of(entry: Mapping[object, object]) -> bytes:
    payload = entry.get("message")
    if not isinstance(payload, bytes):
        raise UnknownAnswer("a message in the response is not binary")
    return payload
