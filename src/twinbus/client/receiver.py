"""Receivers: messages from a queue, a subscription, or a sub-queue of one.

    async for message in receiver:
        handle(message.body)
        await receiver.complete(message)

Owns: what is said of each message. A message received under a lock can be settled as long as the lock lasts, also when
the connection was lost meanwhile. How messages come is its `inbox`'s affair.
"""

from __future__ import annotations

import uuid
from enum import Enum
from typing import TYPE_CHECKING, Final

from twinbus.amqp.outcomes import ACCEPTED, RELEASED, Modified, Rejected
from twinbus.amqp.performatives import Error
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

    from twinbus.amqp.composite import Composite
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
"""How an event names each settlement."""
_DISPOSITION_STATUSES: Final = {
    "complete": "completed",
    "abandon": "abandoned",
    "defer": "defered",
    "dead_letter": "suspended",
}


class ReceiveMode(Enum):
    """What receiving a message does to it."""

    PEEK_LOCK = "peek-lock"
    """It is the receiver's for a time, and gone when it is completed."""
    RECEIVE_AND_DELETE = "receive-and-delete"
    """It is gone: also if the receiver fails before it has worked on it."""


class MessageReceiver(ClientEntity):
    """Receives from one entity."""

    session_id: str | None = None
    """Of a `MessageSession`."""
    consumes_messages = True
    """A message that is received without a lock is gone: not so for one who browses."""

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
        """Made by a factory.

        `prefetch` messages are asked for ahead. `auto_renew` is how long the locks of received messages are renewed,
        while nothing was said of them. With an `epoch`: after how much silence another receiver may have the entity
        (`silence_limit`), and whether it is claimed only if nobody has it (`if_free`).
        """
        if not 0 <= prefetch <= MAX_PREFETCH:
            raise InvalidArgument(f"prefetch is {prefetch}; it can be 0 to {MAX_PREFETCH}")
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
        timeout: dt.timedelta | float | None = None,  # noqa: ASYNC109  # how long a message is waited for
    ) -> BrokeredMessage | None:
        """The next message; None if there was none in that time (the factory's operation timeout, if not said)."""
        received = await self.receive_batch(1, timeout)
        return received[0] if received else None

    async def receive_batch(
        self,
        max_count: int,
        timeout: dt.timedelta | float | None = None,  # noqa: ASYNC109
    ) -> list[BrokeredMessage]:
        """Up to `max_count` messages: as soon as there are any, those that there are. None after the timeout."""
        if max_count < 1:
            raise InvalidArgument(f"max_count is {max_count}; it must be at least 1")
        self.check_open()
        limit_s = self.factory.settings.operation_timeout_s if timeout is None else duration_s(timeout)
        taken = await self._buffer.take(max_count, limit_s)
        settled = [delivery for _, delivery in taken if delivery.settled]
        if settled:
            taken[0][0].mark_taken(settled)  # they came on one link
        return [self._decode_delivery(link, delivery) for link, delivery in taken]

    async def __aiter__(self) -> AsyncIterator[BrokeredMessage]:
        """All messages, for as long as the receiver is open. One at a time: whoever stops leaves none locked."""
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
        """It was dealt with, and is gone. In a transaction: once that is committed."""
        await self._settle("complete", message, ACCEPTED, {}, transaction)

    async def complete_batch(self, messages: Sequence[BrokeredMessage]) -> None:
        """The same for several; the first error, if some cannot be, after all others are."""
        said: list[tuple[BrokeredMessage, ReceiverLink | None, asyncio.Future[None] | None]] = []
        errors: list[ServiceBusError] = []
        try:
            for message in messages:
                try:
                    said.append((message, *self._settle_on_link(*self._locked_delivery(message), ACCEPTED)))
                except ServiceBusError as error:
                    errors.append(error)
            for message, link, future in said:
                try:
                    await self._await_confirmation("complete", message, {}, link, future)
                except ServiceBusError as error:
                    errors.append(error)
                    self._publish_settled("complete", message, error=error)
                else:
                    self._publish_settled("complete", message)
        finally:
            for _, link, future in said:
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
        """It goes back, to be received again, with some properties changed."""
        state = _modified_state(properties_to_modify, undeliverable_here=False)
        await self._settle("abandon", message, state, _modify_request(properties_to_modify), transaction)

    async def defer(
        self,
        message: BrokeredMessage,
        properties_to_modify: Mapping[str, object] | None = None,
        *,
        transaction: Transaction | None = None,
    ) -> None:
        """It is put aside, and received by its sequence number only: `receive_deferred`."""
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
        """It goes to the dead-letter queue, with the reason among its properties."""
        info: dict[str, object] = {}
        if reason is not None:
            info["DeadLetterReason"] = reason
        if description is not None:
            info["DeadLetterErrorDescription"] = description
        state = Rejected(error=Error(condition=Symbol(DEAD_LETTER_CONDITION), description=description, info=info))
        body = {"deadletter-reason": reason or "", "deadletter-description": description or ""}
        await self._settle("dead_letter", message, state, body, transaction)

    async def release(self, message: BrokeredMessage) -> None:
        """It goes back as if it had never been received: not counted as a delivery."""
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
            how, key = _SETTLEMENT_NAMES[operation], None if transaction is None else transaction.key
            events.publish(Settled(self.path, message, how, key, error))

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
        """Say on its link what becomes of a message, where there is one; the link, and its confirmation."""
        if link is None or delivery is None or link.failure is not None or delivery.settled:
            return None, None
        future = link.settle(delivery, state)
        link.deadlines.add(future, self.factory.settings.operation_timeout_s)
        return link, future

    def _cancel_confirmation(self, link: ReceiverLink | None, future: asyncio.Future[None] | None) -> None:
        """Nobody waits for a confirmation any more."""
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
        """Wait for what was told on its link; tell it by its lock where that was lost, or is silent."""
        is_again = link is not None and future is not None
        if future is not None:
            try:
                await future
            except ConnectionLost:
                if self.session_id is not None:
                    raise
            except TimeoutError:
                pass  # asked again, by its lock
            else:
                self.mark_settled(message)
                return
        try:
            await self._settle_by_lock(operation, message, body)
        except ServiceBusError as error:  # if the first try was carried out, its lock is gone
            if not is_again or error.may_have_happened:
                raise
            text = f"an earlier attempt got no answer and may have been carried out; then {error}"
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
                f"{message!r} is under no lock: it was settled, peeked, or deleted when it was received"
            )
        handle = message.received.handle
        return handle if isinstance(handle, tuple) else (None, None)

    def mark_settled(self, message: BrokeredMessage) -> None:
        """Nothing more can be said of it."""
        message.received.lock = message.received.handle = None
        if self._lock_renewal is not None:
            self._lock_renewal.remove(message)

    # --- asking -------------------------------------------------------------------------------------------------------

    async def renew_lock(self, message: BrokeredMessage) -> dt.datetime:
        """Have a message for longer; until when. MessageLockLost if it is too late."""
        return (await self.renew_locks([message]))[0]

    async def renew_locks(self, messages: Sequence[BrokeredMessage]) -> list[dt.datetime]:
        """The same for several: if one is lost, none is renewed."""
        for message in messages:
            self._locked_delivery(message)
        tokens = [token for message in messages if (token := message.lock_token) is not None]
        answer = await self._request(
            "com.microsoft:renew-lock", {"lock-tokens": _lock_token_array(tokens)}, link_name=self._link_name()
        )
        expirations = answer.body.get("expirations")
        if not isinstance(expirations, Array) or len(expirations.items) != len(messages):
            raise UnknownAnswer(f"'{self.path}' renewed locks and did not say until when")
        for message, expiration in zip(messages, expirations.items, strict=True):
            assert isinstance(expiration, int)
            message.received.locked_until_ms = int(expiration)
        return [message.locked_until_utc for message in messages]

    async def receive_deferred(self, *sequence_numbers: int) -> list[BrokeredMessage]:
        """Deferred messages, by their numbers; MessageNotFound if one is not deferred, or somebody has it."""
        self._publish_opened()
        body: dict[str, object] = {
            "sequence-numbers": Array(int, list(sequence_numbers)),
            "receiver-settle-mode": UInt(1 if self.mode is ReceiveMode.PEEK_LOCK else 0),
        }
        if self.session_id is not None:
            body["session-id"] = self.session_id
        answer = await self._request("com.microsoft:receive-by-sequence-number", body, link_name=self._link_name())
        received = []
        for entry in _message_entries(answer.body.get("messages")):
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
        """The next message, without a lock: from a number on, or after the last that was peeked at."""
        peeked = await self.peek_batch(1, from_sequence_number)
        return peeked[0] if peeked else None

    async def peek_batch(self, max_count: int, from_sequence_number: int | None = None) -> list[BrokeredMessage]:
        """Up to `max_count` messages, whatever their state, in the order of their numbers."""
        start = self._peeked_up_to + 1 if from_sequence_number is None else from_sequence_number
        peeked = await self._peek(max_count, start, {})
        if peeked:
            self._peeked_up_to = peeked[-1].sequence_number
        return peeked

    async def peek_deferred(self, max_count: int, from_sequence_number: int) -> tuple[list[BrokeredMessage], int]:
        """The deferred ones among the next `max_count` messages, and the number to go on from; 0 if these were all.

        twinbus looks at deferred messages only; another server gives all, of which most are none of them.
        """
        peeked = await self._peek(max_count, from_sequence_number, {"twinbus:state": "deferred"})
        deferred = [message for message in peeked if message.state == "deferred"]
        return deferred, peeked[-1].sequence_number + 1 if peeked else 0

    async def _peek(self, max_count: int, start: int, options: Mapping[str, object]) -> list[BrokeredMessage]:
        body: dict[str, object] = {"from-sequence-number": start, "message-count": Int(max_count), **options}
        if self.session_id is not None:
            body["session-id"] = self.session_id
        answer = await self._request("com.microsoft:peek-message", body)
        return [
            BrokeredMessage.decode(_payload_of(entry), is_peeked=True)
            for entry in _message_entries(answer.body.get("messages"))
        ]

    async def delete_batch(self, max_count: int, before: dt.datetime | None = None) -> int:
        """Delete up to `max_count` of the oldest messages that nobody has; how many were."""
        body: dict[str, object] = {"message-count": Int(max_count)}
        if before is not None:
            body["enqueued-time-utc"] = to_wire(before)
        if self.session_id is not None:
            body["session-id"] = self.session_id
        answer = await self._request("com.microsoft:batch-delete-messages", body)
        found = answer.body.get("message-count", 0)
        count = int(found) if isinstance(found, int) else 0
        self.factory.events.publish(SettledInBulk(self.path, "deleted in bulk", count))
        return count

    def _link_name(self) -> str | None:
        link = self._buffer.link
        return link.name if link is not None and link.failure is None else None

    # --- the link -----------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Attach now instead of with the first receive: what is wrong with the entity is known then."""
        await self.link()

    async def link(self) -> ReceiverLink:
        """Its link, attached: for a pump, which takes messages as they come."""
        self.check_open()
        what = f"opening a receiver of '{self.path}'"
        return await self.factory.run_with_retries(
            what, self._attached_link, timeout_s=None, outcome=OperationOutcome()
        )

    async def _attached_link(self) -> ReceiverLink:
        self.check_open()
        try:
            return await self._buffer.attached_link()
        except ConnectionFailed:
            self.check_open()  # it may have been closed meanwhile
            raise

    def _publish_opened(self) -> None:
        """Publish that a receiver may soon settle messages."""
        if self.consumes_messages and not self._has_published_opened:
            self._has_published_opened = True
            self.factory.events.publish(ReceiverOpened(self.path))

    async def _attach(self) -> ReceiverLink:
        self._publish_opened()
        conversation = await self.factory.authorized_connection(self.path)
        properties: dict[str, object] = {"com.microsoft:receiver-name": self.factory.settings.client_id}
        link = conversation.attach_receiver(
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
    """The properties of a link that claims its entity."""
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
    """The messages of an answer, each a map."""
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def _payload_of(entry: Mapping[object, object]) -> bytes:
    payload = entry.get("message")
    if not isinstance(payload, bytes):
        raise UnknownAnswer("an answer has a message that is no binary")
    return payload
