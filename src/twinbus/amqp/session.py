"""Sessions: an ordered conversation on a channel, with its windows, its links and its deliveries.

Owns: our window for the peer's transfers, and which link a handle stands for. Deliveries are in the `ledger`, what
waits for the peer's window in the `outbox`; what credit allows is the link's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.amqp import terminus  # noqa: F401  # attach carries them: read as what they are, whoever else imports it
from twinbus.amqp.delivery_frames import read_transfer
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
from twinbus.amqp.performatives import Attach, Begin, Detach, End, Error, Flow
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
    from twinbus.amqp.composite import Composite
    from twinbus.amqp.connection import Connection
    from twinbus.amqp.events import Event

_ATTACH_SIZE: Final = 80
"""An attach frame without source and target takes less, its link's name aside."""


class Session:
    """Our end of a session."""

    def __init__(self, connection: Connection, channel: int) -> None:
        """Made by the connection."""
        self.connection = connection
        self.channel = channel
        self.remote_channel: int | None = None
        self.limits = connection.settings.limits
        """Those that are advertised. What the peer may hold before it is trusted is in the connection's."""
        self.max_frame_size = 0
        """Of the peer, known when its begin has come."""
        self.local_state = SessionState.UNMAPPED
        self.remote_state = SessionState.UNMAPPED
        self.is_dropped = False
        """Told to the program as ended; frames of the peer's that are still on their way are dropped."""
        self.links: dict[tuple[str, bool], Link] = {}
        """By name and our role: a peer may use one name for a sender and a receiver."""
        self.unsettled_deliveries = UnsettledDeliveries(self)
        self.send_queue = SendQueue(self)
        self._by_remote_handle: dict[int, Link] = {}
        self._free_handles: list[int] = []
        self._next_handle = 0
        self._remote_handle_max = SERIAL_MASK
        self._next_incoming_id = 0
        self._incoming_left = self.limits.incoming_window
        """Frames the peer may send before it has to hear from us."""
        self._low_window = max(1, self.limits.incoming_window // 2)

    def __repr__(self) -> str:
        return f"<Session on channel {self.channel} {self.local_state.name}/{self.remote_state.name}>"

    # --- our steps ----------------------------------------------------------------------------------------------------

    def send(self, step: Step, performative: Composite) -> None:
        """Queue a frame of this session."""
        following = SESSION_TRANSITIONS.get((self.local_state, step))
        if following is None:
            raise LocalError(f"{step.name.lower()} on {self!r}")
        self.connection.send(step, self.channel, performative)
        self.local_state = following

    def begin(self) -> None:
        """Send begin: ours, or the answer to theirs."""
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
        """End our side. The session has ended when the peer answers (SessionEnded)."""
        self.send(Step.END, End(error=error))
        self.stop()

    def stop(self) -> None:
        """Say nothing more and listen to nothing but the end: the session, or its connection, was closed by us."""
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
        """Ask for a link on which we send. AttachConfirmed or LinkDetached tells the answer."""
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
        """Ask for a link on which we receive; nothing comes before `grant` or `keep_credit`."""
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
            raise LocalError(f"{self!r} has a link named {name!r} already")
        if self.connection.link_count >= self.connection.limits.max_links:
            raise LocalError(f"the connection has {self.connection.link_count} links, its limit")
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
        """Tell the peer our windows and, with a handle, a link's credit."""
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
        """Reopen the incoming window if half of it is used; the flows of links do so by the way."""
        if self._incoming_left < self._low_window and self.local_state is SessionState.MAPPED:
            self.send_flow()

    def forget_deliveries(self, link: Link) -> None:
        """Drop what is unsettled or unsent on a link that goes away: nothing can be said of it any more."""
        if isinstance(link, Receiver):
            link.drop_partial()
        link.lost_deliveries += self.unsettled_deliveries.forget(link) + self.send_queue.drop(link)

    # --- the peer's steps ---------------------------------------------------------------------------------------------

    def receive_begin(self, begin: Begin) -> None:
        """Take over the peer's side."""
        self.remote_state = SessionState.MAPPED
        self.max_frame_size = self.connection.remote_max_frame_size
        self._next_incoming_id = begin.next_outgoing_id
        self.send_queue.window = begin.incoming_window
        self._remote_handle_max = begin.handle_max

    def receive_transfer(
        self, data: bytes, at: int, end: int, batch: DeliveriesReceived | None, events: list[Event]
    ) -> DeliveriesReceived | None:
        """One transfer frame. Its message joins `batch`, the event before it, where that is of the same link."""
        handle, delivery_id, tag, tail, payload_at = read_transfer(data, at, end, self.limits)
        self._next_incoming_id = (self._next_incoming_id + 1) & SERIAL_MASK
        self._incoming_left -= 1
        if self._incoming_left < self._low_window:
            self._request_refresh()
        link = self._by_remote_handle.get(handle)
        if not isinstance(link, Receiver):
            raise self._no_such_link(handle, "transfer")
        try:
            found = link.receive_transfer(delivery_id, tag, tail, data[payload_at:end])
        except LinkViolation as violation:
            self._refuse_or_detach(link, _error_of(violation))
            return None
        if isinstance(found, int):
            events.append(DeliveryRejected(link=link, size=found))
            batch = None
        elif found is not None:
            if batch is not None and batch.link is link:
                batch.deliveries.append(found)
            else:
                batch = DeliveriesReceived(link=link, deliveries=[found])
                events.append(batch)
        if link.credit == 0 and link.has_drained():
            events.append(Drained(link=link))
            batch = None
        return batch

    def _request_refresh(self) -> None:
        # Not at once: the peer cannot see a flow before its bytes are sent, so until then the old window holds.
        if self._incoming_left < 0:
            raise SessionViolation(
                WINDOW_VIOLATION, f"more than {self.limits.incoming_window} transfers without waiting for a flow"
            )
        self.connection.sessions_to_refresh.add(self)

    def receive_attach(self, attach: Attach, events: list[Event]) -> None:
        """The peer's attach: the answer to ours, or a wish for a new link."""
        if attach.handle > self.limits.max_handle:
            raise Violation(FRAMING_ERROR, f"handle {attach.handle} is above {self.limits.max_handle}")
        if attach.handle in self._by_remote_handle:
            raise SessionViolation(HANDLE_IN_USE, f"handle {attach.handle} is attached already")
        if attach.snd_settle_mode > SenderSettleMode.MIXED or attach.rcv_settle_mode > ReceiverSettleMode.SECOND:
            modes = f"{int(attach.snd_settle_mode)} and {int(attach.rcv_settle_mode)}"
            raise SessionViolation(INVALID_FIELD, f"settle modes {modes}, which there are not")
        role = not attach.role
        known = self.links.get((attach.name, role))
        if known is not None and known.remote_state is LinkState.UNATTACHED:
            self._map(known, attach)
            known.snd_settle_mode, known.rcv_settle_mode = attach.snd_settle_mode, attach.rcv_settle_mode
            if known.local_state is LinkState.ATTACHED:
                events.append(AttachConfirmed(link=known, attach=attach))
            return
        self._check_attach(attach)
        if known is not None:
            self._steal(known, events)
        link = self._make_link(attach, role)
        self._map(link, attach)
        if self.connection.link_count > self.connection.limits.max_links:
            self._refuse_over_limit(link)
            return
        link.is_announced = True
        events.append(AttachRequested(link=link, attach=attach))

    def _check_attach(self, attach: Attach) -> None:
        """The link's name is kept, and even a refusal has it in it; and each attempt costs something."""
        connection = self.connection
        name_size = len(attach.name.encode())
        if name_size > self.limits.max_name_bytes:
            message = f"a link's name of {name_size} bytes; it can have {self.limits.max_name_bytes}"
            raise Violation(RESOURCE_LIMIT_EXCEEDED, message)
        size = name_size + _ATTACH_SIZE
        if size > self.max_frame_size:
            message = f"the answer to an attach has {size} bytes, the peer takes {self.max_frame_size}"
            raise Violation(FRAME_SIZE_TOO_SMALL, message)
        connection.attach_count += 1
        most = connection.limits.max_attaches
        if connection.attach_count > most:
            raise Violation(RESOURCE_LIMIT_EXCEEDED, f"{most} links were attached, the limit of this connection")

    def _refuse_over_limit(self, link: Link) -> None:
        limit = self.connection.limits.max_links
        if self.connection.link_count > 2 * limit:  # a refused link is there until the peer detaches it, too
            raise Violation(RESOURCE_LIMIT_EXCEEDED, f"attached on and on, beyond {limit} links and as many refused")
        message = f"the connection has {limit} links, its limit"
        link.refuse(Error(condition=RESOURCE_LIMIT_EXCEEDED, description=message))

    def _make_link(self, attach: Attach, role: bool) -> Link:
        try:
            handle = self._take_handle()
        except LocalError as error:
            raise SessionViolation(RESOURCE_LIMIT_EXCEEDED, f"no handle to answer an attach: {error}") from None
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
        """A link is attached again under its name while it is attached: the new one takes its place."""
        error = Error(condition=LINK_STOLEN, description=f"another link named {link.name!r:.80} was attached")
        self._refuse_or_detach(link, error)
        # Its handle stays mapped until the peer detaches it; its name is free for the new one.
        self.forget_name(link)
        self._announce_detached(link, events, closed=True, error=error)

    def receive_flow(self, flow: Flow, events: list[Event]) -> None:
        """The peer's windows, and a link's credit."""
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
        """There is room again, in the peer's window or our ledger: every link that has credit can use it."""
        if self.send_queue.is_open:
            senders = [link for link in self.links.values() if isinstance(link, Sender)]
            events.extend([CreditGranted(link=link) for link in senders if link.credit > 0 or link.ignores_credit])

    def _receive_link_flow(self, link: Link, flow: Flow, events: list[Event]) -> None:
        if link.local_state is LinkState.DETACHED:
            return
        if link.receive_flow(flow):
            # What is no sender is a receiver, which mypy cannot know.
            events.append(CreditGranted(link=link) if isinstance(link, Sender) else Drained(link=link))  # type: ignore[arg-type]
        if flow.echo:
            link.answer_echo()

    def forget_name(self, link: Link) -> None:
        """A link was refused: its handle is in use until the peer detaches it, its name is not."""
        if self.links.get((link.name, link.role)) is link:
            del self.links[link.name, link.role]

    def receive_detach(self, detach: Detach, events: list[Event]) -> None:
        """The peer detached a link: so do we, and forget it."""
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
        """Refuse a link that the program has not answered yet; detach one that it has."""
        if link.local_state is LinkState.UNATTACHED:
            link.refuse(error)
        else:
            link.detach(error=error)

    def fail(self, violation: SessionViolation, events: list[Event]) -> None:
        """End the session because of what the peer did in it."""
        error = _error_of(violation)
        if self.local_state is SessionState.UNMAPPED:
            self.begin()
        if self.local_state is SessionState.MAPPED:
            self.end(error)
        self.drop(error, events)

    def receive_end(self, end: End, events: list[Event]) -> None:
        """The peer ended the session: so do we."""
        self.remote_state = SessionState.ENDED
        if self.local_state is SessionState.MAPPED:
            self.end()
        self.drop(end.error, events)

    def drop(self, error: Error | None, events: list[Event]) -> None:
        """Everything in the session is over, whoever ended it. Told once."""
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
        """Also those whose name another link has taken over."""
        return list(dict.fromkeys([*self.links.values(), *self._by_remote_handle.values()]))

    def _no_such_link(self, handle: int, what: str) -> SessionViolation:
        return SessionViolation(UNATTACHED_HANDLE, f"a {what} on handle {handle}, where no such link is attached")


def _error_of(violation: Violation) -> Error:
    return Error(condition=violation.condition, description=violation.description)
