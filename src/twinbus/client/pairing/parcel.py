"""A parked message on its way back, and how its backlog queue is told what became of it.

Owns: settling, which differs: a message that came on the link is settled there, one that was taken back from the
deferred ones by its lock. Knows nothing of destinations.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from twinbus.amqp.outcomes import Modified, Rejected
from twinbus.amqp.performatives import Error
from twinbus.amqp.types import Symbol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine, Sequence

    from twinbus.amqp.delivery import IncomingDelivery
    from twinbus.client.pairing.rewriting import Restored
    from twinbus.client.receiver import MessageReceiver
    from twinbus.client.receiving_link import ReceivingLink
    from twinbus.model.message import BrokeredMessage

_DEFERRED = Modified(delivery_failed=False, undeliverable_here=True)


class Parcel:
    """One message, under a lock."""

    __slots__ = ("restored", "sequence_number")

    def __init__(self, restored: Restored, sequence_number: int) -> None:
        """`restored` is what goes to the primary."""
        self.restored = restored
        self.sequence_number = sequence_number

    def defer(self) -> asyncio.Future[None]:
        """Its destination does not take it now."""
        raise NotImplementedError

    def dead_letter(self, reason: str, description: str) -> asyncio.Future[None]:
        """Its destination will never take it."""
        raise NotImplementedError


class Arrived(Parcel):
    """One that came on the link."""

    __slots__ = ("delivery", "link")

    def __init__(self, link: ReceivingLink, delivery: IncomingDelivery, restored: Restored) -> None:
        """`delivery` is as it came."""
        super().__init__(restored, restored.sequence_number)
        self.link = link
        self.delivery = delivery

    def defer(self) -> asyncio.Future[None]:
        """Its destination does not take it now."""
        return self.link.settle(self.delivery, _DEFERRED)

    def dead_letter(self, reason: str, description: str) -> asyncio.Future[None]:
        """Its destination will never take it."""
        return dead_letter(self.link, self.delivery, reason, description)


class TakenBack(Parcel):
    """One that was deferred, and was received by its number."""

    __slots__ = ("_message", "_receiver", "_start")

    def __init__(
        self,
        receiver: MessageReceiver,
        message: BrokeredMessage,
        restored: Restored,
        start: Callable[[Coroutine[None, None, None]], asyncio.Future[None]],
    ) -> None:
        """`start` runs a call."""
        super().__init__(restored, message.sequence_number)
        self._receiver = receiver
        self._message = message
        self._start = start

    def complete(self) -> asyncio.Future[None]:
        """Its destination has it."""
        return self._start(self._receiver.complete(self._message))

    def defer(self) -> asyncio.Future[None]:
        """Its destination does not take it now: it stays deferred."""
        return self._start(self._receiver.abandon(self._message))

    def dead_letter(self, reason: str, description: str) -> asyncio.Future[None]:
        """Its destination will never take it."""
        return self._start(self._receiver.dead_letter(self._message, reason, description))


def dead_letter(link: ReceivingLink, delivery: IncomingDelivery, reason: str, description: str) -> asyncio.Future[None]:
    """Put a message in the dead-letter queue of its backlog queue."""
    info: dict[str, object] = {"DeadLetterReason": reason, "DeadLetterErrorDescription": description}
    error = Error(condition=Symbol("com.microsoft:dead-letter"), description=description, info=info)
    return link.settle(delivery, Rejected(error=error))


def complete_all(parcels: Sequence[Parcel], ended: Callable[[Parcel, asyncio.Future[None]], None]) -> None:
    """Their destination has them.

    Those that came on the link share frames, and nobody waits for a confirmation: one that is not completed comes again
    (Q17). `ended` hears of the others.
    """
    arrived = [parcel for parcel in parcels if isinstance(parcel, Arrived)]
    if arrived:
        arrived[0].link.complete_unconfirmed([parcel.delivery for parcel in arrived])
    for parcel in parcels:
        if isinstance(parcel, TakenBack):
            parcel.complete().add_done_callback(partial(ended, parcel))
