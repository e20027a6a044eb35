"""Looking at messages that another process has.

Owns: the way there and back; what is seen is read by the owner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.broker.browsing import Browsing
from twinbus.broker.remote.calls import Browse, FindTime, Numbers, Page, Peek
from twinbus.broker.remote.loan import Loan
from twinbus.model.errors import ServiceBusError

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.consumer import Delivery
    from twinbus.broker.remote.calls import Answer, Call
    from twinbus.broker.remote.fragment import RemoteFragment
    from twinbus.broker.remote.loan import Borrowed


class RemoteBrowsing(Browsing):
    """Looks into one fragment that another process has."""

    def __init__(self, fragment: RemoteFragment) -> None:
        """Made by its fragment."""
        super().__init__(fragment)
        self._remote = fragment

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
                fragment.holdings.latest_ms = answer.latest_ms
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


class RemoteBrowser(Loan):
    """One way through the log of a fragment that another process has. What it is lent is room, as for a receiver."""

    def __init__(
        self, fragment: RemoteFragment, reader: Borrowed, first: int, last: int, *, ends: bool = False
    ) -> None:
        """From one sequence number to another, both of which are seen. `ends`: it is told when that is over."""
        self._next = first
        self._last = last
        self._ends = ends
        self._is_returned = False
        super().__init__(fragment, reader, _nothing)

    def leave(self) -> None:
        """It sees nothing more."""
        self.close()

    def go_on(self) -> None:
        """There is room."""
        self.feed()

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


def _nothing() -> None:
    """Nobody knows it but the link that it reads for."""
