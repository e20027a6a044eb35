"""A gathering: the fragments that one receiver takes messages from, as if they were one.

Owns: whose turn it is to give, and when all of them have nothing more. A receiver is known to every fragment, and none
gives more than it has room for: what it has not got stays free for others. A plain entity has one fragment only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.broker.ports.fragment import LOCK_TOKEN_BYTES, TOKEN_FRAGMENT_BYTE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twinbus.broker.ports.consumer import Consumer
    from twinbus.broker.ports.fragment import FragmentPort, OwnerPort

DRAIN_TIMEOUT_S: Final = 0.1


class MultiFragmentReceiver:
    """The fragments of one receiver."""

    def __init__(self, fragments: Sequence[FragmentPort]) -> None:
        """In the order of their numbers."""
        self.fragments = list(fragments)
        self._next_index = 0

    def count_asynchronous_admissions(self) -> int:
        """Return how many of them admit a receiver later, by `let_in`."""
        return sum([fragment.admits_asynchronously for fragment in self.fragments])

    def responsive_owners(self) -> set[OwnerPort]:
        """Return the other processes that own some of them, and whose confirmation is worth waiting for."""
        owners = {fragment.owner for fragment in self.fragments}
        return {owner for owner in owners if owner.is_responsive}

    def begin_rotation(self) -> list[FragmentPort]:
        """A receiver has come. The fragments, from another one on each time: else the last would wait for ever.

        Many a receiver takes one message, or one session, and goes.
        """
        first = self.fragments[0]
        self._next_index, first.attach_count = first.attach_count % len(self.fragments), first.attach_count + 1
        return self._in_rotation()

    def _in_rotation(self) -> list[FragmentPort]:
        return self.fragments[self._next_index :] + self.fragments[: self._next_index]

    def add(self, consumer: Consumer) -> None:
        """A receiver has come; it says when it is hungry."""
        for fragment in self.begin_rotation():
            fragment.dispatcher.add(consumer)

    def remove(self, consumer: Consumer) -> None:
        """A receiver has gone."""
        for fragment in self.fragments:
            fragment.dispatcher.remove(consumer)

    def dispatch_to(self, consumer: Consumer) -> None:
        """A receiver has room: each fragment in turn, until it has none."""
        fragments, count = self.fragments, len(self.fragments)
        if count == 1:
            fragments[0].dispatcher.dispatch_to(consumer)
            return
        for step in range(count):
            number = (self._next_index + step) % count
            fragments[number].dispatcher.dispatch_to(consumer)
            if consumer.available_credit <= 0:
                self._next_index = (number + 1) % count
                return

    def drain(self, consumer: Consumer, on_drained: Callable[[], None]) -> None:
        """Give a receiver what there is now; `drained` is called when that was all, or after a tenth of a second."""
        if self.count_asynchronous_admissions():
            self._drain_sequentially(consumer, on_drained)
            return
        left = len(self.fragments)

        def one_drained() -> None:
            nonlocal left
            left -= 1
            if not left:
                on_drained()

        begun = self._next_index
        for fragment in self._in_rotation():
            fragment.dispatcher.drain(consumer, one_drained)
            if consumer.available_credit <= 0 and self._next_index == begun:
                self._next_index = (self.fragments.index(fragment) + 1) % len(self.fragments)

    def _drain_sequentially(self, consumer: Consumer, on_drained: Callable[[], None]) -> None:
        """One fragment after the other: what is lent to one cannot be lent to the next.

        Those to which something is lent come first, since it is what the others are asked with.
        """
        waiting = sorted(
            self._in_rotation(), key=lambda fragment: not fragment.dispatcher.has_reserved_credit(consumer)
        )
        local_fragments = [fragment for fragment in self._in_rotation() if not fragment.reserves_credit]
        is_over = False

        def finish() -> None:
            nonlocal is_over
            was_over, is_over = is_over, True
            if not was_over and not consumer.is_closed:
                on_drained()

        def drain_next() -> None:
            if consumer.is_closed:
                return
            if is_over:
                consumer.request_messages()  # credit that comes back after the drain is offered to all fragments
                return
            for fragment in local_fragments:  # local messages do not wait for a slow process
                fragment.dispatcher.dispatch_to(consumer)
            if waiting and (consumer.available_credit > 0 or waiting[0].dispatcher.has_reserved_credit(consumer)):
                waiting.pop(0).dispatcher.drain(consumer, drain_next)
            else:
                finish()

        first = self.fragments[0]
        first.timers.call_at(first.clock.monotonic_s() + DRAIN_TIMEOUT_S, finish)
        drain_next()

    def fragment_of_tag(self, tag: bytes) -> FragmentPort:
        """The fragment that a lock's tag or token is of; any, if it is of none."""
        fragments = self.fragments
        if len(fragments) == 1:
            return fragments[0]
        number = tag[TOKEN_FRAGMENT_BYTE] if len(tag) == LOCK_TOKEN_BYTES else 0
        return fragments[number] if number < len(fragments) else fragments[0]
