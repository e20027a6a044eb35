"""A parked message on its way back, and how its backlog queue is told what became of it.

Owns: settling, which differs: a message that came on the link is settled there, one that was taken back from the
deferred ones by its lock. Either way messages are settled together. Knows nothing of destinations.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from twinbus.amqp.outcomes import RELEASED, Modified, Rejected
from twinbus.amqp.performatives import Error
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

    from twinbus.amqp.composite import Composite
    from twinbus.amqp.delivery import IncomingDelivery
    from twinbus.client.amqp.receiver_link import ReceiverLink
    from twinbus.client.pairing.backlog.rewriting import RestoredMessage
    from twinbus.client.pairing.syphon.deferred_requests import DeferredRequests

MODIFIED_IN_DOUBT = Modified(delivery_failed=True)
"""Given back with a delivery on its count: it may have arrived at its destination."""
_MODIFIED_DEFERRED = Modified(delivery_failed=False, undeliverable_here=True)
_MODIFIED_DEFERRED_AND_MARKED = Modified(
    delivery_failed=False, undeliverable_here=True, message_annotations={Symbol(POSSIBLE_DUPLICATE): True}
)


class ParkedMessage:
    """One message, under a lock."""

    __slots__ = ("is_marked", "restored", "sequence_number")

    def __init__(self, restored: RestoredMessage, sequence_number: int) -> None:
        """`restored` is what goes to the primary."""
        self.restored = restored
        self.sequence_number = sequence_number
        self.is_marked = restored.is_marked
        """It may have arrived at its destination, and its backlog queue does not know that yet."""

    def mark_possible_duplicate(self) -> None:
        """It may have arrived at its destination: every copy from now on says so."""
        payload = mark_possible_duplicate(self.restored.payload)
        if payload is not self.restored.payload:
            self.restored.payload = payload
            self.is_marked = True

    def dead_letter(self, reason: str, description: str) -> asyncio.Future[None]:
        """Its destination will never take it."""
        raise NotImplementedError


class DeliveredParkedMessage(ParkedMessage):
    """One that came on the link."""

    __slots__ = ("delivery", "link", "received_s")

    def __init__(
        self, link: ReceiverLink, delivery: IncomingDelivery, restored: RestoredMessage, received_s: float = 0.0
    ) -> None:
        """`delivery` is as it came, at `arrived_s` of the loop's clock."""
        super().__init__(restored, restored.sequence_number)
        self.link = link
        self.delivery = delivery
        self.received_s = received_s

    def dead_letter(self, reason: str, description: str) -> asyncio.Future[None]:
        """Its destination will never take it."""
        return dead_letter(self.link, self.delivery, reason, description, is_marked=self.is_marked)


class DeferredParkedMessage(ParkedMessage):
    """One that was deferred, and was received by its number."""

    __slots__ = ("is_settled", "lock_token", "settlement")

    def __init__(self, settlement: DeferredSettlement, restored: RestoredMessage, lock_token: uuid.UUID) -> None:
        """Made by `Origin`."""
        super().__init__(restored, restored.sequence_number)
        self.settlement = settlement
        self.lock_token = lock_token
        self.is_settled = False
        """Its lock is not ours any more, or will not be in a moment."""

    def dead_letter(self, reason: str, description: str) -> asyncio.Future[None]:
        """Its destination will never take it."""
        why = {"deadletter-reason": reason, "deadletter-description": description}
        return self.settlement.settle(
            [self], STATUS_DEAD_LETTERED, why | possible_duplicate_change(is_marked=self.is_marked)
        )


class DeferredSettlement:
    """Where messages that are taken back come from."""

    def __init__(
        self,
        requests: DeferredRequests,
        start_task: Callable[[Coroutine[None, None, None]], asyncio.Future[None]],
    ) -> None:
        """`start` runs a request."""
        self.locked_since_s: dict[DeferredParkedMessage, float] = {}
        """What was taken back and is not settled, with the time from which its lock is good."""
        self._requests = requests
        self._start_task = start_task

    def settle(
        self, messages: Sequence[DeferredParkedMessage], status: str, extra_fields: Mapping[str, object] | None = None
    ) -> asyncio.Future[None]:
        """Settle messages together; the future is done when that is, or has the reason why not."""
        for parcel in messages:
            parcel.is_settled = True
            self.locked_since_s.pop(parcel, None)
        return self._start_task(self._requests.settle(status, [parcel.lock_token for parcel in messages], extra_fields))


def dead_letter(
    link: ReceiverLink, delivery: IncomingDelivery, reason: str, description: str, *, is_marked: bool
) -> asyncio.Future[None]:
    """Put a message in the dead-letter queue of its backlog queue; marked, if it may have been sent."""
    info: dict[str, object] = {"DeadLetterReason": reason, "DeadLetterErrorDescription": description}
    if is_marked:
        info[POSSIBLE_DUPLICATE] = True
    error = Error(condition=Symbol("com.microsoft:dead-letter"), description=description, info=info)
    return link.settle(delivery, Rejected(error=error))


def complete_all(messages: Sequence[ParkedMessage]) -> tuple[list[DeferredParkedMessage], asyncio.Future[None] | None]:
    """Their destination has them. Returns those whose completion is to be waited for, and that.

    Nobody waits for a confirmation of those that came on the link: one that is not completed comes again (Q17).
    """
    arrived = [parcel for parcel in messages if isinstance(parcel, DeliveredParkedMessage)]
    if arrived:
        arrived[0].link.complete_unconfirmed([parcel.delivery for parcel in arrived])
    taken = (
        [parcel for parcel in messages if isinstance(parcel, DeferredParkedMessage)]
        if len(arrived) < len(messages)
        else []
    )
    return taken, taken[0].settlement.settle(taken, STATUS_COMPLETED) if taken else None


def defer_all(messages: Sequence[ParkedMessage]) -> list[tuple[list[ParkedMessage], asyncio.Future[None]]]:
    """Their destination does not take them now; deferred ones stay so. Each part with its confirmation."""
    settling: list[tuple[list[ParkedMessage], asyncio.Future[None]]] = []
    for is_marked, some in groupby(messages, _is_marked):
        group = list(some)
        arrived = [parcel for parcel in group if isinstance(parcel, DeliveredParkedMessage)]
        taken = [parcel for parcel in group if isinstance(parcel, DeferredParkedMessage)]
        if arrived:
            settling.append(
                (
                    [*arrived],
                    _settle_delivered(arrived, _MODIFIED_DEFERRED_AND_MARKED if is_marked else _MODIFIED_DEFERRED),
                )
            )
        if taken:
            future = taken[0].settlement.settle(taken, STATUS_DEFERRED, possible_duplicate_change(is_marked=is_marked))
            settling.append(([*taken], future))
    return settling


def release_all(messages: Sequence[DeliveredParkedMessage]) -> list[asyncio.Future[None]]:
    """Give messages back to their places in the backlog queue; the confirmation of each part."""
    parts = [(is_marked, list(some)) for is_marked, some in groupby(messages, _is_marked)]
    return [_settle_delivered(some, MODIFIED_IN_DOUBT if is_marked else RELEASED) for is_marked, some in parts]


def _settle_delivered(messages: Sequence[DeliveredParkedMessage], state: Composite) -> asyncio.Future[None]:
    """Say one thing of messages that came on the link; done when the last of each fragment is confirmed."""
    last = {parcel.sequence_number >> FRAGMENT_SHIFT: parcel.delivery for parcel in messages}
    return messages[0].link.settle_batch([parcel.delivery for parcel in messages], state, list(last.values()))


def _is_marked(message: ParkedMessage) -> bool:
    return message.is_marked
