"""A parked message that a pump has received, and its settlement in the backlog queue.

Owns: settlement. A message that was delivered on the link is settled on the link; a deferred message that was received
by its number is settled by its lock token. Either way, messages are settled in batches. Knows nothing of destinations.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from twinbus.amqp.codec.performatives import Error
from twinbus.amqp.outcomes import RELEASED, Modified, Rejected
from twinbus.amqp.types import Symbol
from twinbus.client.pairing.backlog.rewriting import mark_possible_duplicate
from twinbus.client.pairing.syphon.deferred_requests import (
    STATUS_COMPLETED,
    STATUS_DEAD_LETTERED,
    STATUS_DEFERRED,
    possible_duplicate_change,
)
from twinbus.model.description import FRAGMENT_SHIFT
from twinbus.model.message import POSSIBLE_DUPLICATE

if TYPE_CHECKING:
    import asyncio
    import uuid
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from twinbus.amqp.codec.composite import Composite
    from twinbus.amqp.delivery import IncomingDelivery
    from twinbus.client.amqp.receiver_link import ReceiverLink
    from twinbus.client.pairing.backlog.rewriting import RestoredMessage
    from twinbus.client.pairing.syphon.deferred_requests import DeferredRequests

MODIFIED_IN_DOUBT = Modified(delivery_failed=True)
"""The outcome that releases a message with an increased delivery count, because the message may have arrived."""
_MODIFIED_DEFERRED = Modified(delivery_failed=False, undeliverable_here=True)
_MODIFIED_DEFERRED_AND_MARKED = Modified(
    delivery_failed=False, undeliverable_here=True, message_annotations={Symbol(POSSIBLE_DUPLICATE): True}
)


class ParkedMessage:
    """A parked message under a lock."""

    __slots__ = ("is_marked", "restored", "sequence_number")

    def __init__(self, restored: RestoredMessage, sequence_number: int) -> None:
        """Create a parked message; `restored` is sent to the primary."""
        self.restored = restored
        self.sequence_number = sequence_number
        self.is_marked = restored.is_marked
        """Whether the message may have arrived at its destination, and the backlog queue has not recorded that yet."""

    def mark_possible_duplicate(self) -> None:
        """Mark the message as a possible duplicate, because it may have arrived at its destination."""
        payload = mark_possible_duplicate(self.restored.payload)
        if payload is not self.restored.payload:
            self.restored.payload = payload
            self.is_marked = True

    def dead_letter(self, reason: str, description: str) -> asyncio.Future[None]:
        """Dead-letter the message, which its destination will never accept."""
        raise NotImplementedError


class DeliveredParkedMessage(ParkedMessage):
    """A parked message that was delivered on the link."""

    __slots__ = ("delivery", "link", "received_s")

    def __init__(
        self, link: ReceiverLink, delivery: IncomingDelivery, restored: RestoredMessage, received_s: float = 0.0
    ) -> None:
        """Create a message from a delivery that arrived at `received_s` in loop time."""
        super().__init__(restored, restored.sequence_number)
        self.link = link
        self.delivery = delivery
        self.received_s = received_s

    def dead_letter(self, reason: str, description: str) -> asyncio.Future[None]:
        """Dead-letter the message, which its destination will never accept."""
        return dead_letter(self.link, self.delivery, reason, description, is_marked=self.is_marked)


class DeferredParkedMessage(ParkedMessage):
    """A deferred parked message that was received by its sequence number."""

    __slots__ = ("is_settled", "lock_token", "settlement")

    def __init__(self, settlement: DeferredSettlement, restored: RestoredMessage, lock_token: uuid.UUID) -> None:
        """Create a message that is settled through `settlement`. Called by `BacklogConsumer`."""
        super().__init__(restored, restored.sequence_number)
        self.settlement = settlement
        self.lock_token = lock_token
        self.is_settled = False
        """Whether a request to settle the message was started."""

    def dead_letter(self, reason: str, description: str) -> asyncio.Future[None]:
        """Dead-letter the message, which its destination will never accept."""
        reason_fields = {"deadletter-reason": reason, "deadletter-description": description}
        return self.settlement.settle(
            [self], STATUS_DEAD_LETTERED, reason_fields | possible_duplicate_change(is_marked=self.is_marked)
        )


class DeferredSettlement:
    """Settlement of deferred messages that were received by their numbers."""

    def __init__(
        self,
        requests: DeferredRequests,
        start_task: Callable[[Coroutine[None, None, None]], asyncio.Future[None]],
    ) -> None:
        """Create the settlement for one backlog queue, without messages.

        `start_task` runs a settlement request as a task.
        """
        self.locked_since_s: dict[DeferredParkedMessage, float] = {}
        """Messages that were received and are not settled, and when each was locked."""
        self._requests = requests
        self._start_task = start_task

    def settle(
        self, messages: Sequence[DeferredParkedMessage], status: str, extra_fields: Mapping[str, object] | None = None
    ) -> asyncio.Future[None]:
        """Settle messages together; the future completes with the settlement, or with its error."""
        for message in messages:
            message.is_settled = True
            self.locked_since_s.pop(message, None)
        return self._start_task(
            self._requests.settle(status, [message.lock_token for message in messages], extra_fields)
        )


def dead_letter(
    link: ReceiverLink, delivery: IncomingDelivery, reason: str, description: str, *, is_marked: bool
) -> asyncio.Future[None]:
    """Move a message to the dead-letter queue of its backlog queue; `is_marked` marks it as a possible duplicate."""
    info: dict[str, object] = {"DeadLetterReason": reason, "DeadLetterErrorDescription": description}
    if is_marked:
        info[POSSIBLE_DUPLICATE] = True
    error = Error(condition=Symbol("com.microsoft:dead-letter"), description=description, info=info)
    return link.settle(delivery, Rejected(error=error))


def complete_all(messages: Sequence[ParkedMessage]) -> tuple[list[DeferredParkedMessage], asyncio.Future[None] | None]:
    """Complete messages that their destination has accepted.

    Return the deferred messages, and a future for their completion. The completion of messages from the link is not
    awaited, because a message that is not completed is redelivered.
    """
    delivered = [message for message in messages if isinstance(message, DeliveredParkedMessage)]
    if delivered:
        delivered[0].link.complete_unconfirmed([message.delivery for message in delivered])
    deferred = (
        [message for message in messages if isinstance(message, DeferredParkedMessage)]
        if len(delivered) < len(messages)
        else []
    )
    return deferred, deferred[0].settlement.settle(deferred, STATUS_COMPLETED) if deferred else None


def defer_all(messages: Sequence[ParkedMessage]) -> list[tuple[list[ParkedMessage], asyncio.Future[None]]]:
    """Defer messages that their destination does not accept now; deferred messages stay deferred.

    Return groups of messages, each with a future for its confirmation.
    """
    settlements: list[tuple[list[ParkedMessage], asyncio.Future[None]]] = []
    for is_marked, members in groupby(messages, _is_marked):
        group = list(members)
        delivered = [message for message in group if isinstance(message, DeliveredParkedMessage)]
        deferred = [message for message in group if isinstance(message, DeferredParkedMessage)]
        if delivered:
            settlements.append(
                (
                    [*delivered],
                    _settle_delivered(delivered, _MODIFIED_DEFERRED_AND_MARKED if is_marked else _MODIFIED_DEFERRED),
                )
            )
        if deferred:
            future = deferred[0].settlement.settle(
                deferred, STATUS_DEFERRED, possible_duplicate_change(is_marked=is_marked)
            )
            settlements.append(([*deferred], future))
    return settlements


def release_all(messages: Sequence[DeliveredParkedMessage]) -> list[asyncio.Future[None]]:
    """Release messages to their places in the backlog queue; return futures for the confirmations."""
    groups = [(is_marked, list(members)) for is_marked, members in groupby(messages, _is_marked)]
    return [_settle_delivered(members, MODIFIED_IN_DOUBT if is_marked else RELEASED) for is_marked, members in groups]


def _settle_delivered(messages: Sequence[DeliveredParkedMessage], state: Composite) -> asyncio.Future[None]:
    """Settle messages from the link; the future is done when the last message of each fragment is confirmed."""
    last = {message.sequence_number >> FRAGMENT_SHIFT: message.delivery for message in messages}
    return messages[0].link.settle_batch([message.delivery for message in messages], state, list(last.values()))


def _is_marked(message: ParkedMessage) -> bool:
    return message.is_marked
