"""The line: which message of a fragment is next, and who gets it.

Owns: the window of messages that can be handed out, the consumers that wait for them, and whose turn it is. What it
means to hand one out is the fragment's affair. A fragment whose queue has sessions has `sessions` instead.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from twinbus.broker.keys import pack_sequence
from twinbus.broker.ports.fragment import DispatchPort
from twinbus.broker.ports.gathering import DRAIN_PATIENCE_S
from twinbus.broker.window import WINDOW_BYTES, WINDOW_MESSAGES, Window
from twinbus.broker.withheld import Withheld
from twinbus.store.protocol import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twinbus.broker.fragment import Fragment
    from twinbus.broker.ports.consumer import Consumer
    from twinbus.model.errors import ServiceBusError
    from twinbus.store.protocol import Row

SHARE: Final = 100
"""Messages one of several consumers gets before it is the next one's turn."""
SPAN: Final = 20_000
"""Sequence numbers that are looked through at once: where all of them are deleted, that takes as long as if they were
not, and nobody else runs meanwhile."""


class LocalDispatch(DispatchPort):
    """Who receives from a fragment of this process, and which message is next: what the fragment tells it."""

    @property
    def lowest(self) -> int:
        """Below it there is nothing that is not out."""
        raise NotImplementedError

    def arrive(self, fresh: list[tuple[int, bytes]], size: int) -> None:
        """Messages are on disk: now they are there for everyone."""
        raise NotImplementedError

    def bring_back(self, sequence: int, record: bytes) -> None:
        """A message that was out is free again."""
        raise NotImplementedError

    def read_again(self, sequence: int) -> None:
        """A message that was out is free again, and has to be read before it is handed out."""

    def take_away(self, sequences: set[int]) -> None:
        """Messages that may be next are not: something else is done to them."""
        raise NotImplementedError

    def begin_handing(self, consumer: Consumer, count: int) -> None:
        """So many messages are being deleted, to be delivered then."""
        raise NotImplementedError

    def end_handing(self, consumer: Consumer, count: int) -> None:
        """... and that was done."""
        raise NotImplementedError

    def restart(self, low: int) -> None:
        """What is known of messages is void: they are read again, from `low` on."""
        raise NotImplementedError


class Line(LocalDispatch):
    """Messages in order, to whoever is hungry."""

    def __init__(self, fragment: Fragment) -> None:
        """Nobody is there yet."""
        self._consumers: set[Consumer] = set()
        self.window = Window(fragment.holdings.first)
        self._fragment = fragment
        self._hungry: OrderedDict[Consumer, None] = OrderedDict()
        self._draining: dict[Consumer, Callable[[], None]] = {}
        self._handing: dict[Consumer, int] = {}
        """Who will get how many messages once they are deleted."""
        self._withheld: Withheld | None = None
        """Messages that the exclusive receiver does not want for now."""

    @property
    def consumers(self) -> set[Consumer]:
        """All receivers."""
        return self._consumers

    # --- consumers ----------------------------------------------------------------------------------------------------

    def add(self, consumer: Consumer) -> None:
        """A receiver has come; it says when it is hungry."""
        self._consumers.add(consumer)

    def remove(self, consumer: Consumer) -> None:
        """A receiver has gone."""
        self._consumers.discard(consumer)
        self._draining.pop(consumer, None)
        self._hungry.pop(consumer, None)
        if not self._consumers:
            self.withhold()
            self.window.clear()

    def withhold(self, name: str = "", values: Sequence[str] = ()) -> None:
        """Skip messages whose property has one of these values, and no others, until told otherwise."""
        if self._withheld is None and not values:
            return
        withheld = self._withheld or Withheld()
        freed = withheld.change(name, values)
        if freed is not None:
            self.read_again(freed)
        self._withheld = withheld if withheld.values else None
        if self._withheld is not None:
            self.window.withhold(withheld)

    def feed(self, consumer: Consumer) -> None:
        """A receiver has room."""
        if consumer in self._consumers:
            self._hungry.setdefault(consumer)
        self.dispatch()

    def drain(self, consumer: Consumer, drained: Callable[[], None]) -> None:
        """Give a receiver what there is now; `drained` is called when that was all, or after a tenth of a second."""
        fragment = self._fragment
        self._draining[consumer] = drained
        deadline_s = fragment.clock.monotonic_s() + DRAIN_PATIENCE_S
        fragment.timers.call_at(deadline_s, lambda: self._end_drain(consumer, drained))
        self.feed(consumer)

    def _end_drain(self, consumer: Consumer, drained: Callable[[], None]) -> None:
        if self._draining.get(consumer) is drained:
            del self._draining[consumer]
            drained()

    def begin_handing(self, consumer: Consumer, count: int) -> None:
        """So many messages are being deleted, to be delivered then."""
        consumer.reserve(count)
        self._handing[consumer] = self._handing.get(consumer, 0) + count

    def end_handing(self, consumer: Consumer, count: int) -> None:
        """... and that was done."""
        left = self._handing.pop(consumer, 0) - count
        if left > 0:
            self._handing[consumer] = left

    def close(self, error: ServiceBusError) -> None:
        """Nobody gets anything any more."""
        for consumer in list(self._consumers):
            consumer.entity_gone(error)
        self._consumers.clear()
        self._hungry.clear()
        self._draining.clear()
        self.withhold()
        self.window.clear()

    # --- messages -----------------------------------------------------------------------------------------------------

    @property
    def lowest(self) -> int:
        """Below it there is nothing that is not out."""
        skipped = None if self._withheld is None else self._withheld.lowest
        return self.window.lowest if skipped is None else min(skipped, self.window.lowest)

    def arrive(self, fresh: list[tuple[int, bytes]], size: int) -> None:
        """Messages are on disk: now they are there for everyone."""
        if fresh and self._consumers and self._withheld is None:  # else they are read, and looked into then
            self.window.extend(fresh, size)

    def bring_back(self, sequence: int, record: bytes) -> None:
        """A message that was out is free again."""
        window = self.window
        if self._consumers and sequence < window.next_read:
            if self._withheld is None or not self._withheld.skips(sequence, record):
                window.put_back(sequence, record)
        else:
            window.next_read = min(window.next_read, sequence)

    def read_again(self, sequence: int) -> None:
        """A message that was out is free again, and has to be read before it is handed out."""
        self.window.clear()
        self.window.next_read = min(self.window.next_read, sequence)

    def take_away(self, sequences: set[int]) -> None:
        """Messages that may be next are not: something else is done to them."""
        self.window.take_away(sequences)

    def restart(self, low: int) -> None:
        """What is known of messages is void: they are read again, from `low` on."""
        handing, self._handing = self._handing, {}
        for consumer, count in handing.items():
            consumer.reserve(-count)
            if consumer in self._consumers:
                self._hungry.setdefault(consumer)
        if self._withheld is not None:
            self._withheld.forget()
        self.window = Window(low)
        for consumer in handing:
            if consumer in self._consumers:
                consumer.feed()  # other fragments have passed it over while its room was reserved for this one

    def dispatch(self) -> None:
        """Hand out what can be."""
        fragment, window, hungry = self._fragment, self.window, self._hungry
        redelivery = fragment.redelivery
        if not fragment.may_hand_out:
            return  # what is handed out now could not be settled
        while window.ready and hungry:
            free = fragment.free_locks
            if free <= 0:
                break
            consumer = next(iter(hungry))
            count = min(consumer.room, len(window.ready), free)
            if count <= 0:
                del hungry[consumer]
                continue
            if len(hungry) > 1:
                count = min(count, SHARE, len(window.ready) // len(hungry) or 1)
                hungry.move_to_end(consumer)
            if redelivery.is_guarding:
                count = redelivery.reach(window.ready, count)
                if not count:
                    break  # it goes on when that is on disk
            fragment.hand_out(consumer, window.take(count))
        self._read_on()
        if self._draining and not window.is_reading:
            self._finish_drains()

    def _finish_drains(self) -> None:
        is_empty = not self.window.ready
        for consumer, drained in list(self._draining.items()):
            if consumer in self._handing:
                continue
            if is_empty or consumer.room <= 0 or self._fragment.free_locks <= 0:
                self._end_drain(consumer, drained)

    def _read_on(self) -> None:
        window, holdings = self.window, self._fragment.holdings
        if self._consumers and window.wants_more(holdings.shown.next) and self._fragment.journal.trouble is None:
            window.is_reading = True
            start = window.next_read
            end = min(holdings.shown.next, start + SPAN)
            self._fragment.scan(
                holdings.active + pack_sequence(start),
                holdings.active + pack_sequence(end),
                lambda rows: self._was_read(window, rows, start, end),
                limit=WINDOW_MESSAGES - len(window.ready),
                max_bytes=WINDOW_BYTES,
            )

    def _was_read(self, window: Window, rows: list[Row] | StoreError, start: int, end: int) -> None:
        if window is not self.window:
            return  # the fragment was loaded anew, or purged
        if isinstance(rows, StoreError):
            self._fragment.journal.fail(str(rows))
            return
        window.fill(rows, start, end, self._fragment.out.__contains__, self._withheld)
        if not self._consumers:
            window.clear()
        self.dispatch()
