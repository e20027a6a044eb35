"""Deliveries that have the same delivery id in one session.

AMQP forbids that, yet the Azure SDK for Python does it when threads or tasks share a sender or a receiver: pyamqp reads
its next delivery id, writes the transfer, and only then counts the id up. The real service takes such deliveries. One
disposition of the id settles all of them at the SDK, so the answer must be true of each: `accepted` is sent when all
deliveries of the id were accepted, and not before. If any was refused, all are: the sender of an accepted message may
then send it again, but no sender believes that a message was stored which was not.

Owns: the deliveries of one id, and the answer that fits all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.amqp.errors import ILLEGAL_STATE
from twinbus.amqp.outcomes import Rejected
from twinbus.amqp.performatives import Error

if TYPE_CHECKING:
    from twinbus.amqp.composite import Composite
    from twinbus.amqp.delivery import IncomingDelivery
    from twinbus.amqp.link import Link


class SharedDeliveryId:
    """The unsettled deliveries of one id, and what was answered to them so far."""

    def __init__(self, first: IncomingDelivery) -> None:
        """`first` had the id alone until now."""
        self.deliveries = [first]
        self.is_settled = True
        """All answers so far settle their delivery."""
        self._undecided: dict[IncomingDelivery, None] = {} if first.answered else {first: None}
        self._outcomes: list[Composite | None] = []
        """Each different answer once; a rejection goes before all others."""

    def add(self, delivery: IncomingDelivery) -> None:
        """One more delivery has this id."""
        self.deliveries.append(delivery)
        self._undecided[delivery] = None

    def add_outcome(self, delivery: IncomingDelivery, state: Composite | None, *, settled: bool) -> bool:
        """Note what became of one delivery. True if it was the last one without an answer."""
        if delivery not in self._undecided:
            return False
        del self._undecided[delivery]
        self.is_settled = self.is_settled and settled
        if isinstance(state, Rejected):
            self._outcomes = [state]
        elif not self._is_rejected and state not in self._outcomes:
            self._outcomes.append(state)
        return not self._undecided

    def drop_link(self, link: Link) -> int:
        """Drop the deliveries of a link that is over, and return how many there were."""
        kept = [one for one in self.deliveries if one.link is not link]
        lost = len(self.deliveries) - len(kept)
        waiting = [one for one in self._undecided if one.link is link]
        for one in waiting:
            del self._undecided[one]
        if waiting and not self._is_rejected:  # nobody knows yet whether they will be stored
            self._outcomes = [_not_all_accepted()]
        self.deliveries = kept
        return lost

    @property
    def is_decided(self) -> bool:
        """No delivery waits for its answer."""
        return not self._undecided

    @property
    def outcome(self) -> Composite | None:
        """The answer for all deliveries of the id: the one that all got, or a rejection."""
        return self._outcomes[0] if len(self._outcomes) == 1 else _not_all_accepted()

    @property
    def _is_rejected(self) -> bool:
        return bool(self._outcomes) and isinstance(self._outcomes[0], Rejected)


def _not_all_accepted() -> Rejected:
    text = "several deliveries have this id, and not all of them were accepted: send each of them again"
    return Rejected(error=Error(condition=ILLEGAL_STATE, description=text))
