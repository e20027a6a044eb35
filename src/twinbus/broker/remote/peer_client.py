"""The owner of fragments: another process, as far as this one knows it.

Owns: whether it is there, who waits for which of its answers, and who hears of what happens in its fragments. An owner
that is not there is to senders and receivers what a store is that does not work: calls are refused, what waits for an
answer is told, and receivers come back when it is there again.

How a call gets there is not known here: `connected` is given what transmits it, and `receive` is told what comes back.
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

CHECK_S: Final = 1.0
NOT_CONNECTED: Final = "its broker process is not there"


class NoticeHandler(Protocol):
    """Who receives from a fragment of the owner, or reads it."""

    def request_messages(self) -> None:
        """What kept it from asking for messages is over."""

    def on_deliveries(self, deliveries: list[tuple[bytes, bytes]]) -> None:
        """Messages for it."""

    def on_credit_drained(self) -> None:
        """What it claimed is over."""

    def on_messages_available(self) -> None:
        """There is something for it."""

    def on_session_granted(self, session_id: bytes, locked_until_ms: int) -> None:
        """It has a session."""

    def on_detached(self, error: ServiceBusError) -> None:
        """It gets nothing any more."""

    def on_peer_lost(self) -> None:
        """The owner is not there any more."""

    def on_peer_connected(self) -> None:
        """... and is there again."""


class _PendingRequest:
    """Who waits for an answer, since when; one who is patient does so for any time.

    One who comes is let in when the owner speaks again: what he receives from others does not end by its silence.
    """

    __slots__ = ("has_no_timeout", "is_attach", "on_reply", "sent_s")

    def __init__(self, on_reply: OnReply, sent_s: float, request: Request) -> None:
        self.on_reply = on_reply
        self.sent_s = sent_s
        self.is_attach = isinstance(request, AttachConsumer | AttachBrowser)
        self.has_no_timeout = self.is_attach or isinstance(request, ManagementCall)


class PeerClient(OwnerPort):
    """One other process."""

    def __init__(self, name: str, *, clock: Clock, timers: Timers, timeout_s: float) -> None:
        """Not there yet. Whoever does not get an answer in `timeout_s` is told that it is unavailable."""
        self.name = name
        self.notice_handlers: dict[int, NoticeHandler] = {}
        self.connection_number = 0
        """Another one each time it is found: it knows nothing of what it was told before."""
        self.stores: dict[int, RemoteStore] = {}
        """By their numbers."""
        self._clock = clock
        self._timers = timers
        self._timeout_s = timeout_s
        self._transmit: Transmit | None = None
        self._pending: dict[int, _PendingRequest] = {}
        self._ids = count(1)
        self._is_check_scheduled = False
        self._is_unresponsive = False
        self._has_received = False
        """It said something since it was last looked at."""
        self._checked_s = 0.0
        self._received_s = 0.0
        """It was heard then, or a little later: time is not asked for with every word."""
        self.is_suspect = False
        """Credit that was lent to it was written off: nothing more is lent to it before it says something."""

    @property
    def is_connected(self) -> bool:
        """Calls get to it."""
        return self._transmit is not None

    @property
    def is_responsive(self) -> bool:
        """Whether it is connected and answers, as far as is known."""
        return self.is_connected and not self.is_suspect

    @property
    def decides_capacity(self) -> bool:
        """Whether its fragments have room is known to it alone."""
        return True

    def barrier(self, on_reached: Callable[[object], None]) -> None:
        """Call `told` when it has heard all that it was told before. StoreUnavailable."""
        self.send_request(Barrier(), on_reached)

    def check_capacity(self, entity_id: int, sizes: dict[int, int], on_checked: OnCapacityChecked) -> None:
        """Ask whether fragments of an entity can store so many bytes each. StoreUnavailable."""

        def answered(answer: Reply | ServiceBusError) -> None:
            if isinstance(answer, ServiceBusError):
                on_checked(dict.fromkeys(sizes, answer))
            else:
                assert isinstance(answer, CapacityErrors)
                on_checked(
                    {number: make_error(kind, text) for number, (kind, text) in answer.errors_by_fragment.items()}
                )

        self.send_request(CheckCapacity(entity_id, sizes), answered)

    def next_id(self) -> int:
        """A number that nothing else has had here."""
        return next(self._ids)

    # --- calls --------------------------------------------------------------------------------------------------------

    def send_request(self, request: Request, on_reply: OnReply) -> None:
        """Make a call; `told` hears what comes of it. StoreUnavailable."""
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
        """Make a call that is not answered. To who is not there nothing has to be told: it knows nothing any more."""
        if self._transmit is not None:
            self._transmit(0, notice)

    # --- whoever connects it calls these ------------------------------------------------------------------------------

    def on_connected(self, transmit: Transmit) -> None:
        """It is there."""
        self._transmit = transmit
        self.connection_number += 1
        for store in self.stores.values():
            store.reported_unavailable_reason = None  # it was said of an earlier life; of this one it says so itself
        self._on_responsive()
        for guest in list(self.notice_handlers.values()):
            guest.on_peer_connected()

    def on_disconnected(self) -> None:
        """It is not there any more: what was asked may have been done, or not."""
        self._transmit = None
        for store in self.stores.values():
            store.unavailable_reason, store.disk_full_reason = (
                NOT_CONNECTED,
                None,
            )  # when the owner is back, it reports its disks again
        self._fail_requests(NOT_CONNECTED, self._pending)
        for guest in list(self.notice_handlers.values()):
            guest.on_peer_lost()

    def receive(self, request_id: int, reply: Reply) -> None:
        """Something came from it: the answer to a call, or a notice."""
        self._has_received = True
        if self._is_unresponsive or self.is_suspect:
            self._on_responsive()
        if request_id:
            waiting = self._pending.pop(request_id, None)
            if waiting is not None:
                waiting.on_reply(make_error(reply.error_name, reply.text) if isinstance(reply, Failed) else reply)
            return
        if isinstance(reply, StoreHealth):
            self._apply_health(reply)
            return
        assert isinstance(reply, Deliveries | DrainedNotice | MessagesAvailable | SessionGranted | ConsumerDetached)
        guest = self.notice_handlers.get(reply.consumer_id)
        if guest is not None:  # else it has gone meanwhile, which the owner hears
            _dispatch_notice(guest, reply)

    def _apply_health(self, health: StoreHealth) -> None:
        is_better = False
        for number, (trouble, refusal) in health.stores.items():
            store = self.stores.get(number)
            if store is not None:
                is_better = is_better or (store.unavailable_reason is not None and trouble is None)
                store.unavailable_reason = store.reported_unavailable_reason = trouble
                store.disk_full_reason = refusal
        if is_better:
            self._request_messages()

    # --- silence ------------------------------------------------------------------------------------------------------

    def _schedule_check(self) -> None:
        if not self._is_check_scheduled and self._pending:
            self._is_check_scheduled = True
            self._timers.call_at(self._clock.monotonic_s() + CHECK_S, self._check_timeouts)

    def _check_timeouts(self) -> None:
        """Where somebody has waited for half of the time, it is asked for a word; where for all of it, he is told.

        One that speaks is not silent, though it may owe an answer: a disk of it hangs, and its other stores work. Who
        is patient is told only if it does not say that word.
        """
        now_s = self._clock.monotonic_s()
        if self._has_received:
            self._has_received, self._received_s = False, self._checked_s
        self._checked_s = now_s
        waiting = self._pending.values()  # the oldest first
        longest = next(iter(waiting), None)
        oldest = next((one for one in waiting if not one.has_no_timeout), None)
        if oldest is not None and oldest.sent_s + self._timeout_s <= now_s:
            self._expire_requests(now_s)
        elif longest is not None and longest.sent_s + self._timeout_s / 2 <= now_s and self._transmit is not None:
            self.send_request(Barrier(), ignore)
        self._is_check_scheduled = False
        self._schedule_check()

    def _expire_requests(self, now_s: float) -> None:
        trouble = f"its broker process has not answered for {self._timeout_s:g} s"
        if now_s - self._received_s < self._timeout_s:
            until_s = now_s - self._timeout_s
            late = {at: one for at, one in self._pending.items() if not one.has_no_timeout and one.sent_s <= until_s}
            self._fail_requests(trouble, late)
            return
        self._is_unresponsive = True
        for store in self.stores.values():
            store.unavailable_reason = trouble
        self._fail_requests(trouble, {number: one for number, one in self._pending.items() if not one.is_attach})

    def mark_suspect(self) -> None:
        """It has not answered what credit was lent for. It is asked for a word: without one it stays in doubt."""
        if not self.is_suspect and self._transmit is not None:
            self.is_suspect = True
            self.send_request(Barrier(), ignore)

    def _on_responsive(self) -> None:
        self._is_unresponsive = self.is_suspect = False
        for store in self.stores.values():
            store.unavailable_reason = store.reported_unavailable_reason
        self._request_messages()

    def _request_messages(self) -> None:
        for guest in list(self.notice_handlers.values()):
            guest.request_messages()

    def _fail_requests(self, reason: str, requests: dict[int, _PendingRequest]) -> None:
        self._pending = {number: one for number, one in self._pending.items() if number not in requests}
        for one in requests.values():
            one.on_reply(StoreUnavailable(f"{self.name} is unavailable: {reason}"))


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
    """What one process knows of another one's store."""

    def __init__(self, name: str, number: int, peer: PeerClient, *, max_pending_bytes: int) -> None:
        """Unavailable until its owner is connected. `number` is the store's."""
        super().__init__(name, max_pending_bytes)
        self.peer = peer
        self.unavailable_reason = None if peer.is_connected else NOT_CONNECTED
        self.reported_unavailable_reason: str | None = None
        """Why the store does not work, as its owner said last."""
        peer.stores[number] = self
