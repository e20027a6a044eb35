"""A gathering: the fragments that one receiver takes messages from, as if they were one.

Owns: whose turn it is to give, and when all of them have nothing more. A receiver is known to every fragment, and none
gives more than it has room for: what it has not got stays free for others. A plain entity has one fragment only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.broker.ports.numbers import FRAGMENT_BYTE, TOKEN_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twinbus.broker.ports.consumer import Consumer
    from twinbus.broker.ports.fragment import FragmentPort, OwnerPort

DRAIN_PATIENCE_S: Final = 0.1


class Gathering:
    """The fragments of one receiver."""

    def __init__(self, fragments: Sequence[FragmentPort]) -> None:
        """In the order of their numbers."""
        self.fragments = list(fragments)
        self._next = 0

    def count_admitting(self) -> int:
        """Return how many of them admit a receiver later, by `let_in`."""
        return sum([fragment.admits_later for fragment in self.fragments])

    def owners(self) -> set[OwnerPort]:
        """Return the other processes that own some of them, and whose confirmation is worth waiting for."""
        owners = {fragment.owner for fragment in self.fragments}
        return {owner for owner in owners if owner.is_awaited}

    def begin(self) -> list[FragmentPort]:
        """A receiver has come. The fragments, from another one on each time: else the last would wait for ever.

        Many a receiver takes one message, or one session, and goes.
        """
        first = self.fragments[0]
        self._next, first.newcomers = first.newcomers % len(self.fragments), first.newcomers + 1
        return self._in_turn()

    def _in_turn(self) -> list[FragmentPort]:
        return self.fragments[self._next :] + self.fragments[: self._next]

    def add(self, consumer: Consumer) -> None:
        """A receiver has come; it says when it is hungry."""
        for fragment in self.begin():
            fragment.line.add(consumer)

    def remove(self, consumer: Consumer) -> None:
        """A receiver has gone."""
        for fragment in self.fragments:
            fragment.line.remove(consumer)

    def feed(self, consumer: Consumer) -> None:
        """A receiver has room: each fragment in turn, until it has none."""
        fragments, count = self.fragments, len(self.fragments)
        if count == 1:
            fragments[0].line.feed(consumer)
            return
        for step in range(count):
            number = (self._next + step) % count
            fragments[number].line.feed(consumer)
            if consumer.room <= 0:
                self._next = (number + 1) % count
                return

    def drain(self, consumer: Consumer, drained: Callable[[], None]) -> None:
        """Give a receiver what there is now; `drained` is called when that was all, or after a tenth of a second."""
        if self.count_admitting():
            self._drain_in_turn(consumer, drained)
            return
        left = len(self.fragments)

        def one_drained() -> None:
            nonlocal left
            left -= 1
            if not left:
                drained()

        begun = self._next
        for fragment in self._in_turn():
            fragment.line.drain(consumer, one_drained)
            if consumer.room <= 0 and self._next == begun:
                self._next = (self.fragments.index(fragment) + 1) % len(self.fragments)

    def _drain_in_turn(self, consumer: Consumer, drained: Callable[[], None]) -> None:
        """One fragment after the other: what is lent to one cannot be lent to the next.

        Those to which something is lent come first, since it is what the others are asked with.
        """
        waiting = sorted(self._in_turn(), key=lambda fragment: not fragment.line.has_reserved(consumer))
        is_over = False

        def finish() -> None:
            nonlocal is_over
            was_over, is_over = is_over, True
            if not was_over and not consumer.is_gone:
                drained()

        def ask_next() -> None:
            is_hungry = waiting and (consumer.room > 0 or waiting[0].line.has_reserved(consumer))
            if is_over or consumer.is_gone or not is_hungry:
                finish()
            else:
                waiting.pop(0).line.drain(consumer, ask_next)

        first = self.fragments[0]
        first.timers.call_at(first.clock.monotonic_s() + DRAIN_PATIENCE_S, finish)
        for fragment in self._in_turn():
            if not fragment.reserves_credit:
                fragment.line.feed(consumer)  # what is here is not waited for behind a process that is slow
        ask_next()

    def find(self, tag: bytes) -> FragmentPort:
        """The fragment that a lock's tag or token is of; any, if it is of none."""
        fragments = self.fragments
        if len(fragments) == 1:
            return fragments[0]
        number = tag[FRAGMENT_BYTE] if len(tag) == TOKEN_BYTES else 0
        return fragments[number] if number < len(fragments) else fragments[0]
