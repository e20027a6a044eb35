"""Unsettled deliveries in a session, in both directions.

Owns the mapping from delivery ids to deliveries, and the outcomes that both ends have sent. Must not know credit,
windows or payloads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from twinbus.amqp.codec.delivery_frames import disposition_frame, is_plain_modified, read_disposition
from twinbus.amqp.errors import INVALID_FIELD, RESOURCE_LIMIT_EXCEEDED, FrameTooLarge, SessionViolation
from twinbus.amqp.events import ReceiptsUpdated, SendsUpdated
from twinbus.amqp.link import SERIAL_HALF, SERIAL_MASK
from twinbus.amqp.outcomes import ACCEPTED
from twinbus.amqp.shared_delivery_id import SharedDeliveryId
from twinbus.amqp.states import Role, SessionState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinbus.amqp.codec.composite import Composite
    from twinbus.amqp.codec.delivery_frames import DispositionTail
    from twinbus.amqp.delivery import IncomingDelivery, OutgoingDelivery
    from twinbus.amqp.events import Event
    from twinbus.amqp.link import Link
    from twinbus.amqp.session import Session

    DeliveryT = TypeVar("DeliveryT", IncomingDelivery, OutgoingDelivery)

_ENCODED_ACCEPTED: Final = ACCEPTED.encode()
_NULL: Final = b"\x40"
_DISPOSITION_SIZE: Final = 40
"""Upper bound for the size of a disposition frame without its state."""
_VISITS_PER_DELIVERY: Final = 8
"""Average number of times that the peer's non-settling dispositions may visit each delivery."""
_INITIAL_VISITS: Final = 1000


class UnsettledDeliveries:
    """Unsettled deliveries between the two ends of a session."""

    def __init__(self, session: Session) -> None:
        """Create an empty collection for `session`."""
        self.outgoing: dict[int, OutgoingDelivery] = {}
        """Messages we sent, by delivery id."""
        self.incoming: dict[int, IncomingDelivery] = {}
        """Messages we received, by delivery id; if several messages share an id, the first of them."""
        self._shared: dict[int, SharedDeliveryId] = {}
        """Delivery ids that several unsettled messages share. Empty unless the peer breaks AMQP's rules."""
        self._session = session
        self._connection = session.connection
        self._limit = session.limits.max_unsettled
        self._max_ids = self._limit
        """Maximum number of ids in `incoming`: the limit, minus the deliveries beyond the first of each shared id."""
        self._next_id = session.connection.settings.first_delivery_id
        self._visits_left = _INITIAL_VISITS

    # --- adding and removing deliveries -------------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """Number of messages that may be sent before some messages must be settled."""
        return self._limit - len(self.outgoing)

    def next_delivery_id(self) -> int:
        """Return the next delivery id; ids are consecutive across all links in the session."""
        delivery_id = self._next_id
        self._next_id = (delivery_id + 1) & SERIAL_MASK
        self._visits_left += _VISITS_PER_DELIVERY
        return delivery_id

    def add_outgoing(self, delivery_id: int, delivery: OutgoingDelivery) -> None:
        """Track an outgoing message until it is settled."""
        self.outgoing[delivery_id] = delivery
        delivery.link.unsettled_ids.add(delivery_id)

    def drop_outgoing(self, delivery: OutgoingDelivery) -> None:
        """Stop tracking a message that was withdrawn."""
        if delivery.delivery_id is not None and self.outgoing.pop(delivery.delivery_id, None) is not None:
            delivery.link.unsettled_ids.discard(delivery.delivery_id)
        delivery.settled = True

    def add_incoming(self, delivery: IncomingDelivery) -> None:
        """Count a received message as unanswered and, unless the sender settled it, track it until it is settled."""
        link = delivery.link
        if not delivery.settled:
            incoming = self.incoming
            if len(incoming) >= self._max_ids:
                raise SessionViolation(RESOURCE_LIMIT_EXCEEDED, f"more than {self._limit} unsettled messages")
            if delivery.delivery_id in incoming:
                self._add_shared(delivery)
            else:
                incoming[delivery.delivery_id] = delivery
                link.unsettled_ids.add(delivery.delivery_id)
            self._visits_left += _VISITS_PER_DELIVERY
        link.unanswered_count += 1
        link.unanswered_bytes += delivery.counted_bytes
        self._connection.unanswered_bytes += delivery.counted_bytes

    def forget(self, link: Link) -> list[OutgoingDelivery]:
        """Drop all deliveries of a detached link; return the messages we sent whose outcome will never arrive."""
        lost: list[OutgoingDelivery] = []
        if link.role is Role.SENDER:
            lost = [self.outgoing.pop(delivery_id) for delivery_id in sorted(link.unsettled_ids)]
        else:
            if self._shared:
                self._forget_shared(link)
            for delivery_id in link.unsettled_ids:
                self.incoming.pop(delivery_id).settled = True
            self._connection.unanswered_bytes -= link.unanswered_bytes
            link.unanswered_count = link.unanswered_bytes = 0
        link.unsettled_ids.clear()
        return lost

    # --- deliveries that share an id ----------------------------------------------------------------------------------

    @property
    def incoming_count(self) -> int:
        """Number of received messages that are unsettled."""
        return len(self.incoming) + self._limit - self._max_ids

    def _add_shared(self, delivery: IncomingDelivery) -> None:
        """Add a delivery whose id belongs to another unsettled delivery."""
        delivery_id, link = delivery.delivery_id, delivery.link
        shared = self._shared.get(delivery_id)
        if shared is None:
            shared = self._shared[delivery_id] = SharedDeliveryId(self.incoming[delivery_id])
        shared.add(delivery)
        self._max_ids -= 1
        if delivery_id in link.unsettled_ids:
            link.shared_id_count += 1
        else:
            link.unsettled_ids.add(delivery_id)

    def _settle_or_hold_shared(
        self, deliveries: Sequence[IncomingDelivery], state: Composite | None, *, settled: bool
    ) -> list[IncomingDelivery]:
        """Record the outcome of deliveries that share an id, and send the common outcome once all of them have one.

        Return the deliveries whose id is not shared.
        """
        others = []
        for delivery in deliveries:
            shared = self._shared.get(delivery.delivery_id)
            if shared is None:
                others.append(delivery)
            elif shared.add_outcome(delivery, state, settled=settled):
                self._send_shared_outcome(delivery.delivery_id, shared)
        return others

    def _send_shared_outcome(self, delivery_id: int, shared: SharedDeliveryId) -> None:
        """Send the common outcome of all deliveries with an id."""
        settled = shared.is_settled
        if settled:
            del self.incoming[delivery_id]
            self._settle_shared(delivery_id, shared)
        state = self._encode_state(shared.outcome)
        self.send_disposition(Role.RECEIVER, delivery_id, delivery_id, state, settled=settled)

    def _settle_shared(self, delivery_id: int, shared: SharedDeliveryId) -> None:
        del self._shared[delivery_id]
        self._max_ids += len(shared.deliveries) - 1
        for delivery in shared.deliveries:
            delivery.settled = True
            link = delivery.link
            if delivery_id in link.unsettled_ids:
                link.unsettled_ids.discard(delivery_id)
            else:
                link.shared_id_count -= 1

    def _take_shared(self, taken: list[IncomingDelivery], *, settled: bool) -> list[IncomingDelivery]:
        """Return `taken` and all deliveries that share their ids: the peer's disposition applies to all of them."""
        deliveries: list[IncomingDelivery] = []
        for delivery in taken:
            shared = self._shared.get(delivery.delivery_id)
            if shared is None:
                deliveries.append(delivery)
                continue
            if settled:
                delivery.link.unsettled_ids.add(delivery.delivery_id)
                self._settle_shared(delivery.delivery_id, shared)
            deliveries += shared.deliveries
        return deliveries

    def _forget_shared(self, link: Link) -> None:
        """Drop a link's deliveries from the ids that they share; afterwards no id in `link.unsettled_ids` is shared."""
        for delivery_id in [shared_id for shared_id in link.unsettled_ids if shared_id in self._shared]:
            shared = self._shared[delivery_id]
            for delivery in shared.deliveries:
                delivery.settled = delivery.settled or delivery.link is link
            self._max_ids += shared.drop_link(link)
            link.unsettled_ids.discard(delivery_id)
            if not shared.deliveries:
                self._max_ids -= 1
                del self._shared[delivery_id], self.incoming[delivery_id]
                continue
            self.incoming[delivery_id] = shared.deliveries[0]
            if shared.is_decided and self._session.local_state is SessionState.MAPPED:
                self._send_shared_outcome(delivery_id, shared)
        link.shared_id_count = 0

    # --- outcomes that we send ----------------------------------------------------------------------------------------

    def send_outcome(
        self,
        role: bool,
        deliveries: Sequence[IncomingDelivery] | Sequence[OutgoingDelivery],
        state: Composite | None,
        *,
        settled: bool,
    ) -> None:
        """Send the outcome `state` for `deliveries`, with one disposition frame per run of consecutive delivery ids.

        Deliveries that are already settled, or whose link has ended, are skipped. With `settled`, the other deliveries
        become settled. In role RECEIVER, all `deliveries` count as answered, and a delivery that shares its id with
        others is held until all of them have an outcome.
        """
        encoded = _ENCODED_ACCEPTED if state is ACCEPTED else self._encode_state(state)
        receiving = role is Role.RECEIVER
        unsettled: dict[int, IncomingDelivery] | dict[int, OutgoingDelivery]
        unsettled = self.incoming if receiving else self.outgoing
        first = last = -1
        if receiving:
            self._count_answers(deliveries)  # type: ignore[arg-type]  # receiving: incoming deliveries
            if self._shared:
                deliveries = self._settle_or_hold_shared(deliveries, state, settled=settled)  # type: ignore[arg-type]
        for delivery in deliveries:
            delivery_id = delivery.delivery_id
            if delivery_id is None or unsettled.get(delivery_id) is not delivery:
                continue
            if settled:
                del unsettled[delivery_id]
                delivery.settled = True
                delivery.link.unsettled_ids.discard(delivery_id)
            if delivery_id == last + 1 and first >= 0:
                last = delivery_id
                continue
            if first >= 0:
                self.send_disposition(role, first, last, encoded, settled=settled)
            first = last = delivery_id
        if first >= 0:
            self.send_disposition(role, first, last, encoded, settled=settled)

    def send_disposition(self, role: bool, first: int, last: int, state: bytes, *, settled: bool = True) -> None:
        """Queue a disposition for a range of delivery ids."""
        channel = self._session.channel
        self._connection.write(disposition_frame(channel, role, first, last, settled=settled, state=state))

    def _encode_state(self, state: Composite | None) -> bytes:
        if state is None:
            return _NULL
        encoded = state.encode()
        size, largest = len(encoded) + _DISPOSITION_SIZE, self._session.max_frame_size
        if size > largest > 0:
            raise FrameTooLarge(f"{state.symbol} needs a disposition frame of {size} bytes; the peer accepts {largest}")
        return encoded

    def _count_answers(self, deliveries: Sequence[IncomingDelivery]) -> None:
        """Mark deliveries as answered: the program has settled them, or the peer no longer waits for an outcome."""
        link, count, weight = None, 0, 0
        for delivery in deliveries:
            if delivery.answered:
                continue
            delivery.answered = True
            if delivery.link is not link:
                self._subtract_unanswered(link, count, weight)
                link, count, weight = delivery.link, 0, 0
            count += 1
            weight += delivery.counted_bytes
        self._subtract_unanswered(link, count, weight)

    def _subtract_unanswered(self, link: Link | None, count: int, size: int) -> None:
        if link is not None and link.unanswered_count:  # 0 after the link has ended and its counts were reset
            link.unanswered_count -= count
            link.unanswered_bytes -= size
            self._connection.unanswered_bytes -= size

    # --- dispositions from the peer -----------------------------------------------------------------------------------

    def receive_disposition(self, data: bytes, at: int, end: int, events: list[Event]) -> None:
        """Apply the peer's disposition to messages we sent (if the peer is the receiver) or to messages we received."""
        role, first, last, tail = read_disposition(data, at, end, self._session.limits)
        if role is Role.RECEIVER:
            was_full = self.room <= 0
            self._update_sends(self._take(self.outgoing, first, last, settled=tail.settled), tail, events)
            if was_full and self.room > 0:
                self._connection.reopened_sessions[self._session.channel] = self._session
        else:
            taken = self._take(self.incoming, first, last, settled=tail.settled)
            if self._shared:
                taken = self._take_shared(taken, settled=tail.settled)
            self._update_receipts(taken, tail, events)

    @staticmethod
    def _update_sends(deliveries: list[OutgoingDelivery], tail: DispositionTail, events: list[Event]) -> None:
        """Append events for outgoing deliveries, one per link and state; extend the preceding event if possible."""
        previous = events[-1] if events else None
        batch = previous if isinstance(previous, SendsUpdated) and previous.settled == tail.settled else None
        if batch is not None and batch.state is not tail.state:
            batch = batch if is_plain_modified(tail.state) and batch.state == tail.state else None
        for delivery in deliveries:
            delivery.state = tail.state
            if isinstance(batch, SendsUpdated) and batch.link is delivery.link:
                batch.deliveries.append(delivery)
            else:
                batch = SendsUpdated(link=delivery.link, deliveries=[delivery], state=tail.state, settled=tail.settled)
                events.append(batch)

    def _update_receipts(self, deliveries: list[IncomingDelivery], tail: DispositionTail, events: list[Event]) -> None:
        batch: ReceiptsUpdated | None = None
        if tail.settled:
            self._count_answers(deliveries)
        for delivery in deliveries:
            delivery.state = tail.state
            if batch is not None and batch.link is delivery.link:
                batch.deliveries.append(delivery)
            else:
                batch = ReceiptsUpdated(
                    link=delivery.link, deliveries=[delivery], state=tail.state, settled=tail.settled
                )
                events.append(batch)

    def _take(self, unsettled: dict[int, DeliveryT], first: int, last: int, *, settled: bool) -> list[DeliveryT]:
        """Return the unsettled deliveries in a range, and remove them if the peer settled them."""
        count = ((last - first) & SERIAL_MASK) + 1
        if count > SERIAL_HALF:
            raise SessionViolation(
                INVALID_FIELD, f"invalid disposition range {first} to {last}: the last id is before the first"
            )
        visited = min(count, len(unsettled))
        if count > visited:  # bound the work for a wide range by the number of deliveries
            ids = [delivery_id for delivery_id in unsettled if (delivery_id - first) & SERIAL_MASK < count]
        else:
            ids = [delivery_id & SERIAL_MASK for delivery_id in range(first, first + count)]
        deliveries = []
        for delivery_id in ids:
            delivery = unsettled.get(delivery_id)
            if delivery is None:
                continue
            if settled:
                del unsettled[delivery_id]
                delivery.settled = True
                delivery.link.unsettled_ids.discard(delivery_id)
            deliveries.append(delivery)
        self._count_visits(visited - (len(deliveries) if settled else 0))
        return deliveries

    def _count_visits(self, count: int) -> None:
        """Limit the work for dispositions that settle nothing: a small frame can name all deliveries repeatedly."""
        self._visits_left -= count
        if self._visits_left < 0:
            raise SessionViolation(RESOURCE_LIMIT_EXCEEDED, "too many dispositions that settle nothing")
