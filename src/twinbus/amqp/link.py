"""Links: a one-way way for messages, and the credit that governs it.

`Sender` and `Receiver` are our end of a link. Owns: credit, delivery counts, the assembly of messages from frames and
the cutting of messages into frames. Delivery ids, windows and settlement are the session's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.amqp.delivery import IncomingDelivery, OutgoingDelivery
from twinbus.amqp.errors import (
    FRAME_SIZE_TOO_SMALL,
    INVALID_FIELD,
    MESSAGE_SIZE_EXCEEDED,
    TRANSFER_LIMIT_EXCEEDED,
    FrameTooLarge,
    LinkViolation,
    LocalError,
    SessionViolation,
)
from twinbus.amqp.frames import HEADER_SIZE
from twinbus.amqp.hot import TransferWriter
from twinbus.amqp.outcomes import ACCEPTED, Rejected
from twinbus.amqp.performatives import Attach, Detach, Error, Flow, Transfer
from twinbus.amqp.states import LINK_TRANSITIONS, LinkState, ReceiverSettleMode, Role, SenderSettleMode, Step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinbus.amqp.composite import Composite
    from twinbus.amqp.hot import TransferTail
    from twinbus.amqp.session import Session

SERIAL_MASK: Final = 2**32 - 1
"""Counters on the wire are 32 bits and wrap around."""
_MAX_TAG_BYTES: Final = 32
_TRANSFER_SIZE: Final = 100
"""A transfer frame takes less, its state and its payload aside."""


class Link:
    """What both ends of a link have in common."""

    role: bool

    def __init__(self, session: Session, name: str, handle: int) -> None:
        """Made by the session."""
        self.session = session
        self.name = name
        self.handle = handle
        self.remote_handle: int | None = None
        self.local_state = LinkState.UNATTACHED
        self.remote_state = LinkState.UNATTACHED
        self.local_attach: Attach | None = None
        self.remote_attach: Attach | None = None
        self.snd_settle_mode: int = SenderSettleMode.MIXED
        self.rcv_settle_mode: int = ReceiverSettleMode.FIRST
        self.delivery_count = 0
        self.credit = 0
        self.unsettled_count = 0
        self.is_announced = False
        """The program knows of it, so it will be told when it ends."""
        self.context: object = None
        """For the program: what this link is for."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} {self.local_state.name}/{self.remote_state.name}>"

    @property
    def is_attached(self) -> bool:
        """Both ends are attached: messages may flow."""
        return self.local_state is LinkState.ATTACHED and self.remote_state is LinkState.ATTACHED

    def _after(self, step: Step) -> LinkState:
        """Where a step of ours leads. It is taken once its frame is queued: one that cannot be leaves all as it was."""
        following = LINK_TRANSITIONS.get((self.local_state, step))
        if following is None:
            raise LocalError(f"{step.name.lower()} on {self!r}")
        return following

    def attach(self, attach: Attach) -> None:
        """Send our attach: the first step of a link of ours, or (by `accept`) the answer to theirs."""
        following = self._after(Step.ATTACH)
        self.session.send(Step.ATTACH, attach)
        self.local_state = following
        self.local_attach = attach
        self.snd_settle_mode, self.rcv_settle_mode = attach.snd_settle_mode, attach.rcv_settle_mode

    def accept(
        self,
        *,
        source: Composite | None = None,
        target: Composite | None = None,
        properties: dict[str, object] | None = None,
        max_message_size: int | None = None,
        offered_capabilities: tuple[str, ...] | None = None,
    ) -> None:
        """Answer the peer's attach with ours. Source and target are the peer's own where not given.

        An answer that is larger than the frames the peer takes is a refusal instead.
        """
        theirs = self._theirs()
        answer = Attach(
            name=self.name,
            handle=self.handle,
            role=self.role,
            snd_settle_mode=theirs.snd_settle_mode,
            rcv_settle_mode=theirs.rcv_settle_mode,
            source=source if source is not None else theirs.source,
            target=target if target is not None else theirs.target,
            initial_delivery_count=self.delivery_count if self.role is Role.SENDER else None,
            max_message_size=max_message_size or self.session.limits.max_message_size,
            offered_capabilities=offered_capabilities,
            properties=properties,
        )
        try:
            self.attach(answer)
        except FrameTooLarge as error:
            self.refuse(Error(condition=FRAME_SIZE_TOO_SMALL, description=str(error)))

    def refuse(self, error: Error) -> None:
        """Answer the peer's attach with one that has neither source nor target, and a detach that says why."""
        self._attach_nothing()
        self.detach(error=error)

    def _attach_nothing(self) -> None:
        # The empty attach is needed: a bare detach would be for a handle that the peer does not know.
        self.attach(
            Attach(
                name=self.name,
                handle=self.handle,
                role=self.role,
                initial_delivery_count=0 if self.role is Role.SENDER else None,
            )
        )

    def detach(self, *, closed: bool = True, error: Error | None = None) -> None:
        """Detach our end. The link has ended when the peer answers (LinkDetached)."""
        following = self._after(Step.DETACH)
        self.session.send(Step.DETACH, Detach(handle=self.handle, closed=closed, error=error))
        self.local_state = following
        self.session.forget_deliveries(self)

    def answer_detach(self, *, closed: bool) -> None:
        """The peer has detached: do the same, if we have not."""
        if self.local_state is LinkState.UNATTACHED:
            self._attach_nothing()
        if self.local_state is LinkState.ATTACHED:
            self.detach(closed=closed)

    def send_flow(self, *, drain: bool = False, echo: bool = False) -> None:
        """Tell the peer this link's state."""
        self._after(Step.FLOW)
        self.session.send_flow(
            handle=self.handle, delivery_count=self.delivery_count, link_credit=self.credit, drain=drain, echo=echo
        )

    def receive_flow(self, flow: Flow) -> bool:
        """Take over what the peer says of this link; True where the program should hear of it."""
        raise NotImplementedError

    def _theirs(self) -> Attach:
        if self.remote_attach is None:
            raise LocalError(f"{self!r} was not asked for by the peer")
        return self.remote_attach


class Sender(Link):
    """Our end of a link on which we send."""

    role = Role.SENDER

    def __init__(self, session: Session, name: str, handle: int) -> None:
        """Made by the session."""
        super().__init__(session, name, handle)
        self.drain_requested = False
        """The peer wants what there is now, and the rest of its credit back: `send`, then `drained`."""
        self.peer_properties: dict[str, object] | None = None
        """The properties of the peer's last flow on this link."""
        self._writer = TransferWriter(session.channel, handle)
        self._next_tag = 0

    @property
    def sendable(self) -> int:
        """How many messages may be sent now: within the link's credit, the session's window and our own limits."""
        session = self.session
        if not self.is_attached:
            return 0
        return max(0, min(self.credit, session.sendable))

    def send(
        self,
        payload: bytes,
        tag: bytes | None = None,
        *,
        settled: bool | None = None,
        message_format: int = 0,
        state: Composite | None = None,
    ) -> OutgoingDelivery:
        """Send one encoded message. Frames that the session's window has no room for wait for it.

        `settled` is as the link's settle mode says where not given: True means that no outcome is asked for.
        """
        if self.credit <= 0 or not self.is_attached:
            raise LocalError(f"no credit to send on {self!r}")
        if state is not None:
            self._check_fits(state)
        if tag is None:
            tag = self._make_tag()
        if settled is None:
            settled = self.snd_settle_mode == SenderSettleMode.SETTLED
        session = self.session
        delivery = OutgoingDelivery(self, session.take_delivery_id(), tag, settled)
        self.delivery_count = (self.delivery_count + 1) & SERIAL_MASK
        self.credit -= 1
        if not settled:
            session.outgoing_unsettled[delivery.delivery_id] = delivery
            self.unsettled_count += 1
        if state is None:
            head = self._writer.head(
                delivery.delivery_id, tag, message_format, settled=settled, more=False, payload_size=len(payload)
            )
            if len(head) + len(payload) <= session.max_frame_size:
                session.send_transfer(self, delivery.delivery_id, head, payload)
                return delivery
        self._send_in_pieces(delivery, payload, message_format, state)
        return delivery

    def _check_fits(self, state: Composite) -> None:
        """Each frame of a message has its state in it, and needs room for some of the message, too."""
        size, largest = len(state.encode()) + _TRANSFER_SIZE, self.session.max_frame_size
        if size >= largest:
            raise FrameTooLarge(f"{state.symbol} makes a transfer of {size} bytes; the peer takes {largest}")

    def _make_tag(self) -> bytes:
        self._next_tag = (self._next_tag + 1) & SERIAL_MASK
        return self._next_tag.to_bytes(4, "big")

    def _send_in_pieces(
        self, delivery: OutgoingDelivery, payload: bytes, message_format: int, state: Composite | None
    ) -> None:
        at = 0
        while True:
            first = at == 0
            transfer = Transfer(
                handle=self.handle,
                delivery_id=delivery.delivery_id,
                delivery_tag=delivery.tag if first else None,
                message_format=message_format if first else None,
                settled=delivery.settled,
                more=True,
                state=state,
            )
            room = self.session.max_frame_size - HEADER_SIZE - len(transfer.encode())
            piece = payload[at : at + room]
            at += len(piece)
            if at == len(payload):
                transfer.more = False
            head = self.session.frame_head(transfer.encode(), len(piece))
            self.session.send_transfer(self, delivery.delivery_id, head, piece)
            if at == len(payload):
                return

    def abort(self, delivery: OutgoingDelivery) -> bool:
        """Take back a message whose frames have not all left. False where they have."""
        session, delivery_id = self.session, delivery.delivery_id
        if not session.drop_waiting_frames(self, delivery_id):
            return False
        if session.outgoing_unsettled.pop(delivery_id, None) is not None:
            self.unsettled_count -= 1
        delivery.settled = True
        aborted = Transfer(
            handle=self.handle, delivery_id=delivery_id, delivery_tag=delivery.tag, settled=True, aborted=True
        )
        session.send_transfer(self, delivery_id, session.frame_head(aborted.encode(), 0), b"")
        return True

    def settle(
        self, deliveries: Sequence[OutgoingDelivery], state: Composite | None = ACCEPTED, *, settled: bool = True
    ) -> None:
        """Settle messages we sent: the confirmation that a receiver in mode `second` waits for."""
        self.session.dispose(Role.SENDER, deliveries, state, settled=settled)

    def drained(self) -> None:
        """Give back the credit that is left: there is nothing more to send now. Before `accept` this does nothing."""
        if not self.is_attached:
            return
        self.drain_requested = False
        self.delivery_count = (self.delivery_count + self.credit) & SERIAL_MASK
        self.credit = 0
        self.send_flow(drain=True)

    def receive_flow(self, flow: Flow) -> bool:
        """New credit, or a wish to drain."""
        if flow.link_credit is not None:
            # A peer that has not seen our attach yet does not know our count, which is then still the initial one.
            seen = flow.delivery_count if flow.delivery_count is not None else self.delivery_count
            on_the_way = (self.delivery_count - seen) & SERIAL_MASK
            self.credit = max(0, flow.link_credit - on_the_way)
        self.drain_requested = flow.drain
        self.peer_properties = flow.properties
        return True


class _Partial:
    """A message whose frames are still arriving. Too large a one is counted, not kept."""

    __slots__ = ("delivery_id", "kept", "message_format", "pieces", "settled", "size", "state", "tag")

    def __init__(self, delivery_id: int, tag: bytes, message_format: int) -> None:
        self.delivery_id = delivery_id
        self.tag = tag
        self.message_format = message_format
        self.pieces: list[bytes] = []
        self.size = 0
        self.kept = 0
        """Bytes in `pieces`."""
        self.settled = False
        self.state: object = None


class Receiver(Link):
    """Our end of a link on which we receive."""

    role = Role.RECEIVER

    def __init__(self, session: Session, name: str, handle: int) -> None:
        """Made by the session."""
        super().__init__(session, name, handle)
        self.available = 0
        """How many messages the peer says it has waiting."""
        self.max_message_size = session.limits.max_message_size
        self.unanswered_count = 0
        """Messages handed to the program of which it has said nothing yet."""
        self._window = 0
        self._draining = False
        self._partial: _Partial | None = None
        self._enforce_credit = session.limits.enforce_credit

    def attach(self, attach: Attach) -> None:
        """Send our attach; the size it advertises is the one that is kept."""
        super().attach(attach)
        if attach.max_message_size:
            self.max_message_size = attach.max_message_size

    def grant(self, credit: int, *, drain: bool = False, echo: bool = False) -> None:
        """Let the peer send `credit` messages from now on; it replaces what was left of an earlier grant."""
        self.credit = credit
        self._draining = drain
        self.send_flow(drain=drain, echo=echo)

    def keep_credit(self, window: int) -> None:
        """Have at most `window` messages on their way or unanswered, and grant more as the program answers them."""
        self._window = window
        self.grant(max(0, window - self.unanswered_count))

    def drain(self) -> None:
        """Ask for what the peer has now; `Drained` tells when no credit is left."""
        self.grant(self.credit, drain=True)

    def settle(
        self, deliveries: Sequence[IncomingDelivery], state: Composite | None = ACCEPTED, *, settled: bool = True
    ) -> None:
        """Tell the outcome of messages received. Ranges are made of neighbours.

        Deliveries of which nothing can be said any more (settled by the peer, link or session gone) are passed over.
        """
        self.session.dispose(Role.RECEIVER, deliveries, state, settled=settled)
        self.top_up()

    def top_up(self) -> None:
        """Grant more where the window set by `keep_credit` is half empty."""
        window = self._window
        if window and (self.credit + self.unanswered_count) * 2 <= window and self.is_attached:
            self.grant(window - self.unanswered_count)

    def receive_flow(self, flow: Flow) -> bool:
        """The sender's account of itself. Credit in it is meaningless, its count matters for a drain only."""
        if flow.available is not None:
            self.available = flow.available
        if self._draining and flow.delivery_count is not None:
            used = (flow.delivery_count - self.delivery_count) & SERIAL_MASK
            if used <= self.credit:
                self.delivery_count = flow.delivery_count
                self.credit -= used
            if self.credit == 0:
                self._draining = False
                return True
        return False

    def receive_transfer(
        self, delivery_id: int | None, tag: bytes | None, tail: TransferTail, payload: bytes
    ) -> IncomingDelivery | int | None:
        """One frame: the whole message, if this was its last; its size, if it had to be rejected; else nothing."""
        if self.local_state is LinkState.DETACHED:
            return None
        if self._partial is not None or not tail.is_whole:
            return self._receive_piece(delivery_id, tag, tail, payload)
        if delivery_id is None or tag is None or len(tag) > _MAX_TAG_BYTES:
            raise _incomplete_start(self)
        self._use_credit()
        if len(payload) > self.max_message_size:
            return self._reject(delivery_id, len(payload), settled=tail.settled)
        delivery = IncomingDelivery(self, delivery_id, tag, tail.message_format, payload, tail.settled, tail.state)
        if not tail.settled:
            self.session.add_incoming(delivery)
        return delivery

    def _use_credit(self) -> None:
        self.delivery_count = (self.delivery_count + 1) & SERIAL_MASK
        if self.credit > 0:
            self.credit -= 1
        elif self._enforce_credit:
            raise LinkViolation(TRANSFER_LIMIT_EXCEEDED, "a message was sent without credit for it")

    def _receive_piece(
        self, delivery_id: int | None, tag: bytes | None, tail: TransferTail, payload: bytes
    ) -> IncomingDelivery | int | None:
        partial = self._partial
        if partial is None:
            if delivery_id is None or tag is None or len(tag) > _MAX_TAG_BYTES:
                raise _incomplete_start(self)
            partial = self._partial = _Partial(delivery_id, tag, tail.message_format)
            self._use_credit()
        elif delivery_id is not None and delivery_id != partial.delivery_id:
            raise SessionViolation(
                INVALID_FIELD, f"delivery {delivery_id} starts inside delivery {partial.delivery_id}"
            )
        if tail.aborted:
            self.drop_partial()
            self.top_up()
            return None
        self._add_piece(partial, tail, payload)
        if tail.more:
            return None
        self.drop_partial()
        if partial.size > self.max_message_size:
            return self._reject(partial.delivery_id, partial.size, settled=partial.settled)
        delivery = IncomingDelivery(
            self,
            partial.delivery_id,
            partial.tag,
            partial.message_format,
            b"".join(partial.pieces),
            partial.settled,
            partial.state,
        )
        if not partial.settled:
            self.session.add_incoming(delivery)
        return delivery

    def _add_piece(self, partial: _Partial, tail: TransferTail, payload: bytes) -> None:
        partial.size += len(payload)
        partial.settled = partial.settled or tail.settled
        partial.state = tail.state if tail.state is not None else partial.state
        if partial.size > self.max_message_size:
            self.session.connection.count_assembling(-partial.kept)
            partial.kept = 0
            partial.pieces.clear()
        else:
            self.session.connection.count_assembling(len(payload))
            partial.kept += len(payload)
            if payload:  # frames without any may come without end
                partial.pieces.append(payload)

    def drop_partial(self) -> None:
        """Forget a message that is still arriving, or has just arrived."""
        if self._partial is not None:
            self.session.connection.count_assembling(-self._partial.kept)
            self._partial = None

    def _reject(self, delivery_id: int, size: int, *, settled: bool) -> int:
        message = f"the message has {size} bytes; {self.max_message_size} are allowed"
        if settled:  # there is no other way to tell
            raise LinkViolation(MESSAGE_SIZE_EXCEEDED, message)
        error = Error(condition=MESSAGE_SIZE_EXCEEDED, description=message)
        self.session.send_disposition(Role.RECEIVER, delivery_id, delivery_id, Rejected(error=error).encode())
        self.top_up()
        return size


def _incomplete_start(link: Link) -> SessionViolation:
    message = f"the first frame of a delivery on {link.name!r:.80} has no delivery id, no tag, or a tag over 32 bytes"
    return SessionViolation(INVALID_FIELD, message)
