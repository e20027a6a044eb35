"""Client for another process that owns fragments.

Owns the state of the connection to the peer, the requests that await replies, and the handlers for the peer's notices.
A peer that is not connected looks like a store that does not work: new requests are refused, pending requests fail, and
receivers are attached again after a reconnection.

Knows nothing of sockets: `on_connected` gets the function that transmits requests, and `receive` gets the replies.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from twinbus.broker.commit_log import StoreState
from twinbus.broker.ports.fragment import OwnerPort
from twinbus.broker.ports.peer_protocol import (
    AttachBrowser,
    AttachConsumer,
    Barrier,
    CapacityErrors,
    CheckCapacity,
    ConsumerDetached,
    Deliveries,
    Failed,
    ManagementCall,
    MessagesAvailable,
    Request,
    SessionGranted,
    StoreHealth,
    make_error,
)
from twinbus.broker.ports.peer_protocol import Drained as DrainedNotice
from twinbus.model.callbacks import ignore
from twinbus.model.errors import ServiceBusError, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.clock import Clock, Timers
    from twinbus.broker.ports.fragment import OnCapacityChecked
    from twinbus.broker.ports.peer_protocol import Reply

    Transmit: TypeAlias = Callable[[int, Request], None]
    OnReply: TypeAlias = Callable[[Reply | ServiceBusError], None]

CHECK_INTERVAL_S: Final = 1.0
NOT_CONNECTED: Final = "its broker process is not connected"


class NoticeHandler(Protocol):
    """A receiver or browse reader that uses one of the peer's fragments."""

    def request_messages(self) -> None:
        """Ask the peer for messages again, after the peer or one of its stores has recovered."""

    def on_deliveries(self, deliveries: list[tuple[bytes, bytes]]) -> None:
        """Handle messages that have arrived."""

    def on_credit_drained(self) -> None:
        """Handle the report that there are no more messages for the granted credit."""

    def on_messages_available(self) -> None:
        """Handle the report that messages are available."""

    def on_session_granted(self, session_id: bytes, locked_until_ms: int) -> None:
        """Handle the grant of a session."""

    def on_detached(self, error: ServiceBusError) -> None:
        """Handle a detach by the peer."""

    def on_peer_lost(self) -> None:
        """Handle the loss of the connection to the peer."""

    def on_peer_connected(self) -> None:
        """Handle a new connection to the peer."""


class _PendingRequest:
    """A request that awaits its reply.

    A management request does not time out by itself, and fails only if the peer is silent. An attach request does not
    fail even then: the receiver stays attached to other owners' fragments, and is admitted when the peer replies.
    """

    __slots__ = ("has_no_timeout", "is_attach", "on_reply", "sent_s")

    def __init__(self, on_reply: OnReply, sent_s: float, request: Request) -> None:
        self.on_reply = on_reply
        self.sent_s = sent_s
        self.is_attach = isinstance(request, AttachConsumer | AttachBrowser)
        self.has_no_timeout = self.is_attach or isinstance(request, ManagementCall)


class PeerClient(OwnerPort):
    """Client for one other process."""

    def __init__(self, name: str, *, clock: Clock, timers: Timers, timeout_s: float) -> None:
        """Create a client that is not connected; requests without a reply fail after `timeout_s` as unavailable."""
        self.name = name
        self.notice_handlers: dict[int, NoticeHandler] = {}
        self.connection_number = 0
        """Number that increases with each connection. The peer forgets the receivers and transactions of earlier
        connections."""
        self.stores: dict[int, RemoteStore] = {}
        """The peer's stores, by number."""
        self._clock = clock
        self._timers = timers
        self._timeout_s = timeout_s
        self._transmit: Transmit | None = None
        self._pending: dict[int, _PendingRequest] = {}
        self._ids = count(1)
        self._is_check_scheduled = False
        self._is_unresponsive = False
        self._has_received = False
        """Whether the peer has sent anything since the last check."""
        self._checked_s = 0.0
        self._received_s = 0.0
        """Lower bound on the time when the peer last sent anything: updated once per check, not with each reply."""
        self.is_suspect = False
        """Whether the peer was late. A suspect peer gets no more credit until it sends something."""

    @property
    def is_connected(self) -> bool:
        """Whether the peer is connected."""
        return self._transmit is not None

    @property
    def is_responsive(self) -> bool:
        """Whether the peer is connected and not suspect."""
        return self.is_connected and not self.is_suspect

    @property
    def decides_capacity(self) -> bool:
        """True, because only the peer knows if its fragments can store more messages."""
        return True

    def barrier(self, on_reached: Callable[[object], None]) -> None:
        """Call `on_reached` when the peer has received all prior requests; raise StoreUnavailable if not connected."""
        self.send_request(Barrier(), on_reached)

    def check_capacity(self, entity_id: int, sizes: dict[int, int], on_checked: OnCapacityChecked) -> None:
        """Ask whether fragments of an entity can store these sizes; raise StoreUnavailable if not connected."""

        def handle_reply(reply: Reply | ServiceBusError) -> None:
            if isinstance(reply, ServiceBusError):
                on_checked(dict.fromkeys(sizes, reply))
            else:
                assert isinstance(reply, CapacityErrors)
                on_checked(
                    {number: make_error(kind, text) for number, (kind, text) in reply.errors_by_fragment.items()}
                )

        self.send_request(CheckCapacity(entity_id, sizes), handle_reply)

    def next_id(self) -> int:
        """Return a new id, unique within this client."""
        return next(self._ids)

    # --- requests -----------------------------------------------------------------------------------------------------

    def send_request(self, request: Request, on_reply: OnReply) -> None:
        """Send a request; `on_reply` gets the reply or an error. Raise StoreUnavailable if not connected."""
        if self._transmit is None:
            raise StoreUnavailable(f"{self.name} is unavailable: {NOT_CONNECTED}")
        number = next(self._ids)
        now_s = self._clock.monotonic_s()
        self._pending[number] = _PendingRequest(on_reply, now_s, request)
        self._transmit(number, request)
        if not self._is_check_scheduled:
            self._has_received, self._checked_s, self._received_s = False, now_s, now_s
            self._schedule_check()

    def send_notice(self, notice: Request) -> None:
        """Send a notice, which has no reply.

        Do nothing if the peer is not connected: it has forgotten the receivers and transactions of this process.
        """
        if self._transmit is not None:
            self._transmit(0, notice)

    # --- called by the connection -------------------------------------------------------------------------------------

    def on_connected(self, transmit: Transmit) -> None:
        """Use a new connection: attach all receivers and readers again."""
        self._transmit = transmit
        self.connection_number += 1
        for store in self.stores.values():
            store.reported_unavailable_reason = None  # outdated: the peer reports the health of its stores again
        self._on_responsive()
        for handler in list(self.notice_handlers.values()):
            handler.on_peer_connected()

    def on_disconnected(self) -> None:
        """Fail all pending requests, whose outcome is unknown, and notify all receivers and readers."""
        self._transmit = None
        for store in self.stores.values():
            # A full disk is forgotten: after a reconnection, the peer reports the health of its stores again.
            store.unavailable_reason, store.disk_full_reason = NOT_CONNECTED, None
        self._fail_requests(NOT_CONNECTED, self._pending)
        for handler in list(self.notice_handlers.values()):
            handler.on_peer_lost()

    def receive(self, request_id: int, reply: Reply) -> None:
        """Handle a reply to a request, or a notice (`request_id` is 0)."""
        self._has_received = True
        if self._is_unresponsive or self.is_suspect:
            self._on_responsive()
        if request_id:
            pending = self._pending.pop(request_id, None)
            if pending is not None:
                pending.on_reply(make_error(reply.error_name, reply.text) if isinstance(reply, Failed) else reply)
            return
        if isinstance(reply, StoreHealth):
            self._apply_health(reply)
            return
        assert isinstance(reply, Deliveries | DrainedNotice | MessagesAvailable | SessionGranted | ConsumerDetached)
        handler = self.notice_handlers.get(reply.consumer_id)
        if handler is not None:  # None after a detach, of which the peer is notified
            _dispatch_notice(handler, reply)

    def _apply_health(self, health: StoreHealth) -> None:
        has_recovered = False
        for number, (unavailable_reason, disk_full_reason) in health.stores.items():
            store = self.stores.get(number)
            if store is not None:
                has_recovered = has_recovered or (store.unavailable_reason is not None and unavailable_reason is None)
                store.unavailable_reason = store.reported_unavailable_reason = unavailable_reason
                store.disk_full_reason = disk_full_reason
        if has_recovered:
            self._request_messages()

    # --- silence ------------------------------------------------------------------------------------------------------

    def _schedule_check(self) -> None:
        if not self._is_check_scheduled and self._pending:
            self._is_check_scheduled = True
            self._timers.call_at(self._clock.monotonic_s() + CHECK_INTERVAL_S, self._check_timeouts)

    def _check_timeouts(self) -> None:
        """Fail requests that have timed out, or send a barrier if a request has waited for half the timeout.

        A peer that replies to the barrier is responsive, even if other replies are missing because one of its disks
        hangs. Requests without a timeout of their own fail only if the peer does not reply to the barrier either.
        """
        now_s = self._clock.monotonic_s()
        if self._has_received:
            self._has_received, self._received_s = False, self._checked_s
        self._checked_s = now_s
        pending = self._pending.values()  # oldest first
        oldest = next(iter(pending), None)
        oldest_with_timeout = next((request for request in pending if not request.has_no_timeout), None)
        if oldest_with_timeout is not None and oldest_with_timeout.sent_s + self._timeout_s <= now_s:
            self._expire_requests(now_s)
        elif oldest is not None and oldest.sent_s + self._timeout_s / 2 <= now_s and self._transmit is not None:
            self.send_request(Barrier(), ignore)
        self._is_check_scheduled = False
        self._schedule_check()

    def _expire_requests(self, now_s: float) -> None:
        reason = f"its broker process has not answered for {self._timeout_s:g} s"
        if now_s - self._received_s < self._timeout_s:
            until_s = now_s - self._timeout_s
            late = {
                request_id: request
                for request_id, request in self._pending.items()
                if not request.has_no_timeout and request.sent_s <= until_s
            }
            self._fail_requests(reason, late)
            return
        self._is_unresponsive = True
        for store in self.stores.values():
            store.unavailable_reason = reason
        self._fail_requests(
            reason, {number: request for number, request in self._pending.items() if not request.is_attach}
        )

    def mark_suspect(self) -> None:
        """Mark the peer as suspect, because granted credit has expired, and request a reply by sending a barrier."""
        if not self.is_suspect and self._transmit is not None:
            self.is_suspect = True
            self.send_request(Barrier(), ignore)

    def _on_responsive(self) -> None:
        self._is_unresponsive = self.is_suspect = False
        for store in self.stores.values():
            store.unavailable_reason = store.reported_unavailable_reason
        self._request_messages()

    def _request_messages(self) -> None:
        for handler in list(self.notice_handlers.values()):
            handler.request_messages()

    def _fail_requests(self, reason: str, requests: dict[int, _PendingRequest]) -> None:
        self._pending = {number: request for number, request in self._pending.items() if number not in requests}
        for request in requests.values():
            request.on_reply(StoreUnavailable(f"{self.name} is unavailable: {reason}"))


def _dispatch_notice(
    handler: NoticeHandler, notice: Deliveries | DrainedNotice | MessagesAvailable | SessionGranted | ConsumerDetached
) -> None:
    if isinstance(notice, Deliveries):
        handler.on_deliveries(notice.deliveries)
    elif isinstance(notice, DrainedNotice):
        handler.on_credit_drained()
    elif isinstance(notice, MessagesAvailable):
        handler.on_messages_available()
    elif isinstance(notice, SessionGranted):
        handler.on_session_granted(notice.session_id, notice.locked_until_ms)
    else:
        handler.on_detached(make_error(notice.error_name, notice.text))


class RemoteStore(StoreState):
    """State of a peer's store, as this process knows it."""

    def __init__(self, name: str, number: int, peer: PeerClient, *, max_pending_bytes: int) -> None:
        """Create the state of store `number` of a peer; it is unavailable until the peer is connected."""
        super().__init__(name, max_pending_bytes)
        self.peer = peer
        self.unavailable_reason = None if peer.is_connected else NOT_CONNECTED
        self.reported_unavailable_reason: str | None = None
        """Reason why the store is unavailable, as its owner reported last; None if it works."""
        peer.stores[number] = self
