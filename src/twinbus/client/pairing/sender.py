"""The sender of a paired factory: sends to the primary, and parks messages while the primary is down.

All sends of a paired factory pass through this sender. Owns: the first attempt at a healthy primary, which is
the same as an ordinary sender's. Everything after that attempt is in `send_operation`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from twinbus.amqp.message import Message
from twinbus.client.pairing.backlog import rewriting
from twinbus.client.pairing.backlog.rotation import QueueChoice
from twinbus.client.pairing.errors import FailedOver
from twinbus.client.pairing.failover.entity_health import EntityState
from twinbus.client.pairing.send_operation import SendOperation, session_ids_of
from twinbus.client.retry import Backoff, RetryPolicy
from twinbus.client.sender import MessageSender
from twinbus.model.errors import FailureClass, MessageTooLarge, ServiceBusError
from twinbus.model.message import BATCH_FORMAT, BrokeredMessage, encode_batch

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from twinbus.client.pairing.failover.entity_health import EntityHealth
    from twinbus.client.pairing.pairing import Pairing
    from twinbus.client.transaction import Transaction

_HEALTHY: Final = EntityState.HEALTHY


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconnectOnce(RetryPolicy):
    """Retry once, without a pause. If the entity has failed over, do not retry: the message is parked at once.

    When the connection is lost, many sends fail at the same time. If each of these sends tried to reconnect to a silent
    primary until its time limit, messages would be parked late.
    """

    max_retries: int = 1
    first_pause_s: float = 0.0
    waits_for_busy: bool = False
    health: EntityHealth

    def pause_s(self, error: ServiceBusError, failures: int) -> float | None:
        """Return the pause before the retry, or None if sends no longer go to the primary."""
        # Not super(): dataclass(slots=True) creates a new class, and super() would refer to the original one.
        return RetryPolicy.pause_s(self, error, failures) if self.health.accepts_sends else None


class SendAvailabilitySender(MessageSender):
    """A sender for one entity of a paired factory."""

    def __init__(self, pairing: Pairing, path: str, *, via: str | None = None) -> None:
        """Create a sender for `path`. Called by a paired factory."""
        super().__init__(pairing.primary, path, via=via)
        self._pairing = pairing
        self.health = pairing.health_of(self.path)
        """The health of the entity, shared by all senders of the factory."""
        self._fragments_down = self.health.fragment_outages.down
        self.queue_choice: QueueChoice = QueueChoice(pairing.rotation)
        """The choice of the backlog queue for this sender's messages."""
        self.retry_policy = ReconnectOnce(health=self.health)
        """The retry policy of an attempt at the primary."""
        limit_s = pairing.primary.settings.operation_timeout_s
        self._time_limits_s = (limit_s, pairing.primary_timeout_s(limit_s))
        """The default time limits of an operation and of its attempt at the primary."""

    async def _send_encoded(
        self,
        payload: bytes,
        message_format: int,
        messages: Sequence[BrokeredMessage],
        transaction: Transaction | None,
        timeout_s: float | None,
    ) -> None:
        for message in messages:
            if message.properties:
                rewriting.check_property_names(message.properties)
        health, is_behind = self.health, self._pairing.spool is not None and self.is_behind_spool(messages)
        is_held = bool(self._fragments_down) and health.fragment_outages.outage_for(messages) is not None
        if transaction is not None:
            self._check_fit_for_transactions(is_held=is_held, is_behind_spool=is_behind)
            await super()._send_encoded(payload, message_format, messages, transaction, None)
            return
        failure = None
        limit_s, attempt_s = (
            self._time_limits_s if timeout_s is None else (timeout_s, self._pairing.primary_timeout_s(timeout_s))
        )
        deadline_s = asyncio.get_running_loop().time() + limit_s
        if health.state is _HEALTHY and not is_behind and not is_held:
            try:
                await self.deliver(payload, message_format, timeout_s=attempt_s, policy=self.retry_policy)
            except ServiceBusError as error:
                failure = error
            else:
                health.send_succeeded()
                if self.factory.events.listened_kinds:
                    self.publish_sent(messages)
                return
        await self._run_send_operation(
            payload, message_format, messages, failure, (deadline_s, limit_s), is_behind_spool=is_behind
        )

    async def _run_send_operation(
        self,
        payload: bytes,
        message_format: int,
        messages: Sequence[BrokeredMessage],
        failure: ServiceBusError | None,
        deadline_and_limit_s: tuple[float, float],
        *,
        is_behind_spool: bool,
    ) -> None:
        """Continue a send that the primary has not accepted.

        `deadline_and_limit_s` holds the deadline of the operation and its time limit.
        """
        if failure is None:
            self.check_open()
        deadline_s, limit_s = deadline_and_limit_s
        operation = SendOperation(
            self._pairing,
            self,
            payload,
            message_format,
            messages,
            deadline_s=deadline_s,
            limit_s=limit_s,
        )
        if is_behind_spool and self.health.state is not EntityState.UNREACHABLE:
            await operation.spool_behind()
        else:
            await operation.run(failure)

    def is_behind_spool(self, messages: Sequence[BrokeredMessage]) -> bool:
        """Return whether the spool holds earlier messages of the same sessions.

        New messages must not overtake spooled messages.
        """
        spool = self._pairing.spool
        return spool is not None and not spool.is_empty and spool.holds_sessions(self.path, session_ids_of(messages))

    def _check_fit_for_transactions(self, *, is_held: bool, is_behind_spool: bool) -> None:
        self._check_not_failed_over("a transaction needs the primary and cannot be parked; nothing was sent")
        if is_held:
            raise FailedOver(f"a fragment of '{self.path}' is down, and the transaction needs it; nothing was sent")
        if is_behind_spool:
            raise FailedOver(
                f"the session has messages in the spool for '{self.path}': retry the transaction when they are sent"
            )

    async def send_spooled(
        self,
        payload: bytes,
        message_format: int,
        messages: Sequence[BrokeredMessage],
        *,
        may_have_arrived: bool,
        stored: Collection[int] = (),
    ) -> None:
        """Send messages from the spool to the primary, or park them; do not spool them again.

        The messages at the batch positions `stored` were stored by earlier attempts.
        """
        limit_s = self.factory.settings.operation_timeout_s
        operation = SendOperation(
            self._pairing,
            self,
            payload,
            message_format,
            messages,
            deadline_s=asyncio.get_running_loop().time() + limit_s,
            limit_s=limit_s,
        )
        await operation.run_from_spool(may_have_arrived=may_have_arrived, stored=stored)

    def _resend_payloads(self, payload: bytes, message_format: int, max_bytes: int | None) -> list[bytes]:
        """Mark a payload as a possible duplicate, because an earlier attempt may have stored it.

        A batch that is too large with its marks is split, in order. Raise MessageTooLarge if a single message is too
        large.
        """
        marked = rewriting.mark_possible_duplicate(payload, message_format)
        if max_bytes is None or len(marked) <= max_bytes:
            return [marked]
        messages = Message(payload).data if message_format == BATCH_FORMAT else []
        if len(messages) < 2:  # noqa: PLR2004  # a single message cannot be split
            raise self._too_large_with_mark_error(len(marked), max_bytes)
        middle = len(messages) // 2
        halves = (messages[:middle], messages[middle:])
        batches = [encode_batch(half, BrokeredMessage.decode(half[0])) for half in halves]
        return [copy for batch in batches for copy in self._resend_payloads(batch, BATCH_FORMAT, max_bytes)]

    def check_marked_size(self, marked: bytes, _message_format: int) -> None:
        """Raise MessageTooLarge if a marked message or batch is larger than the entity accepts."""
        link_max_bytes = None if self._link is None else self._link.max_message_bytes
        max_bytes = self._pairing.max_parked_bytes if link_max_bytes is None else link_max_bytes
        if len(marked) > max_bytes:
            raise self._too_large_with_mark_error(len(marked), max_bytes)

    def _too_large_with_mark_error(self, size: int, max_bytes: int) -> MessageTooLarge:
        return MessageTooLarge(
            f"the primary did not answer, and the message for '{self.path}' may have been stored. It is not sent again:"
            f" marked as a possible duplicate it has {size:,} bytes, and the entity accepts {max_bytes:,}",
            may_have_happened=True,
        )

    def park(self, payload: bytes, message_format: int, *, is_possible_duplicate: bool) -> bytes:
        """Return a message in its parked form. Raise MessageCannotBeParked if that form is too large."""
        parked = rewriting.park(payload, message_format, self.path, is_possible_duplicate=is_possible_duplicate)
        rewriting.check_parked_size(parked, self._pairing.max_parked_bytes, message_format)
        return parked

    def can_be_parked(self, messages: BrokeredMessage | Iterable[BrokeredMessage]) -> bool:
        """Return whether a message, or a batch, can also be sent while the entity is failed over.

        Each message must be small enough to be parked. A batch that is too large to be parked whole is split.
        """
        now_ms = self.factory.settings.clock.wall_ms()
        batch = [messages] if isinstance(messages, BrokeredMessage) else messages
        try:
            for message in batch:
                rewriting.check_property_names(message.properties)
                self.park(message.encode(now_ms), 0, is_possible_duplicate=True)
        except ServiceBusError:
            return False
        return True

    async def _schedule_one(self, message: BrokeredMessage) -> int:
        """Schedule a message and return its sequence number.

        While the entity is failed over, the message is parked with its scheduled time, and the number is 0.
        """
        rewriting.check_property_names(message.properties)
        (limit_s, attempt_s), failure = self._time_limits_s, None
        deadline_s = asyncio.get_running_loop().time() + limit_s
        payload = message.encode(self.factory.settings.clock.wall_ms())
        health, is_behind = self.health, self.is_behind_spool([message])
        if health.accepts_sends and not is_behind and health.fragment_outages.outage_for([message]) is None:
            try:
                number = await self._schedule_at_primary(message, deadline_s, attempt_s)
            except ServiceBusError as error:
                if not self._pairing.triggers_failover(error):
                    raise
                failure = error
            else:
                health.send_succeeded()
                return number
        await self._run_send_operation(payload, 0, [message], failure, (deadline_s, limit_s), is_behind_spool=is_behind)
        return 0

    async def _schedule_at_primary(self, message: BrokeredMessage, deadline_s: float, attempt_s: float) -> int:
        """Schedule a message at the primary. While the primary is busy and there is time, wait and retry."""
        loop, pauses = asyncio.get_running_loop(), Backoff(self.factory.settings.retry_policy)
        while True:
            limit_s = min(attempt_s, deadline_s - loop.time())
            try:
                return (await self._schedule([message], timeout_s=limit_s, policy=self.retry_policy))[0]
            except ServiceBusError as error:
                is_busy = self._pairing.class_of(error) is FailureClass.THROTTLED
                pause_s = pauses.next_busy_pause_s(error, deadline_s - loop.time()) if is_busy else None
                if pause_s is None:
                    raise
            await asyncio.sleep(pause_s)

    async def cancel_scheduled(self, *sequence_numbers: int) -> None:
        """Cancel scheduled messages.

        Raise FailedOver if the entity is failed over, or if a message was parked and so has no sequence number at the
        primary.
        """
        if 0 in sequence_numbers:
            raise FailedOver(
                f"a message for '{self.path}' was scheduled while the entity was failed over: it is parked with its"
                " scheduled time, and cannot be cancelled"
            )
        self._check_not_failed_over("its scheduled messages cannot be cancelled now")
        await super().cancel_scheduled(*sequence_numbers)

    def _check_not_failed_over(self, consequence: str) -> None:
        if self.health.state in (EntityState.FAILED_OVER, EntityState.UNREACHABLE):
            raise FailedOver(f"'{self.path}' is failed over: {consequence}")
