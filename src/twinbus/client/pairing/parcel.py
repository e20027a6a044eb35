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
from twinbus.client.pairing.deferred import COMPLETED, DEAD_LETTERED, DEFERRED, marking
from twinbus.client.pairing.rewriting import mark
from twinbus.model.description import FRAGMENT_SHIFT
from twinbus.model.message import POSSIBLE_DUPLICATE

if TYPE_CHECKING:
    import asyncio
    import uuid
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from twinbus.amqp.composite import Composite
    from twinbus.amqp.delivery import IncomingDelivery
    from twinbus.client.pairing.deferred import DeferredMessages
    from twinbus.client.pairing.rewriting import Restored
    from twinbus.client.receiving_link import ReceivingLink

IN_DOUBT = Modified(delivery_failed=True)
"""Given back with a delivery on its count: it may have arrived at its destination."""
_DEFERRED = Modified(delivery_failed=False, undeliverable_here=True)
_DEFERRED_AND_MARKED = Modified(
    delivery_failed=False, undeliverable_here=True, message_annotations={Symbol(POSSIBLE_DUPLICATE): True}
)


class Parcel:
    """One message, under a lock."""

    __slots__ = ("is_marked", "restored", "sequence_number")

    def __init__(self, restored: Restored, sequence_number: int) -> None:
        """`restored` is what goes to the primary."""
        self.restored = restored
        self.sequence_number = sequence_number
        self.is_marked = restored.is_marked
        """It may have arrived at its destination, and its backlog queue does not know that yet."""

    def mark(self) -> None:
        """It may have arrived at its destination: every copy from now on says so."""
        payload = mark(self.restored.payload)
        if payload is not self.restored.payload:
            self.restored.payload = payload
            self.is_marked = True

    def dead_letter(self, reason: str, description: str) -> asyncio.Future[None]:
        """Its destination will never take it."""
        raise NotImplementedError


class Arrived(Parcel):
    """One that came on the link."""

    __slots__ = ("arrived_s", "delivery", "link")

    def __init__(
        self, link: ReceivingLink, delivery: IncomingDelivery, restored: Restored, arrived_s: float = 0.0
    ) -> None:
        """`delivery` is as it came, at `arrived_s` of the loop's clock."""
        super().__init__(restored, restored.sequence_number)
        self.link = link
        self.delivery = delivery
        self.arrived_s = arrived_s

    def dead_letter(self, reason: str, description: str) -> asyncio.Future[None]:
        """Its destination will never take it."""
        return dead_letter(self.link, self.delivery, reason, description, is_marked=self.is_marked)


class TakenBack(Parcel):
    """One that was deferred, and was received by its number."""

    __slots__ = ("is_settled", "lock", "origin")

    def __init__(self, origin: Origin, restored: Restored, lock: uuid.UUID) -> None:
        """Made by `Origin`."""
        super().__init__(restored, restored.sequence_number)
        self.origin = origin
        self.lock = lock
        self.is_settled = False
        """Its lock is not ours any more, or will not be in a moment."""

    def dead_letter(self, reason: str, description: str) -> asyncio.Future[None]:
        """Its destination will never take it."""
        why = {"deadletter-reason": reason, "deadletter-description": description}
        return self.origin.settle([self], DEAD_LETTERED, why | marking(is_marked=self.is_marked))


class Origin:
    """Where messages that are taken back come from."""

    def __init__(
        self,
        deferred: DeferredMessages,
        start: Callable[[Coroutine[None, None, None]], asyncio.Future[None]],
    ) -> None:
        """`start` runs a request."""
        self.since_s: dict[TakenBack, float] = {}
        """What was taken back and is not settled, with the time from which its lock is good."""
        self._deferred = deferred
        self._start = start

    def settle(
        self, parcels: Sequence[TakenBack], status: str, more: Mapping[str, object] | None = None
    ) -> asyncio.Future[None]:
        """Settle messages together; the future is done when that is, or has the reason why not."""
        for parcel in parcels:
            parcel.is_settled = True
            self.since_s.pop(parcel, None)
        return self._start(self._deferred.settle(status, [parcel.lock for parcel in parcels], more))


def dead_letter(
    link: ReceivingLink, delivery: IncomingDelivery, reason: str, description: str, *, is_marked: bool
) -> asyncio.Future[None]:
    """Put a message in the dead-letter queue of its backlog queue; marked, if it may have been sent."""
    info: dict[str, object] = {"DeadLetterReason": reason, "DeadLetterErrorDescription": description}
    if is_marked:
        info[POSSIBLE_DUPLICATE] = True
    error = Error(condition=Symbol("com.microsoft:dead-letter"), description=description, info=info)
    return link.settle(delivery, Rejected(error=error))


def complete_all(parcels: Sequence[Parcel]) -> tuple[list[TakenBack], asyncio.Future[None] | None]:
    """Their destination has them. Returns those whose completion is to be waited for, and that.

    Nobody waits for a confirmation of those that came on the link: one that is not completed comes again (Q17).
    """
    arrived = [parcel for parcel in parcels if isinstance(parcel, Arrived)]
    if arrived:
        arrived[0].link.complete_unconfirmed([parcel.delivery for parcel in arrived])
    taken = [parcel for parcel in parcels if isinstance(parcel, TakenBack)] if len(arrived) < len(parcels) else []
    return taken, taken[0].origin.settle(taken, COMPLETED) if taken else None


def defer_all(parcels: Sequence[Parcel]) -> list[tuple[list[Parcel], asyncio.Future[None]]]:
    """Their destination does not take them now; deferred ones stay so. Each part with its confirmation."""
    settling: list[tuple[list[Parcel], asyncio.Future[None]]] = []
    for is_marked, some in groupby(parcels, _is_marked):
        group = list(some)
        arrived = [parcel for parcel in group if isinstance(parcel, Arrived)]
        taken = [parcel for parcel in group if isinstance(parcel, TakenBack)]
        if arrived:
            settling.append(([*arrived], _settle_arrived(arrived, _DEFERRED_AND_MARKED if is_marked else _DEFERRED)))
        if taken:
            future = taken[0].origin.settle(taken, DEFERRED, marking(is_marked=is_marked))
            settling.append(([*taken], future))
    return settling


def release_all(parcels: Sequence[Arrived]) -> list[asyncio.Future[None]]:
    """Give messages back to their places in the backlog queue; the confirmation of each part."""
    parts = [(is_marked, list(some)) for is_marked, some in groupby(parcels, _is_marked)]
    return [_settle_arrived(some, IN_DOUBT if is_marked else RELEASED) for is_marked, some in parts]


def _settle_arrived(parcels: Sequence[Arrived], state: Composite) -> asyncio.Future[None]:
    """Say one thing of messages that came on the link; done when the last of each fragment is confirmed."""
    last = {parcel.sequence_number >> FRAGMENT_SHIFT: parcel.delivery for parcel in parcels}
    return parcels[0].link.settle_together([parcel.delivery for parcel in parcels], state, list(last.values()))


def _is_marked(parcel: Parcel) -> bool:
    return parcel.is_marked
