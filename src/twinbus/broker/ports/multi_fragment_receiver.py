"""The fragments of an entity, as one receiver uses them.

Owns the order in which fragments deliver to the receiver, and draining of all fragments. The receiver is attached to
every fragment, and no fragment delivers more messages than the receiver has credit for, so other messages stay
available to other receivers. A plain entity has a single fragment.
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
    """All fragments that one receiver receives from."""

    def __init__(self, fragments: Sequence[FragmentPort]) -> None:
        """Create a receiver for these fragments, which must be sorted by number."""
        self.fragments = list(fragments)
        self._next_index = 0

    def count_asynchronous_admissions(self) -> int:
        """Return how many fragments admit a receiver asynchronously, by calling its `on_admitted`."""
        return sum([fragment.admits_asynchronously for fragment in self.fragments])

    def responsive_owners(self) -> set[OwnerPort]:
        """Return the other processes that own some of the fragments and are responsive."""
        owners = {fragment.owner for fragment in self.fragments}
        return {owner for owner in owners if owner.is_responsive}

    def begin_rotation(self) -> list[FragmentPort]:
        """Return all fragments, starting with a different fragment for each new receiver.

        Many receivers take one message or one session and detach. If all of them started with the first fragment, the
        last fragments would starve.
        """
        first = self.fragments[0]
        self._next_index, first.attach_count = first.attach_count % len(self.fragments), first.attach_count + 1
        return self._in_rotation()

    def _in_rotation(self) -> list[FragmentPort]:
        return self.fragments[self._next_index :] + self.fragments[: self._next_index]

    def add(self, consumer: Consumer) -> None:
        """Attach a receiver to all fragments. The receiver calls `dispatch_to` when it has credit."""
        for fragment in self.begin_rotation():
            fragment.dispatcher.add(consumer)

    def remove(self, consumer: Consumer) -> None:
        """Detach a receiver from all fragments."""
        for fragment in self.fragments:
            fragment.dispatcher.remove(consumer)

    def dispatch_to(self, consumer: Consumer) -> None:
        """Let each fragment in turn deliver messages to a receiver, until its credit is used up."""
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
        """Deliver the available messages to a receiver, then call `on_drained`, after at most 0.1 s."""
        if self.count_asynchronous_admissions():
            self._drain_sequentially(consumer, on_drained)
            return
        remaining = len(self.fragments)

        def on_fragment_drained() -> None:
            nonlocal remaining
            remaining -= 1
            if not remaining:
                on_drained()

        started_at = self._next_index
        for fragment in self._in_rotation():
            fragment.dispatcher.drain(consumer, on_fragment_drained)
            if consumer.available_credit <= 0 and self._next_index == started_at:
                self._next_index = (self.fragments.index(fragment) + 1) % len(self.fragments)

    def _drain_sequentially(self, consumer: Consumer, on_drained: Callable[[], None]) -> None:
        """Drain one fragment after another, because credit reserved for one fragment cannot be offered to others.

        Fragments that hold reserved credit come first: the other fragments need this credit.
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
                consumer.request_messages()  # offers all fragments the credit that is released after the drain
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
        """Return the fragment named by a delivery tag or lock token, or the first fragment if the tag is not valid."""
        fragments = self.fragments
        if len(fragments) == 1:
            return fragments[0]
        number = tag[TOKEN_FRAGMENT_BYTE] if len(tag) == LOCK_TOKEN_BYTES else 0
        return fragments[number] if number < len(fragments) else fragments[0]
