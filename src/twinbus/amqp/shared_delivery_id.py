"""Deliveries that share a delivery id within one session.

AMQP forbids shared ids, yet the Azure SDK for Python produces them when threads or tasks share a sender or a receiver:
pyamqp reads its next delivery id, writes the transfer, and only then increments the id. Azure Service Bus accepts such
deliveries. In the SDK, one disposition for the id settles all deliveries with the id, so the outcome must be correct
for each delivery: `accepted` is sent only after all deliveries with the id were accepted. If any delivery was rejected,
all are rejected. The sender of an accepted message may then send that message again, but no sender believes that a lost
message was stored.

Owns the deliveries with one id, and the outcome that is sent for all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.amqp.codec.performatives import Error
from twinbus.amqp.errors import ILLEGAL_STATE
from twinbus.amqp.outcomes import Rejected

if TYPE_CHECKING:
    from twinbus.amqp.codec.composite import Composite
    from twinbus.amqp.delivery import IncomingDelivery
    from twinbus.amqp.link import Link


class SharedDeliveryId:
    """Unsettled deliveries with one id, and their outcomes so far."""

    def __init__(self, first: IncomingDelivery) -> None:
        """Start with `first`, the delivery that had the id alone until now."""
        self.deliveries = [first]
        self.is_settled = True
        """True while all outcomes so far settle their deliveries."""
        self._undecided: dict[IncomingDelivery, None] = {} if first.answered else {first: None}
        self._outcomes: list[Composite | None] = []
        """Distinct outcomes so far; a rejection replaces all other outcomes."""

    def add(self, delivery: IncomingDelivery) -> None:
        """Add a delivery that has this id."""
        self.deliveries.append(delivery)
        self._undecided[delivery] = None

    def add_outcome(self, delivery: IncomingDelivery, state: Composite | None, *, settled: bool) -> bool:
        """Record the outcome of a delivery; return True if every delivery with the id now has an outcome."""
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
        """Drop the deliveries of a detached link, and return how many were dropped."""
        kept = [delivery for delivery in self.deliveries if delivery.link is not link]
        dropped_count = len(self.deliveries) - len(kept)
        undecided = [delivery for delivery in self._undecided if delivery.link is link]
        for delivery in undecided:
            del self._undecided[delivery]
        if undecided and not self._is_rejected:  # these deliveries may still be stored or rejected
            self._outcomes = [_not_all_accepted()]
        self.deliveries = kept
        return dropped_count

    @property
    def is_decided(self) -> bool:
        """True if all deliveries with the id have an outcome."""
        return not self._undecided

    @property
    def outcome(self) -> Composite | None:
        """Outcome for all deliveries with the id: the common outcome, or a rejection if the outcomes differ."""
        return self._outcomes[0] if len(self._outcomes) == 1 else _not_all_accepted()

    @property
    def _is_rejected(self) -> bool:
        return bool(self._outcomes) and isinstance(self._outcomes[0], Rejected)


def _not_all_accepted() -> Rejected:
    text = "several deliveries share this id, and not all of them were accepted: send all of them again"
    return Rejected(error=Error(condition=ILLEGAL_STATE, description=text))
