"""A link on which a client sees the messages of an entity without taking them: distribution-mode `copy`.

Owns: the range that it asked for, and its credit. docs/browse.md says what it sees.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from twinbus.amqp.types import Symbol
from twinbus.broker.ports.consumer import Card
from twinbus.broker.ports.gathering import DRAIN_PATIENCE_S
from twinbus.broker.ports.reads import Reads
from twinbus.model.errors import InvalidArgument, RangeSeen, ServiceBusError
from twinbus.server.answers import error_of
from twinbus.server.keys import Right
from twinbus.server.metering.counter import Counter
from twinbus.server.socket_room import SocketRoom

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinbus.amqp.aio import Peer
    from twinbus.amqp.sender import Sender
    from twinbus.broker.ports.consumer import Delivery
    from twinbus.broker.ports.fragment import BrowserPort, FragmentPort
    from twinbus.server.socket_room import Soon

FRAGMENT: Final = "twinbus:fragment"
FROM: Final = "twinbus:from-sequence-number"
TO: Final = "twinbus:to-sequence-number"
FILTERS: Final = (FRAGMENT, FROM, TO)
LAST: Final = 2**63 - 1
ENDS: Final = Symbol("twinbus:ends-with-range")
"""A property of the link: it is detached when its range was seen."""
_LEAVING_S: Final = 0.01
"""How long messages that wait for the session's window are given to leave, before it is looked again."""


LENT_AT_ONCE: Final = 256
"""Messages for which the browse links of one connection lend room to fragments of other processes: what these send has
to be taken, whether the client reads or not."""


class BrowseShare:
    """What the browse links of one connection share: room that they have lent, and the reads of the process."""

    def __init__(self, reads: Reads | None = None) -> None:
        """Nothing is lent."""
        self.reads = reads or Reads()
        self._lent = 0
        self._waiting: dict[BrowseLink, None] = {}

    def room(self, link: BrowseLink) -> int:
        """For how many messages more can be lent now; if for none, `link` is fed when there is room again."""
        left = LENT_AT_ONCE - self._lent
        if left <= 0:
            self._waiting[link] = None
        return max(0, left)

    def count(self, change: int) -> None:
        """So much more is lent now, or less."""
        self._lent += change
        while change < 0 and self._waiting and self._lent < LENT_AT_ONCE:
            link = next(iter(self._waiting))
            del self._waiting[link]
            before = self._lent
            link.feed()
            if self._lent == before and link in self._waiting:
                return

    def forget(self, link: BrowseLink) -> None:
        """A link has gone."""
        self._waiting.pop(link, None)


class BrowseLink:
    """Messages of one fragment, or of all that an entity has, shown to one link."""

    right: ClassVar[Right] = Right.LISTEN
    deletes = False

    def __init__(
        self,
        link: Sender,
        peer: Peer,
        path: str,
        fragments: Sequence[FragmentPort],
        entity_id: int,
        soon: Soon,
        *,
        counter: Counter | None = None,
        share: BrowseShare | None = None,
    ) -> None:
        """Accept the link, and say from where to where there are messages."""
        self.link = link
        self._share = share or BrowseShare()
        self._counter = counter or Counter()
        self.path = path
        self._clock = clock = fragments[0].clock
        self.used_s = clock.monotonic_s()
        self._socket = SocketRoom(peer, soon, self.feed)
        self.card = Card()
        self.is_gone = False
        self._timers = fragments[0].timers
        self._draining = 0
        self._reserved = 0
        self._entity_id = entity_id
        self._browsers: list[tuple[FragmentPort, BrowserPort]] = []
        self._reserves = any(fragment.reserves_credit for fragment in fragments)
        number, self._first, self._last = _range(link, len(fragments))
        chosen = fragments if number is None else [fragments[number]]
        if len(chosen) > 1:  # their numbers say nothing of each other
            self._begin(chosen, ())
        else:
            self._look(chosen[0])

    def _look(self, fragment: FragmentPort) -> None:
        """Ask from where to where there are messages, and begin then."""

        def told(reach: tuple[int, int] | ServiceBusError) -> None:
            if self.is_gone:
                return
            if isinstance(reach, ServiceBusError):
                self.link.refuse(error_of(reach))
            else:
                self._begin([fragment], reach)

        fragment.browsing.find_reach(told)

    def _begin(self, fragments: Sequence[FragmentPort], reach: Sequence[int]) -> None:
        said: dict[str, object] = {Symbol("twinbus:entity-id"): self._entity_id}
        names = (Symbol("twinbus:low-sequence-number"), Symbol("twinbus:next-sequence-number"))
        said.update(zip(names, reach, strict=False))
        ends = len(fragments) == 1 and _ends(self.link)
        self.link.accept(properties=said)
        reads = self._share.reads
        self._browsers = [
            (fragment, fragment.browsing.browse(self, self._first, self._last, ends=ends, reads=reads))
            for fragment in fragments
        ]
        if self.link.credit > 0:  # the client did not wait for that
            self.receive_credit()

    @property
    def is_hungry(self) -> bool:
        """The client waits for messages."""
        return self.link.credit > 0

    is_busy = is_hungry

    @property
    def room(self) -> int:
        """How many messages the link takes now."""
        room = self.link.sendable - self._reserved if self._socket.is_there() else 0
        if room <= 0 or not self._reserves or self.link.drain_requested:  # a drain would end with less than there is
            return room
        return min(room, self._share.room(self))

    def reserve(self, count: int) -> None:
        """So much room is lent to a fragment of another process, or is not any more."""
        self._reserved += count
        self._share.count(count)

    def let_in(self) -> None:
        """A fragment of another process knows it."""

    def show(self, deliveries: list[Delivery]) -> int:
        """Send messages, settled: there is nothing to settle. Only for as many as there is credit now."""
        count = min(len(deliveries), self.link.credit if self.link.is_attached else 0)
        shown = deliveries[:count]
        self.link.send_many(shown, settled=True)
        self._counter.add_peeks(shown)
        return count

    deliver = show

    def feed(self) -> None:
        """There is credit, or room in the socket."""
        for _, browser in self._browsers:
            browser.go_on()

    def receive_credit(self) -> None:
        """The client granted credit, or wants it back."""
        self.used_s = self._clock.monotonic_s()
        if not self.link.drain_requested:
            self.feed()
        elif any(fragment.reserves_credit for fragment, _ in self._browsers):
            self._drain_in_turn()
        else:
            self._draining = len(self._browsers)
            for _, browser in self._browsers:
                browser.drain(self._drained)

    def _drain_in_turn(self) -> None:
        """One fragment after the other: room that is lent to one cannot be lent to the next. As `Gathering` does it."""
        waiting = sorted([browser for _, browser in self._browsers], key=lambda browser: not browser.has_reserved)
        is_over = False

        def finish() -> None:
            nonlocal is_over
            was_over, is_over = is_over, True
            if not was_over and not self.is_gone and self.link.drain_requested:
                self.link.drained()

        def show_next() -> None:
            is_hungry = waiting and (self.link.sendable > self._reserved or waiting[0].has_reserved)
            if is_over or self.is_gone or not is_hungry:
                finish()
            else:
                waiting.pop(0).drain(show_next)

        self._timers.call_at(self._clock.monotonic_s() + DRAIN_PATIENCE_S, finish)
        for fragment, browser in self._browsers:
            if not fragment.reserves_credit:
                browser.go_on()  # what is here is not waited for behind a process that is slow
        show_next()

    def _drained(self) -> None:
        self._draining -= 1
        if self._draining == 0 and self.link.drain_requested:
            self.link.drained()

    def entity_gone(self, error: ServiceBusError) -> None:
        """The entity was deleted or disabled, or the range is over: then what is on its way leaves first."""
        if self.is_gone:
            return
        if isinstance(error, RangeSeen) and self.link.session.outbox.holds(self.link):
            self._timers.call_at(self._clock.monotonic_s() + _LEAVING_S, lambda: self.entity_gone(error))
        else:
            self.link.detach(error=error_of(error))

    session_lost = entity_gone

    def detached(self) -> None:
        """The link is over."""
        self.is_gone = True
        for _, browser in self._browsers:
            browser.leave()
        self._share.forget(self)


def _ends(link: Sender) -> bool:
    """Whether the client wants to be told when its range is over."""
    attach = link.remote_attach
    return attach is not None and (attach.properties or {}).get(ENDS) is True


def _range(link: Sender, fragments: int) -> tuple[int | None, int, int]:
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
    number, first, last = asked.get(FRAGMENT), asked.get(FROM, 0), asked.get(TO, LAST)
    assert isinstance(number, int | None)
    assert isinstance(first, int)
    assert isinstance(last, int)
    if number is not None and number >= fragments:
        raise InvalidArgument(f"there is no fragment {number}: the entity has {fragments}, from number 0 on")
    return number, int(first), min(int(last), LAST)
