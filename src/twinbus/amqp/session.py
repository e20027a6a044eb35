"""Sessions: ordered conversations on a channel, with windows, links and deliveries.

Owns the incoming window, and the mapping from handles to links. Deliveries are in `unsettled_deliveries`, messages that
wait for the peer's window in `send_queue`; credit belongs to the links.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.amqp import terminus  # noqa: F401  # registers the composites that attach carries
from twinbus.amqp.codec.delivery_frames import read_transfer
from twinbus.amqp.codec.performatives import Attach, Begin, Detach, End, Error, Flow
from twinbus.amqp.errors import (
    FRAME_SIZE_TOO_SMALL,
    FRAMING_ERROR,
    HANDLE_IN_USE,
    INVALID_FIELD,
    LINK_STOLEN,
    RESOURCE_LIMIT_EXCEEDED,
    UNATTACHED_HANDLE,
    WINDOW_VIOLATION,
    AmqpError,
    LinkViolation,
    LocalError,
    SessionViolation,
    Violation,
)
from twinbus.amqp.events import (
    AttachConfirmed,
    AttachRequested,
    CreditGranted,
    DeliveriesReceived,
    DeliveryRejected,
    Drained,
    LinkDetached,
    SessionEnded,
)
from twinbus.amqp.link import SERIAL_MASK, Link
from twinbus.amqp.receiver import Receiver
from twinbus.amqp.send_queue import SendQueue
from twinbus.amqp.sender import Sender
from twinbus.amqp.states import (
    SESSION_TRANSITIONS,
    LinkState,
    ReceiverSettleMode,
    Role,
    SenderSettleMode,
    SessionState,
    Step,
)
from twinbus.amqp.unsettled_deliveries import UnsettledDeliveries

if TYPE_CHECKING:
    from twinbus.amqp.codec.composite import Composite
    from twinbus.amqp.connection import Connection
    from twinbus.amqp.events import Event

_ATTACH_SIZE: Final = 80
"""Upper bound for the size of an attach frame without source, target and link name."""


class Session:
    """Local end of a session."""

    def __init__(self, connection: Connection, channel: int) -> None:
        """Create an unmapped session; only the connection does this."""
        self.connection = connection
        self.channel = channel
        self.remote_channel: int | None = None
        self.limits = connection.settings.limits
        """Advertised limits. The lower limits for unauthenticated peers are in `connection.limits`."""
        self.max_frame_size = 0
        """The peer's maximum frame size, set when its begin arrives."""
        self.local_state = SessionState.UNMAPPED
        self.remote_state = SessionState.UNMAPPED
        self.is_dropped = False
        """True if the program was notified that the session ended; late frames from the peer are dropped."""
        self.links: dict[tuple[str, bool], Link] = {}
        """Links by name and local role: a peer may use one name for a sender and a receiver."""
        self.unsettled_deliveries = UnsettledDeliveries(self)
        self.send_queue = SendQueue(self)
        self._by_remote_handle: dict[int, Link] = {}
        self._free_handles: list[int] = []
        self._next_handle = 0
        self._remote_handle_max = SERIAL_MASK
        self._next_incoming_id = 0
        self._incoming_left = self.limits.incoming_window
        """Number of frames that the peer may send before we reopen the window."""
        self._low_window = max(1, self.limits.incoming_window // 2)

    def __repr__(self) -> str:
        return f"<Session on channel {self.channel} {self.local_state.name}/{self.remote_state.name}>"

    # --- local steps --------------------------------------------------------------------------------------------------

    def send(self, step: Step, performative: Composite) -> None:
        """Queue a frame for this session."""
        next_state = SESSION_TRANSITIONS.get((self.local_state, step))
        if next_state is None:
            raise LocalError(f"{step.name.lower()} is not allowed on {self!r}")
        self.connection.send(step, self.channel, performative)
        self.local_state = next_state

    def begin(self) -> None:
        """Send begin, on our own initiative or in response to the peer's begin."""
        self.send(
            Step.BEGIN,
            Begin(
                remote_channel=self.remote_channel,
                next_outgoing_id=self.send_queue.next_id,
                incoming_window=self.limits.incoming_window,
                outgoing_window=self.limits.max_unsettled,
                handle_max=self.limits.max_handle,
            ),
        )

    def end(self, error: Error | None = None) -> None:
        """Send end. The session has ended when the peer responds (SessionEnded)."""
        self.send(Step.END, End(error=error))
        self.stop()

    def stop(self) -> None:
        """Stop sending, and ignore all frames except end: we have closed the session or its connection."""
        self.local_state = SessionState.ENDED
        unsent = self.send_queue.clear()
        for link in self._all_links():
            self.forget_deliveries(link)
            link.local_state = LinkState.DETACHED
        for delivery in unsent:
            delivery.link.lost_deliveries.append(delivery)
        if self.remote_channel is not None:
            self.connection.live_sessions.pop(self.remote_channel, None)

    def attach_sender(
        self,
        name: str,
        *,
        target: Composite,
        source: Composite | None = None,
        snd_settle_mode: int = SenderSettleMode.MIXED,
        rcv_settle_mode: int = ReceiverSettleMode.FIRST,
        properties: dict[str, object] | None = None,
    ) -> Sender:
        """Attach a link on which we send. AttachConfirmed or LinkDetached follows."""
        link = Sender(self, name, self._new_handle(name, Role.SENDER))
        self._attach(link, source, target, snd_settle_mode, rcv_settle_mode, properties)
        return link

    def attach_receiver(
        self,
        name: str,
        *,
        source: Composite,
        target: Composite | None = None,
        snd_settle_mode: int = SenderSettleMode.MIXED,
        rcv_settle_mode: int = ReceiverSettleMode.FIRST,
        properties: dict[str, object] | None = None,
    ) -> Receiver:
        """Attach a link on which we receive; no messages arrive before `grant` or `keep_credit`."""
        link = Receiver(self, name, self._new_handle(name, Role.RECEIVER))
        self._attach(link, source, target, snd_settle_mode, rcv_settle_mode, properties)
        return link

    def _attach(
        self,
        link: Link,
        source: Composite | None,
        target: Composite | None,
        snd_settle_mode: int,
        rcv_settle_mode: int,
        properties: dict[str, object] | None,
    ) -> None:
        attach = Attach(
            name=link.name,
            handle=link.handle,
            role=link.role,
            snd_settle_mode=snd_settle_mode,
            rcv_settle_mode=rcv_settle_mode,
            source=source,
            target=target,
            initial_delivery_count=0 if link.role is Role.SENDER else None,
            max_message_size=self.limits.max_message_size,
            properties=properties,
        )
        try:
            link.attach(attach)
        except AmqpError:
            self._free_handles.append(link.handle)
            raise
        self._add(link)
        link.is_announced = True

    def _add(self, link: Link) -> None:
        self.links[link.name, link.role] = link
        self.connection.link_count += 1

    def _new_handle(self, name: str, role: bool) -> int:
        if (name, role) in self.links:
            raise LocalError(f"{self!r} already has a link named {name!r}")
        if self.connection.link_count >= self.connection.limits.max_links:
            raise LocalError(f"the connection has reached its limit of {self.connection.link_count} links")
        return self._take_handle()

    def _take_handle(self) -> int:
        if self._free_handles:
            return self._free_handles.pop()
        handle = self._next_handle
        if handle > self._remote_handle_max:
            raise LocalError(f"the peer allows no handle above {self._remote_handle_max}")
        self._next_handle += 1
        return handle

    def send_flow(
        self,
        *,
        handle: int | None = None,
        delivery_count: int | None = None,
        link_credit: int | None = None,
        drain: bool = False,
        echo: bool = False,
    ) -> None:
        """Send our windows and, with a handle, a link's credit."""
        self._incoming_left = self.limits.incoming_window
        flow = Flow(
            next_incoming_id=self._next_incoming_id if self.remote_state is not SessionState.UNMAPPED else None,
            incoming_window=self.limits.incoming_window,
            next_outgoing_id=self.send_queue.next_id,
            outgoing_window=self.limits.max_unsettled,
            handle=handle,
            delivery_count=delivery_count,
            link_credit=link_credit,
            drain=drain,
            echo=echo,
        )
        self.send(Step.FLOW, flow)

    def refresh_window(self) -> None:
        """Reopen the incoming window if more than half of it is used. Every flow for a link also reopens the window."""
        if self._incoming_left < self._low_window and self.local_state is SessionState.MAPPED:
            self.send_flow()

    def forget_deliveries(self, link: Link) -> None:
        """Drop the unsettled and unsent deliveries of a link that ends; their outcomes can no longer arrive."""
        if isinstance(link, Receiver):
            link.drop_partial()
        link.lost_deliveries += self.unsettled_deliveries.forget(link) + self.send_queue.drop(link)

    # --- steps of the peer --------------------------------------------------------------------------------------------

    def receive_begin(self, begin: Begin) -> None:
        """Apply the peer's begin."""
        self.remote_state = SessionState.MAPPED
        self.max_frame_size = self.connection.remote_max_frame_size
        self._next_incoming_id = begin.next_outgoing_id
        self.send_queue.window = begin.incoming_window
        self._remote_handle_max = begin.handle_max

    def receive_transfer(
        self, data: bytes, at: int, end: int, batch: DeliveriesReceived | None, events: list[Event]
    ) -> DeliveriesReceived | None:
        """Process a transfer frame. Add the message to `batch`, the preceding event, if both are for the same link.

        Return the event to which the next message may be added, or None.
        """
        handle, delivery_id, tag, tail, payload_at = read_transfer(data, at, end, self.limits)
        self._next_incoming_id = (self._next_incoming_id + 1) & SERIAL_MASK
        self._incoming_left -= 1
        if self._incoming_left < self._low_window:
            self._request_refresh()
        link = self._by_remote_handle.get(handle)
        if not isinstance(link, Receiver):
            raise self._no_such_link(handle, "transfer")
        try:
            result = link.receive_transfer(delivery_id, tag, tail, data[payload_at:end])
        except LinkViolation as violation:
            self._refuse_or_detach(link, _error_of(violation))
            return None
        if isinstance(result, int):
            events.append(DeliveryRejected(link=link, size=result))
            batch = None
        elif result is not None:
            if batch is not None and batch.link is link:
                batch.deliveries.append(result)
            else:
                batch = DeliveriesReceived(link=link, deliveries=[result])
                events.append(batch)
        if link.credit == 0 and link.has_drained():
            events.append(Drained(link=link))
            batch = None
        return batch

    def _request_refresh(self) -> None:
        # Send the flow together with the next output: the peer would not see it earlier, and the old window applies.
        if self._incoming_left < 0:
            raise SessionViolation(
                WINDOW_VIOLATION, f"more than {self.limits.incoming_window} transfers without waiting for a flow"
            )
        self.connection.sessions_to_refresh.add(self)

    def receive_attach(self, attach: Attach, events: list[Event]) -> None:
        """Process the peer's attach: the response to ours, or a request for a new link."""
        if attach.handle > self.limits.max_handle:
            raise Violation(FRAMING_ERROR, f"handle {attach.handle} is above {self.limits.max_handle}")
        if attach.handle in self._by_remote_handle:
            raise SessionViolation(HANDLE_IN_USE, f"handle {attach.handle} is already attached")
        if attach.snd_settle_mode > SenderSettleMode.MIXED or attach.rcv_settle_mode > ReceiverSettleMode.SECOND:
            modes = f"{int(attach.snd_settle_mode)} and {int(attach.rcv_settle_mode)}"
            raise SessionViolation(INVALID_FIELD, f"invalid settle modes {modes}")
        role = not attach.role
        existing = self.links.get((attach.name, role))
        if existing is not None and existing.remote_state is LinkState.UNATTACHED:
            self._map(existing, attach)
            existing.snd_settle_mode, existing.rcv_settle_mode = attach.snd_settle_mode, attach.rcv_settle_mode
            if existing.local_state is LinkState.ATTACHED:
                events.append(AttachConfirmed(link=existing, attach=attach))
            return
        self._check_attach(attach)
        if existing is not None:
            self._steal(existing, events)
        link = self._make_link(attach, role)
        self._map(link, attach)
        if self.connection.link_count > self.connection.limits.max_links:
            self._refuse_over_limit(link)
            return
        link.is_announced = True
        events.append(AttachRequested(link=link, attach=attach))

    def _check_attach(self, attach: Attach) -> None:
        """Check the size of the link's name, which even a refusal contains, and the number of attaches."""
        connection = self.connection
        name_size = len(attach.name.encode())
        if name_size > self.limits.max_name_bytes:
            message = f"the link name has {name_size} bytes; the limit is {self.limits.max_name_bytes}"
            raise Violation(RESOURCE_LIMIT_EXCEEDED, message)
        size = name_size + _ATTACH_SIZE
        if size > self.max_frame_size:
            message = f"the answer to an attach has {size} bytes; the peer accepts frames of {self.max_frame_size}"
            raise Violation(FRAME_SIZE_TOO_SMALL, message)
        connection.attach_count += 1
        max_attaches = connection.limits.max_attaches
        if connection.attach_count > max_attaches:
            raise Violation(
                RESOURCE_LIMIT_EXCEEDED, f"{max_attaches} links were attached on this connection, its limit"
            )

    def _refuse_over_limit(self, link: Link) -> None:
        limit = self.connection.limits.max_links
        if self.connection.link_count > 2 * limit:  # refused links count until the peer detaches them
            raise Violation(RESOURCE_LIMIT_EXCEEDED, f"too many attaches beyond the limit of {limit} links")
        message = f"the connection has reached its limit of {limit} links"
        link.refuse(Error(condition=RESOURCE_LIMIT_EXCEEDED, description=message))

    def _make_link(self, attach: Attach, role: bool) -> Link:
        try:
            handle = self._take_handle()
        except LocalError as error:
            raise SessionViolation(RESOURCE_LIMIT_EXCEEDED, f"no free handle to answer an attach: {error}") from None
        link: Link = (Sender if role is Role.SENDER else Receiver)(self, attach.name, handle)
        self._add(link)
        return link

    def _map(self, link: Link, attach: Attach) -> None:
        link.remote_state = LinkState.ATTACHED
        link.remote_attach = attach
        link.remote_handle = attach.handle
        self._by_remote_handle[attach.handle] = link
        if link.role is Role.RECEIVER:
            link.delivery_count = attach.initial_delivery_count or 0

    def _steal(self, link: Link, events: list[Event]) -> None:
        """Detach or refuse a link because the peer attached a new link with the same name."""
        error = Error(condition=LINK_STOLEN, description=f"another link named {link.name!r:.80} was attached")
        self._refuse_or_detach(link, error)
        # The old link's handle stays mapped until the peer detaches it; its name is free for the new link.
        self.forget_name(link)
        self._announce_detached(link, events, closed=True, error=error)

    def receive_flow(self, flow: Flow, events: list[Event]) -> None:
        """Process the peer's flow: its windows and, with a handle, a link's credit."""
        link = None
        if flow.handle is not None:
            link = self._by_remote_handle.get(flow.handle)
            if link is None:
                raise self._no_such_link(flow.handle, "flow")
        if self.send_queue.receive_flow(flow):
            self.connection.reopened_sessions[self.channel] = self
        if link is not None:
            self._receive_link_flow(link, flow, events)
        elif flow.echo:
            self.send_flow()

    def announce_reopened(self, events: list[Event]) -> None:
        """Report CreditGranted for every sender with credit: the window or `unsettled_deliveries` has room again."""
        if self.send_queue.is_open:
            senders = [link for link in self.links.values() if isinstance(link, Sender)]
            events.extend([CreditGranted(link=link) for link in senders if link.credit > 0 or link.ignores_credit])

    def _receive_link_flow(self, link: Link, flow: Flow, events: list[Event]) -> None:
        if link.local_state is LinkState.DETACHED:
            return
        if link.receive_flow(flow):
            # A link is either a Sender or a Receiver, which mypy does not know.
            events.append(CreditGranted(link=link) if isinstance(link, Sender) else Drained(link=link))  # type: ignore[arg-type]
        if flow.echo:
            link.answer_echo()

    def forget_name(self, link: Link) -> None:
        """Free the name of a refused link; its handle stays in use until the peer detaches the link."""
        if self.links.get((link.name, link.role)) is link:
            del self.links[link.name, link.role]

    def receive_detach(self, detach: Detach, events: list[Event]) -> None:
        """Process the peer's detach: respond to it and remove the link."""
        link = self._by_remote_handle.pop(detach.handle, None)
        if link is None:
            raise self._no_such_link(detach.handle, "detach")
        link.remote_state = LinkState.DETACHED
        link.answer_detach(closed=detach.closed)
        self.forget_deliveries(link)
        self.forget_name(link)
        self._free_handles.append(link.handle)
        self.connection.link_count -= 1
        self._announce_detached(link, events, closed=detach.closed, error=detach.error)

    def _announce_detached(self, link: Link, events: list[Event], *, closed: bool, error: Error | None) -> None:
        if link.is_announced:
            link.is_announced = False
            events.append(LinkDetached(link=link, closed=closed, error=error, lost=link.lost_deliveries))

    @staticmethod
    def _refuse_or_detach(link: Link, error: Error) -> None:
        """Refuse a link that the program has not responded to yet, or detach a link that the program has accepted."""
        if link.local_state is LinkState.UNATTACHED:
            link.refuse(error)
        else:
            link.detach(error=error)

    def fail(self, violation: SessionViolation, events: list[Event]) -> None:
        """End the session because of a violation by the peer."""
        error = _error_of(violation)
        if self.local_state is SessionState.UNMAPPED:
            self.begin()
        if self.local_state is SessionState.MAPPED:
            self.end(error)
        self.drop(error, events)

    def receive_end(self, end: End, events: list[Event]) -> None:
        """Process the peer's end: respond to it and drop the session."""
        self.remote_state = SessionState.ENDED
        if self.local_state is SessionState.MAPPED:
            self.end()
        self.drop(end.error, events)

    def drop(self, error: Error | None, events: list[Event]) -> None:
        """Drop all links and report SessionEnded, once, whichever end ended the session."""
        if self.is_dropped:
            return
        self.is_dropped = True
        self.stop()
        for link in self._all_links():
            link.remote_state = LinkState.DETACHED
            self.connection.link_count -= 1
            self._announce_detached(link, events, closed=True, error=error)
        self.links.clear()
        self._by_remote_handle.clear()
        events.append(SessionEnded(session=self, error=error))

    def _all_links(self) -> list[Link]:
        """Return all links, including those whose name another link has taken over."""
        return list(dict.fromkeys([*self.links.values(), *self._by_remote_handle.values()]))

    def _no_such_link(self, handle: int, frame_name: str) -> SessionViolation:
        return SessionViolation(UNATTACHED_HANDLE, f"{frame_name} on handle {handle}: no matching link is attached")


def _error_of(violation: Violation) -> Error:
    return Error(condition=violation.condition, description=violation.description)
