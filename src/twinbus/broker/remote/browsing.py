"""Looking at messages that another process has.

Owns: the way there and back; what is seen is read by the owner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.broker.ports.fragment import BrowserPort, BrowsingPort
from twinbus.broker.ports.peer_protocol import Browse, FindTime, Look, Numbers, Page, Peek
from twinbus.broker.remote.loan import Loan
from twinbus.model.callbacks import do_nothing
from twinbus.model.errors import ServiceBusError

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.ports.consumer import Delivery, GatewayReader
    from twinbus.broker.ports.peer_protocol import Answer, Call
    from twinbus.broker.ports.reads import Reads
    from twinbus.broker.remote.fragment import RemoteFragment


class RemoteBrowsing(BrowsingPort):
    """Looks into one fragment that another process has."""

    def __init__(self, fragment: RemoteFragment) -> None:
        """Made by its fragment."""
        self._remote = fragment
        self._latest_ms = 0

    def peek(
        self,
        from_sequence: int,
        count: int,
        max_bytes: int,
        done: Callable[[list[bytes] | ServiceBusError], None],
        *,
        deferred_only: bool = False,
    ) -> None:
        """Messages from a sequence number on, as they are."""
        fragment = self._remote

        def told(answer: Answer | ServiceBusError) -> None:
            if isinstance(answer, Page):
                self._latest_ms = answer.latest_ms
                done(answer.messages)
            else:
                assert isinstance(answer, ServiceBusError)
                done(answer)

        # A number below that of its first message may be below those that can be told: it is the first then.
        start = max(from_sequence, 0)
        fragment.owner.ask(Peek(fragment.place, start, count, max_bytes, deferred_only), told)

    def find_time(self, enqueued_ms: int, done: Callable[[int | ServiceBusError], None]) -> None:
        """The first sequence number of a message that was not enqueued before a time; the next one if there is none."""

        def told(answer: Answer | ServiceBusError) -> None:
            if isinstance(answer, Numbers):
                done(answer.numbers[0])
            else:
                assert isinstance(answer, ServiceBusError)
                done(answer)

        self._remote.owner.ask(FindTime(self._remote.place, enqueued_ms), told)

    def find_reach(self, done: Callable[[tuple[int, int] | ServiceBusError], None]) -> None:
        """Ask the owner from where to where there are messages."""

        def told(answer: Answer | ServiceBusError) -> None:
            if isinstance(answer, Numbers):
                done((answer.numbers[0], answer.numbers[1]))
            else:
                assert isinstance(answer, ServiceBusError)
                done(answer)

        self._remote.owner.ask(Look(self._remote.place), told)

    @property
    def latest_ms(self) -> int:
        """When the last message was enqueued, as the owner said with the last page."""
        return self._latest_ms

    def browse(self, reader: GatewayReader, first: int, last: int, *, ends: bool, reads: Reads) -> BrowserPort:  # noqa: ARG002
        """Have the owner show active messages to a reader."""
        return RemoteBrowser(_Reading(self._remote, reader, first, last, ends=ends))


class RemoteBrowser(BrowserPort):
    """One reader's way through the log of a fragment that another process owns."""

    def __init__(self, reading: _Reading) -> None:
        """Made by `RemoteBrowsing`."""
        self._reading = reading

    def go_on(self) -> None:
        """Ask for more."""
        self._reading.feed()

    def drain(self, drained: Callable[[], None]) -> None:
        """Ask for what there is now."""
        self._reading.drain(drained)

    def leave(self) -> None:
        """Ask for nothing more."""
        self._reading.close()

    @property
    def has_reserved(self) -> bool:
        """Whether the owner holds room of the reader."""
        return self._reading.is_claiming


class _Reading(Loan):
    """One way through the log of a fragment that another process has. What it is lent is room, as for a receiver."""

    def __init__(
        self, fragment: RemoteFragment, reader: GatewayReader, first: int, last: int, *, ends: bool = False
    ) -> None:
        """From one sequence number to another, both of which are seen. `ends`: it is told when that is over."""
        self._next = first
        self._last = last
        self._ends = ends
        self._is_returned = False
        super().__init__(fragment, reader, do_nothing)

    def _opening(self) -> Call:
        return Browse(self._number, self._fragment.place, self._next, self._last, self._ends)

    def given(self, deliveries: list[Delivery]) -> None:
        """Messages to be seen."""
        super().given(deliveries)
        if not self._is_returned:
            self._next = int.from_bytes(deliveries[-1][1]) + 1
        self._is_returned = False

    def _return(self, deliveries: list[Delivery]) -> None:
        """They were not seen: it goes on with the first of them."""
        self._is_returned = True
        self._next = int.from_bytes(deliveries[0][1])
        self.begin_again()
