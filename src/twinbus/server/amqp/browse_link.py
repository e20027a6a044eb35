"""A link on which a client sees the messages of an entity without taking them: distribution-mode `copy`.

Owns: the range that it asked for, and its credit. docs/browse.md says what it sees.
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
"""A property of the link: it is detached when its range was seen."""
_FLUSH_POLL_S: Final = 0.01
"""How long messages that wait for the session's window are given to leave, before it is looked again."""


MAX_RESERVED_CREDIT: Final = 256
"""Messages for which the browse links of one connection lend room to fragments of other processes: what these send has
to be taken, whether the client reads or not."""


class BrowseBudget:
    """What the browse links of one connection share: room that they have lent, and the reads of the process."""

    def __init__(self, reads: ReadLimiter | None = None) -> None:
        """Nothing is lent."""
        self.reads = reads or ReadLimiter()
        self._reserved = 0
        self._waiting: dict[BrowseLink, None] = {}

    def available_credit(self, link: BrowseLink) -> int:
        """For how many messages more can be lent now; if for none, `link` is fed when there is room again."""
        left = MAX_RESERVED_CREDIT - self._reserved
        if left <= 0:
            self._waiting[link] = None
        return max(0, left)

    def change_reserved(self, delta: int) -> None:
        """So much more is lent now, or less."""
        self._reserved += delta
        while delta < 0 and self._waiting and self._reserved < MAX_RESERVED_CREDIT:
            link = next(iter(self._waiting))
            del self._waiting[link]
            before = self._reserved
            link.request_messages()
            if self._reserved == before and link in self._waiting:
                return

    def remove(self, link: BrowseLink) -> None:
        """A link has gone."""
        self._waiting.pop(link, None)


class BrowseLink:
    """Messages of one fragment, or of all that an entity has, shown to one link."""

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
        """Accept the link, and say from where to where there are messages."""
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
        chosen = fragments if number is None else [fragments[number]]
        if len(chosen) > 1:  # their numbers say nothing of each other
            self._start(chosen, ())
        else:
            self._find_range(chosen[0])

    def _find_range(self, fragment: FragmentPort) -> None:
        """Ask from where to where there are messages, and begin then."""

        def told(reach: tuple[int, int] | ServiceBusError) -> None:
            if self.is_closed:
                return
            if isinstance(reach, ServiceBusError):
                self.link.refuse(to_amqp_error(reach))
            else:
                self._start([fragment], reach)

        fragment.browser.find_sequence_range(told)

    def _start(self, fragments: Sequence[FragmentPort], sequence_range: Sequence[int]) -> None:
        said: dict[str, object] = {Symbol("twinbus:entity-id"): self._entity_id}
        names = (Symbol("twinbus:low-sequence-number"), Symbol("twinbus:next-sequence-number"))
        said.update(zip(names, sequence_range, strict=False))
        ends = len(fragments) == 1 and _ends_with_range(self.link)
        self.link.accept(properties=said)
        reads = self._budget.reads
        self._browsers = [
            (fragment, fragment.browser.browse(self, self._first, self._last, ends_at_last=ends, read_limiter=reads))
            for fragment in fragments
        ]
        if self.link.credit > 0:  # the client did not wait for that
            self.on_credit()

    @property
    def wants_messages(self) -> bool:
        """The client waits for messages."""
        return self.link.credit > 0

    is_busy = wants_messages

    @property
    def available_credit(self) -> int:
        """How many messages the link takes now."""
        room = self.link.sendable - self._reserved_credit if self._backpressure.has_room() else 0
        if (
            room <= 0 or not self._reserves_credit or self.link.drain_requested
        ):  # a drain would end with less than there is
            return room
        return min(room, self._budget.available_credit(self))

    def reserve_credit(self, count: int) -> None:
        """So much room is lent to a fragment of another process, or is not any more."""
        self._reserved_credit += count
        self._budget.change_reserved(count)

    def on_admitted(self) -> None:
        """A fragment of another process knows it."""

    def deliver_browsed(self, deliveries: list[Delivery]) -> int:
        """Send messages, settled: there is nothing to settle. Only for as many as there is credit now."""
        count = min(len(deliveries), self.link.credit if self.link.is_attached else 0)
        shown = deliveries[:count]
        self.link.send_many(shown, settled=True)
        self._counter.add_peeks(shown)
        return count

    deliver = deliver_browsed

    def request_messages(self) -> None:
        """There is credit, or room in the socket."""
        for _, browser in self._browsers:
            browser.advance()

    def on_credit(self) -> None:
        """The client granted credit, or wants it back."""
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
        """One fragment after the other: room that is lent to one cannot be lent to the next. As `Gathering` does it."""
        waiting = sorted(
            [browser for _, browser in self._browsers], key=lambda browser: not browser.has_reserved_credit
        )
        is_over = False

        def finish() -> None:
            nonlocal is_over
            was_over, is_over = is_over, True
            if not was_over and not self.is_closed and self.link.drain_requested:
                self.link.drained()

        def show_next() -> None:
            if self.is_closed:
                return
            if is_over:
                self.request_messages()  # credit that comes back after the drain is offered to all fragments
                return
            for fragment, browser in self._browsers:
                if not fragment.reserves_credit:
                    browser.advance()  # local messages do not wait for a slow process
            if waiting and (self.link.sendable > self._reserved_credit or waiting[0].has_reserved_credit):
                waiting.pop(0).drain(show_next)
            else:
                finish()

        self._timers.call_at(self._clock.monotonic_s() + DRAIN_TIMEOUT_S, finish)
        show_next()

    def _on_drained(self) -> None:
        self._undrained_count -= 1
        if self._undrained_count == 0 and self.link.drain_requested:
            self.link.drained()

    def force_detach(self, error: ServiceBusError) -> None:
        """The entity was deleted or disabled, or the range is over: then what is on its way leaves first."""
        if self.is_closed:
            return
        if isinstance(error, RangeSeen) and self.link.session.send_queue.has_queued(self.link):
            self._timers.call_at(self._clock.monotonic_s() + _FLUSH_POLL_S, lambda: self.force_detach(error))
        else:
            self.link.detach(error=to_amqp_error(error))

    on_session_lock_lost = force_detach

    def on_detached(self) -> None:
        """The link is over."""
        self.is_closed = True
        for _, browser in self._browsers:
            browser.close()
        self._budget.remove(self)


def _ends_with_range(link: Sender) -> bool:
    """Whether the client wants to be told when its range is over."""
    attach = link.remote_attach
    return attach is not None and (attach.properties or {}).get(ENDS_WITH_RANGE) is True


def _requested_range(link: Sender, fragment_count: int) -> tuple[int | None, int, int]:
    """Of which of so many fragments, from where to where; None if of all."""
    source = link.remote_attach.source if link.remote_attach is not None else None
    filters: dict[str, object] = getattr(source, "filter", None) or {}
    asked = {str(key): getattr(value, "value", value) for key, value in filters.items()}
    unknown = [key for key in asked if key not in FILTERS]
    if unknown:
        raise InvalidArgument(f"a browse link has no filter {unknown[0]!r:.80}; it has {', '.join(FILTERS)}")
    for key, value in asked.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise InvalidArgument(f"the filter {key} is {value!r:.60}; it is a whole number from 0 on")
    number, first, last = (
        asked.get(FRAGMENT_FILTER),
        asked.get(FROM_FILTER, 0),
        asked.get(TO_FILTER, MAX_SEQUENCE_NUMBER),
    )
    assert isinstance(number, int | None)
    assert isinstance(first, int)
    assert isinstance(last, int)
    if number is not None and number >= fragment_count:
        raise InvalidArgument(f"there is no fragment {number}: the entity has {fragment_count}, from number 0 on")
    return number, int(first), min(int(last), MAX_SEQUENCE_NUMBER)
