"""Senders: send messages to a queue or a topic.

    await sender.send(BrokeredMessage("two pounds of apples"))

`send` returns once the namespace has stored the message, and raises otherwise. Owns the sender's link, which is
attached on first use and again after the link is lost. Senders of paired namespaces are in `pairing.sender`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from twinbus.amqp.message import Message
from twinbus.amqp.terminus import Source, Target
from twinbus.amqp.types import Array
from twinbus.client.client_entity import ClientEntity
from twinbus.client.errors import ConnectionFailed, TimedOut, UnknownAnswer
from twinbus.client.events import ScheduleCancelled, SendFailed, Sent
from twinbus.client.retry import MAY_BE_STORED, NOT_SENT, OperationOutcome, SharedAttempt, adjusted_send_error
from twinbus.model.errors import PartlyStored, ServiceBusError
from twinbus.model.message import BATCH_FORMAT, BrokeredMessage, encode_batch
from twinbus.model.times import duration_s

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterable, Sequence

    from twinbus.amqp.codec.composite import Composite
    from twinbus.client.amqp.sender_link import SenderLink
    from twinbus.client.factory import MessagingFactory
    from twinbus.client.retry import RetryPolicy
    from twinbus.client.transaction import Transaction


class MessageSender(ClientEntity):
    """Sender of messages to one entity."""

    def __init__(self, factory: MessagingFactory, path: str, *, via: str | None = None) -> None:
        """Create a sender; the first send attaches it. With `via`, messages go through that entity to `path`."""
        super().__init__(factory, path)
        self.via = via
        self._link: SenderLink | None = None
        limit_s = factory.settings.operation_timeout_s
        self._attach_attempt = SharedAttempt(f"attaching a sender to '{self.path}'", self._attach, limit_s)

    async def send(
        self,
        message: BrokeredMessage,
        *,
        transaction: Transaction | None = None,
        timeout: dt.timedelta | float | None = None,  # noqa: ASYNC109  # for the operation with all its retries
    ) -> None:
        """Send a message; when this returns, the namespace has stored it (in a transaction: at the commit)."""
        payload = message.encode(self.factory.settings.clock.wall_ms())
        try:
            await self._send_encoded(
                payload, 0, [message], transaction, None if timeout is None else duration_s(timeout)
            )
        except BaseException as error:
            self._publish_failed([message], error)
            raise

    async def send_batch(
        self,
        messages: Iterable[BrokeredMessage],
        *,
        transaction: Transaction | None = None,
        timeout: dt.timedelta | float | None = None,  # noqa: ASYNC109
    ) -> None:
        """Send messages as one batch, stored together or not at all. Raise MessageTooLarge if they do not fit."""
        batch = list(messages)
        if not batch:
            return
        now_ms = self.factory.settings.clock.wall_ms()
        payload = encode_batch([message.encode(now_ms) for message in batch], batch[0])
        try:
            await self._send_encoded(
                payload, BATCH_FORMAT, batch, transaction, None if timeout is None else duration_s(timeout)
            )
        except BaseException as error:
            self._publish_failed(batch, error)
            raise

    async def schedule(self, message: BrokeredMessage, when: dt.datetime) -> int:
        """Schedule a message for `when`; return the sequence number with which it can be cancelled."""
        scheduled = message.clone()
        scheduled.scheduled_enqueue_time_utc = when
        try:
            return await self._schedule_one(scheduled)
        except BaseException as error:
            self._publish_failed([scheduled], error)
            raise

    async def _schedule_one(self, message: BrokeredMessage) -> int:
        return (await self._schedule([message]))[0]

    async def _schedule(
        self,
        messages: Sequence[BrokeredMessage],
        *,
        timeout_s: float | None = None,
        policy: RetryPolicy | None = None,
    ) -> list[int]:
        now_ms = self.factory.settings.clock.wall_ms()

        def body(is_again: bool) -> dict[str, object]:  # noqa: FBT001  # the signature that `_request` calls
            entries = []
            for message in messages:
                keys = {"session-id": message.session_id, "partition-key": message.partition_key}
                entry: dict[str, object] = {name: key for name, key in keys.items() if key is not None}
                payload = message.encode(now_ms)
                entry["message-id"] = str(message.message_id)
                entry["message"] = self._resend_payloads(payload, 0, None)[0] if is_again else payload
                entries.append(entry)
            return {"messages": entries}

        response = await self._request("com.microsoft:schedule-message", body, timeout_s=timeout_s, policy=policy)
        numbers = response.body.get("sequence-numbers")
        if not isinstance(numbers, Array) or len(numbers.items) != len(messages):
            raise UnknownAnswer(f"the response of '{self.path}' has no sequence numbers for the scheduled messages")
        scheduled = [number for number in numbers.items if isinstance(number, int)]
        self.factory.events.publish(Sent(self.path, messages, scheduled))
        return scheduled

    async def cancel_scheduled(self, *sequence_numbers: int) -> None:
        """Cancel scheduled messages. Raise MessageNotFound, and cancel none, if one of them does not exist."""
        await self._request(
            "com.microsoft:cancel-scheduled-message", {"sequence-numbers": Array(int, list(sequence_numbers))}
        )
        self.factory.events.publish(ScheduleCancelled(self.path, sequence_numbers))

    async def open(self) -> None:
        """Attach now instead of at the first send, to get the entity's errors early."""
        await self.link()

    async def link(self, policy: RetryPolicy | None = None) -> SenderLink:
        """Return the attached link, for pumps that send without waiting for each message."""
        description = f"opening a sender to '{self.path}'"
        return await self.factory.run_with_retries(
            description, self._attached_link, timeout_s=None, policy=policy, outcome=OperationOutcome()
        )

    async def max_message_bytes(self) -> int | None:
        """Return the size of the largest message or batch that the entity accepts; None if the entity sets no limit."""
        return (await self.link()).max_message_bytes

    def can_be_parked(self, messages: BrokeredMessage | Iterable[BrokeredMessage]) -> bool:  # noqa: ARG002
        """Return whether a message, or a batch, can also be sent while the entity is failed over.

        The result is True if each message is small enough to be parked, and False if the factory is not paired.
        """
        return False

    # --- implementation -----------------------------------------------------------------------------------------------

    async def _send_encoded(
        self,
        payload: bytes,
        message_format: int,
        messages: Sequence[BrokeredMessage],
        transaction: Transaction | None,
        timeout_s: float | None,
    ) -> None:
        if transaction is not None:
            await transaction.send(self, payload, message_format)
        else:
            try:
                await self.deliver(payload, message_format, timeout_s=timeout_s)
            except PartlyStored as error:
                self.publish_sent([messages[position] for position in error.stored])
                raise
        self.publish_sent(messages, transaction)

    def publish_sent(
        self,
        messages: Sequence[BrokeredMessage],
        transaction: Transaction | None = None,
        *,
        is_from_spool: bool = False,
    ) -> None:
        """Publish a Sent event, because the entity has stored the messages."""
        if (events := self.factory.events).listened_kinds:
            key = None if transaction is None else transaction.key
            events.publish(Sent(self.path, messages, (), key, is_from_spool))

    def _publish_failed(self, messages: Sequence[BrokeredMessage], error: BaseException) -> None:
        if (events := self.factory.events).listened_kinds:
            stored = frozenset(getattr(error, "stored", ()))
            others = [message for position, message in enumerate(messages) if position not in stored]
            events.publish(SendFailed(self.path, others, error))

    async def deliver(
        self,
        payload: bytes,
        message_format: int = 0,
        *,
        timeout_s: float | None = None,
        policy: RetryPolicy | None = None,
    ) -> None:
        """Send an encoded message or batch, with retries according to the policy."""
        link, first_failure = self._link, None
        if self.is_closed:
            self.check_open()
        limit_s = self.factory.settings.operation_timeout_s if timeout_s is None else timeout_s
        deadline_s = asyncio.get_running_loop().time() + limit_s
        if link is not None and link.failure is None:
            future = link.send(payload, message_format)
            link.deadlines.add(future, limit_s)
            try:
                await future
            except TimeoutError:
                raise self._timeout_error(limit_s, has_left=not link.withdraw(future)) from None
            except asyncio.CancelledError:
                link.withdraw(future)
                raise
            except ServiceBusError as error:
                if not error.is_retriable:
                    raise
                first_failure = error
            else:
                return
            finally:
                link.deadlines.remove(future, limit_s)
        left_s = max(0.0, deadline_s - asyncio.get_running_loop().time())
        await self._deliver_with_retries(payload, message_format, first_failure, left_s, policy)

    async def _deliver_with_retries(
        self,
        payload: bytes,
        message_format: int,
        first_failure: ServiceBusError | None,
        timeout_s: float,
        policy: RetryPolicy | None,
    ) -> None:
        """Send within the time left, if there is no link yet or the first attempt failed with `first_failure`."""
        failed, outcome = (
            first_failure,
            OperationOutcome(may_have_happened=first_failure is not None and first_failure.may_have_happened),
        )

        async def attempt() -> None:
            nonlocal failed
            if failed is not None:  # the failed send counts as the first attempt
                failure, failed = failed, None
                raise failure
            link = await self._attached_link()
            copies = [payload]
            if outcome.may_have_happened:
                copies = self._resend_payloads(payload, message_format, link.max_message_bytes)
            for number, part in enumerate(copies):
                future = link.send(part, message_format)
                try:
                    await future
                except asyncio.CancelledError:
                    outcome.may_have_happened = not link.withdraw(future) or outcome.may_have_happened
                    raise
                except ServiceBusError as error:
                    if outcome.may_have_happened and isinstance(error, PartlyStored):
                        _adjust_positions(error, copies[:number])
                    outcome.note_failure(error)
                    raise

        try:
            await self.factory.run_with_retries(
                f"a send to '{self.path}'", attempt, timeout_s=timeout_s, policy=policy, outcome=outcome
            )
        except ServiceBusError as error:
            adjusted = adjusted_send_error(error, may_have_happened=outcome.may_have_happened)
            if adjusted is error:
                raise
            raise adjusted from error

    def _resend_payloads(self, payload: bytes, message_format: int, max_bytes: int | None) -> list[bytes]:  # noqa: ARG002
        """Return the payloads to send, in order, after an attempt that may have succeeded.

        If the entity limits the size of a payload, the limit is `max_bytes`. An ordinary sender repeats the payload,
        which receivers and duplicate detection recognise by its message id.
        """
        return [payload]

    def _timeout_error(self, limit_s: float, *, has_left: bool) -> TimedOut:
        text = f"a send to '{self.path}' took longer than {limit_s:g} s: {MAY_BE_STORED if has_left else NOT_SENT}"
        return TimedOut(text, may_have_happened=has_left)

    async def send_in_transaction(self, state: Composite, payload: bytes, message_format: int) -> None:
        """Send in a transaction, without retries, because a transaction ends with its connection."""
        link = await self._attached_link()
        await link.send(payload, message_format, state)

    async def _attached_link(self) -> SenderLink:
        """Return the link. Attach it if necessary; concurrent callers share one attempt."""
        self.check_open()
        link = self._link
        if link is not None and link.failure is None:
            return link
        try:
            return await self._attach_attempt.result()
        except ConnectionFailed:
            self.check_open()  # the sender may have been closed in the meantime
            raise

    async def _attach(self) -> SenderLink:
        entity = self.via or self.path
        connection = await self.factory.authorized_connection(entity)
        properties: dict[str, object] = {}
        if self.via is not None:
            await self.factory.authorized_connection(self.path)
            properties["com.microsoft:transfer-destination-address"] = self.path
        link = connection.attach_sender(
            entity,
            target=Target(address=entity),
            source=Source(address=self.factory.settings.client_id),
            properties=properties or None,
        )
        await link.wait_attached()
        self._link = link
        return link

    async def _close(self) -> None:
        self._attach_attempt.cancel()
        if self._link is not None:
            self._link.detach()


def _adjust_positions(error: PartlyStored, stored_parts: Sequence[bytes]) -> None:
    """Convert the positions in the error of one part to positions in the whole batch, which was sent again in parts.

    The messages of `stored_parts`, which were sent before, are stored. Every other message of the batch may have been
    stored by the attempt that got no response.
    """
    first = sum(len(Message(part).data) for part in stored_parts)
    error.stored = [*range(first), *(first + position for position in error.stored)]
    error.unsure = None
