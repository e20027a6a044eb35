"""A link on which a client browses an entity's messages without locking them: distribution-mode `copy`.

Owns: the requested range, and the link's credit. docs/browse.md describes what a client sees.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from twinbus.amqp.types import Symbol
from twinbus.broker.ports.consumer import ReceiverIdentity
from twinbus.broker.ports.multi_fragment_receiver import DRAIN_TIMEOUT_S
from twinbus.broker.ports.read_limiter import ReadLimiter
from twinbus.model.errors import InvalidArgument, RangeSeen, ServiceBusError
from twinbus.server.amqp.errors import to_amqp_error
from twinbus.server.amqp.socket_backpressure import SocketBackpressure
from twinbus.server.auth.keys import Right
from twinbus.server.usage.counter import UsageCounter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinbus.amqp.aio import Peer
    from twinbus.amqp.sender import Sender
    from twinbus.broker.ports.consumer import Delivery
    from twinbus.broker.ports.fragment import BrowseCursorPort, FragmentPort
    from twinbus.server.amqp.socket_backpressure import CallSoon

FRAGMENT_FILTER: Final = "twinbus:fragment"
FROM_FILTER: Final = "twinbus:from-sequence-number"
TO_FILTER: Final = "twinbus:to-sequence-number"
FILTERS: Final = (FRAGMENT_FILTER, FROM_FILTER, TO_FILTER)
MAX_SEQUENCE_NUMBER: Final = 2**63 - 1
ENDS_WITH_RANGE: Final = Symbol("twinbus:ends-with-range")
"""A link property: the link is detached when the range has been browsed."""
_FLUSH_POLL_S: Final = 0.01
"""How long to wait before checking again whether queued messages have left through the session window."""


MAX_RESERVED_CREDIT: Final = 256
"""The total credit that the browse links of one connection reserve for fragments of other processes.

The connection must accept messages for reserved credit, even if the client does not read them.
"""


class BrowseBudget:
    """Limits for the browse links of one connection: their reserved credit, and the process-wide limit on reads."""

    def __init__(self, reads: ReadLimiter | None = None) -> None:
        """Create a budget without reserved credit."""
        self.reads = reads or ReadLimiter()
        self._reserved = 0
        self._waiting: dict[BrowseLink, None] = {}

    def available_credit(self, link: BrowseLink) -> int:
        """Return how much more credit can be reserved. If there is none, `link` requests messages again later."""
        left = MAX_RESERVED_CREDIT - self._reserved
        if left <= 0:
            self._waiting[link] = None
        return max(0, left)

    def change_reserved(self, delta: int) -> None:
        """Add `delta` to the reserved credit; if credit was returned, let waiting links continue."""
        self._reserved += delta
        while delta < 0 and self._waiting and self._reserved < MAX_RESERVED_CREDIT:
            link = next(iter(self._waiting))
            del self._waiting[link]
            before = self._reserved
            link.request_messages()
            if self._reserved == before and link in self._waiting:
                return

    def remove(self, link: BrowseLink) -> None:
        """Remove a detached link."""
        self._waiting.pop(link, None)


class BrowseLink:
    """The server's end of a link on which a client browses one fragment, or all fragments of an entity."""

    right: ClassVar[Right] = Right.LISTEN
    receive_and_delete = False

    def __init__(
        self,
        link: Sender,
        peer: Peer,
        path: str,
        fragments: Sequence[FragmentPort],
        entity_id: int,
        call_soon: CallSoon,
        *,
        counter: UsageCounter | None = None,
        budget: BrowseBudget | None = None,
    ) -> None:
        """Accept the link, and report the range of existing messages."""
        self.link = link
        self._budget = budget or BrowseBudget()
        self._counter = counter or UsageCounter()
        self.path = path
        self._clock = clock = fragments[0].clock
        self.last_used_s = clock.monotonic_s()
        self._backpressure = SocketBackpressure(peer, call_soon, self.request_messages)
        self.receiver_identity = ReceiverIdentity()
        self.is_closed = False
        self._timers = fragments[0].timers
        self._undrained_count = 0
        self._reserved_credit = 0
        self._entity_id = entity_id
        self._browsers: list[tuple[FragmentPort, BrowseCursorPort]] = []
        self._reserves_credit = any(fragment.reserves_credit for fragment in fragments)
        number, self._first, self._last = _requested_range(link, len(fragments))
        selected = fragments if number is None else [fragments[number]]
        if len(selected) > 1:  # sequence numbers of different fragments cannot be compared
            self._start(selected, ())
        else:
            self._find_range(selected[0])

    def _find_range(self, fragment: FragmentPort) -> None:
        """Find the range of existing sequence numbers, then start."""

        def on_range_found(sequence_range: tuple[int, int] | ServiceBusError) -> None:
            if self.is_closed:
                return
            if isinstance(sequence_range, ServiceBusError):
                self.link.refuse(to_amqp_error(sequence_range))
            else:
                self._start([fragment], sequence_range)

        fragment.browser.find_sequence_range(on_range_found)

    def _start(self, fragments: Sequence[FragmentPort], sequence_range: Sequence[int]) -> None:
        properties: dict[str, object] = {Symbol("twinbus:entity-id"): self._entity_id}
        names = (Symbol("twinbus:low-sequence-number"), Symbol("twinbus:next-sequence-number"))
        properties.update(zip(names, sequence_range, strict=False))
        ends = len(fragments) == 1 and _ends_with_range(self.link)
        self.link.accept(properties=properties)
        reads = self._budget.reads
        self._browsers = [
            (fragment, fragment.browser.browse(self, self._first, self._last, ends_at_last=ends, read_limiter=reads))
            for fragment in fragments
        ]
        if self.link.credit > 0:  # the client granted credit before the link was accepted
            self.on_credit()

    @property
    def wants_messages(self) -> bool:
        """Whether the client is waiting for messages."""
        return self.link.credit > 0

    is_busy = wants_messages

    @property
    def available_credit(self) -> int:
        """How many messages the link accepts now."""
        room = self.link.sendable - self._reserved_credit if self._backpressure.has_room() else 0
        if (
            room <= 0 or not self._reserves_credit or self.link.drain_requested
        ):  # with a limit, a drain would finish before all messages are sent
            return room
        return min(room, self._budget.available_credit(self))

    def reserve_credit(self, count: int) -> None:
        """Reserve credit for a fragment of another process; a negative count returns credit."""
        self._reserved_credit += count
        self._budget.change_reserved(count)

    def on_admitted(self) -> None:
        """Do nothing, because a browse link does not wait for admission by fragments in other processes."""

    def deliver_browsed(self, deliveries: list[Delivery]) -> int:
        """Send messages as settled, up to the current credit; return how many were sent."""
        count = min(len(deliveries), self.link.credit if self.link.is_attached else 0)
        sent = deliveries[:count]
        self.link.send_many(sent, settled=True)
        self._counter.add_peeks(sent)
        return count

    deliver = deliver_browsed

    def request_messages(self) -> None:
        """Request messages from the fragments, after new credit or when the socket has room again."""
        for _, browser in self._browsers:
            browser.advance()

    def on_credit(self) -> None:
        """Handle a flow from the client, which grants credit or requests a drain."""
        self.last_used_s = self._clock.monotonic_s()
        if not self.link.drain_requested:
            self.request_messages()
        elif any(fragment.reserves_credit for fragment, _ in self._browsers):
            self._drain_sequentially()
        else:
            self._undrained_count = len(self._browsers)
            for _, browser in self._browsers:
                browser.drain(self._on_drained)

    def _drain_sequentially(self) -> None:
        """Drain one fragment after the other, because credit reserved for one fragment is not available for the next.

        `MultiFragmentReceiver` drains in the same way.
        """
        undrained = sorted(
            [browser for _, browser in self._browsers], key=lambda browser: not browser.has_reserved_credit
        )
        is_finished = False

        def finish() -> None:
            nonlocal is_finished
            was_finished, is_finished = is_finished, True
            if not was_finished and not self.is_closed and self.link.drain_requested:
                self.link.drained()

        def drain_next() -> None:
            if self.is_closed:
                return
            if is_finished:
                self.request_messages()  # credit that comes back after the drain is offered to all fragments
                return
            for fragment, browser in self._browsers:
                if not fragment.reserves_credit:
                    browser.advance()  # local messages do not wait for a slow process
            if undrained and (self.link.sendable > self._reserved_credit or undrained[0].has_reserved_credit):
                undrained.pop(0).drain(drain_next)
            else:
                finish()

        self._timers.call_at(self._clock.monotonic_s() + DRAIN_TIMEOUT_S, finish)
        drain_next()

    def _on_drained(self) -> None:
        self._undrained_count -= 1
        if self._undrained_count == 0 and self.link.drain_requested:
            self.link.drained()

    def force_detach(self, error: ServiceBusError) -> None:
        """Detach the link with an error, because the entity was deleted or disabled or the range has been browsed.

        At the end of the range, queued messages are sent first.
        """
        if self.is_closed:
            return
        if isinstance(error, RangeSeen) and self.link.session.send_queue.has_queued(self.link):
            self._timers.call_at(self._clock.monotonic_s() + _FLUSH_POLL_S, lambda: self.force_detach(error))
        else:
            self.link.detach(error=to_amqp_error(error))

    on_session_lock_lost = force_detach

    def on_detached(self) -> None:
        """Close the browsers of the detached link."""
        self.is_closed = True
        for _, browser in self._browsers:
            browser.close()
        self._budget.remove(self)


def _ends_with_range(link: Sender) -> bool:
    """Return whether the client wants the link to be detached at the end of its range."""
    attach = link.remote_attach
    return attach is not None and (attach.properties or {}).get(ENDS_WITH_RANGE) is True


def _requested_range(link: Sender, fragment_count: int) -> tuple[int | None, int, int]:
    """Return the requested fragment (None for all) and the first and last sequence number. Raise InvalidArgument."""
    source = link.remote_attach.source if link.remote_attach is not None else None
    filters: dict[str, object] = getattr(source, "filter", None) or {}
    requested = {str(key): getattr(value, "value", value) for key, value in filters.items()}
    unknown = [key for key in requested if key not in FILTERS]
    if unknown:
        raise InvalidArgument(f"a browse link has no filter {unknown[0]!r:.80}; the filters are {', '.join(FILTERS)}")
    for key, value in requested.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise InvalidArgument(f"the filter {key} is {value!r:.60}; it must be an integer, 0 or more")
    number, first, last = (
        requested.get(FRAGMENT_FILTER),
        requested.get(FROM_FILTER, 0),
        requested.get(TO_FILTER, MAX_SEQUENCE_NUMBER),
    )
    assert isinstance(number, int | None)
    assert isinstance(first, int)
    assert isinstance(last, int)
    if number is not None and number >= fragment_count:
        raise InvalidArgument(f"there is no fragment {number}: the entity has {fragment_count}, numbered from 0")
    return number, int(first), min(int(last), MAX_SEQUENCE_NUMBER)
