"""The line: which message of a fragment is next, and who gets it.

Owns: the window of messages that can be handed out, the consumers that wait for them, and whose turn it is. What it
means to hand one out is the fragment's affair. A fragment whose queue has sessions has `sessions` instead.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from twinbus.broker.fragment.window import WINDOW_BYTES, WINDOW_MESSAGES, Window, WithheldValues
from twinbus.broker.ports.fragment import DispatcherPort
from twinbus.broker.ports.multi_fragment_receiver import DRAIN_TIMEOUT_S
from twinbus.broker.store_keys import pack_sequence
from twinbus.store.protocol import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twinbus.broker.fragment.fragment import Fragment
    from twinbus.broker.ports.consumer import Consumer
    from twinbus.model.errors import ServiceBusError
    from twinbus.store.protocol import Row

FAIR_SHARE: Final = 100
"""Messages one of several consumers gets before it is the next one's turn."""
MAX_SCAN_SPAN: Final = 20_000
"""Sequence numbers that are looked through at once: where all of them are deleted, that takes as long as if they were
not, and nobody else runs meanwhile."""


class LocalDispatcher(DispatcherPort):
    """Who receives from a fragment of this process, and which message is next: what the fragment tells it."""

    @property
    def lowest_available(self) -> int:
        """Below it there is nothing that is not out."""
        raise NotImplementedError

    def add_messages(self, messages: list[tuple[int, bytes]], size: int) -> None:
        """Messages are on disk: now they are there for everyone."""
        raise NotImplementedError

    def requeue(self, sequence: int, record: bytes) -> None:
        """A message that was out is free again."""
        raise NotImplementedError

    def requeue_unread(self, sequence: int) -> None:
        """A message that was out is free again, and has to be read before it is handed out."""

    def withdraw(self, sequences: set[int]) -> None:
        """Messages that may be next are not: something else is done to them."""
        raise NotImplementedError

    def begin_pending_delivery(self, consumer: Consumer, count: int) -> None:
        """So many messages are being deleted, to be delivered then."""
        raise NotImplementedError

    def end_pending_delivery(self, consumer: Consumer, count: int) -> None:
        """... and that was done."""
        raise NotImplementedError

    def reset(self, low_watermark: int) -> None:
        """What is known of messages is void: they are read again, from `low` on."""
        raise NotImplementedError


class Dispatcher(LocalDispatcher):
    """Messages in order, to whoever is hungry."""

    def __init__(self, fragment: Fragment) -> None:
        """Nobody is there yet."""
        self._consumers: set[Consumer] = set()
        self.window = Window(fragment.message_table.first_sequence)
        self._fragment = fragment
        self._waiting_consumers: OrderedDict[Consumer, None] = OrderedDict()
        self._drain_callbacks: dict[Consumer, Callable[[], None]] = {}
        self._pending_deliveries: dict[Consumer, int] = {}
        """Who will get how many messages once they are deleted."""
        self._withheld_values: WithheldValues | None = None
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
        self._drain_callbacks.pop(consumer, None)
        self._waiting_consumers.pop(consumer, None)
        if not self._consumers:
            self.withhold()
            self.window.clear()

    def withhold(self, property_name: str = "", values: Sequence[str] = ()) -> None:
        """Skip messages whose property has one of these values, and no others, until told otherwise."""
        if self._withheld_values is None and not values:
            return
        withheld = self._withheld_values or WithheldValues()
        freed = withheld.set_values(property_name, values)
        if freed is not None:
            self.requeue_unread(freed)
        self._withheld_values = withheld if withheld.values else None
        if self._withheld_values is not None:
            self.window.withhold(withheld)

    def dispatch_to(self, consumer: Consumer) -> None:
        """A receiver has room."""
        if consumer in self._consumers:
            self._waiting_consumers.setdefault(consumer)
        self.dispatch()

    def drain(self, consumer: Consumer, on_drained: Callable[[], None]) -> None:
        """Give a receiver what there is now; `drained` is called when that was all, or after a tenth of a second."""
        fragment = self._fragment
        self._drain_callbacks[consumer] = on_drained
        deadline_s = fragment.clock.monotonic_s() + DRAIN_TIMEOUT_S
        fragment.timers.call_at(deadline_s, lambda: self._end_drain(consumer, on_drained))
        self.dispatch_to(consumer)

    def _end_drain(self, consumer: Consumer, on_drained: Callable[[], None]) -> None:
        if self._drain_callbacks.get(consumer) is on_drained:
            del self._drain_callbacks[consumer]
            on_drained()

    def begin_pending_delivery(self, consumer: Consumer, count: int) -> None:
        """So many messages are being deleted, to be delivered then."""
        consumer.reserve_credit(count)
        self._pending_deliveries[consumer] = self._pending_deliveries.get(consumer, 0) + count

    def end_pending_delivery(self, consumer: Consumer, count: int) -> None:
        """... and that was done."""
        left = self._pending_deliveries.pop(consumer, 0) - count
        if left > 0:
            self._pending_deliveries[consumer] = left

    def close(self, error: ServiceBusError) -> None:
        """Nobody gets anything any more."""
        for consumer in list(self._consumers):
            consumer.force_detach(error)
        self._consumers.clear()
        self._waiting_consumers.clear()
        self._drain_callbacks.clear()
        self.withhold()
        self.window.clear()

    # --- messages -----------------------------------------------------------------------------------------------------

    @property
    def lowest_available(self) -> int:
        """Below it there is nothing that is not out."""
        skipped = None if self._withheld_values is None else self._withheld_values.lowest_skipped
        return self.window.lowest_available if skipped is None else min(skipped, self.window.lowest_available)

    def add_messages(self, messages: list[tuple[int, bytes]], size: int) -> None:
        """Messages are on disk: now they are there for everyone."""
        if messages and self._consumers and self._withheld_values is None:  # else they are read, and looked into then
            self.window.extend(messages, size)

    def requeue(self, sequence: int, record: bytes) -> None:
        """A message that was out is free again."""
        window = self.window
        if self._consumers and sequence < window.next_read:
            if self._withheld_values is None or not self._withheld_values.skips(sequence, record):
                window.requeue(sequence, record)
        else:
            window.next_read = min(window.next_read, sequence)

    def requeue_unread(self, sequence: int) -> None:
        """A message that was out is free again, and has to be read before it is handed out."""
        self.window.clear()
        self.window.next_read = min(self.window.next_read, sequence)

    def withdraw(self, sequences: set[int]) -> None:
        """Messages that may be next are not: something else is done to them."""
        self.window.withdraw(sequences)

    def reset(self, low_watermark: int) -> None:
        """What is known of messages is void: they are read again, from `low` on."""
        handing, self._pending_deliveries = self._pending_deliveries, {}
        for consumer, count in handing.items():
            consumer.reserve_credit(-count)
            if consumer in self._consumers:
                self._waiting_consumers.setdefault(consumer)
        if self._withheld_values is not None:
            self._withheld_values.forget_skipped()
        self.window = Window(low_watermark)
        for consumer in handing:
            if consumer in self._consumers:
                # other fragments have passed it over while its room was reserved for this one
                consumer.request_messages()

    def dispatch(self) -> None:
        """Hand out what can be."""
        fragment, window, hungry = self._fragment, self.window, self._waiting_consumers
        redelivery = fragment.redelivery
        if not fragment.can_deliver:
            return  # what is handed out now could not be settled
        while window.ready and hungry:
            free = fragment.available_locks
            if free <= 0:
                break
            consumer = next(iter(hungry))
            count = min(consumer.available_credit, len(window.ready), free)
            if count <= 0:
                del hungry[consumer]
                continue
            if len(hungry) > 1:
                count = min(count, FAIR_SHARE, len(window.ready) // len(hungry) or 1)
                hungry.move_to_end(consumer)
            if redelivery.is_tracking:
                count = redelivery.deliverable_count(window.ready, count)
                if not count:
                    break  # it goes on when that is on disk
            fragment.deliver_to(consumer, window.take(count))
        self._read_ahead()
        if self._drain_callbacks and not window.is_reading:
            self._finish_drains()

    def _finish_drains(self) -> None:
        is_empty = not self.window.ready
        for consumer, drained in list(self._drain_callbacks.items()):
            if consumer in self._pending_deliveries:
                continue
            if is_empty or consumer.available_credit <= 0 or self._fragment.available_locks <= 0:
                self._end_drain(consumer, drained)

    def _read_ahead(self) -> None:
        window, holdings = self.window, self._fragment.message_table
        if (
            self._consumers
            and window.needs_read(holdings.committed.next_sequence)
            and self._fragment.commit_log.unavailable_reason is None
        ):
            window.is_reading = True
            start = window.next_read
            end = min(holdings.committed.next_sequence, start + MAX_SCAN_SPAN)
            self._fragment.scan(
                holdings.active_prefix + pack_sequence(start),
                holdings.active_prefix + pack_sequence(end),
                lambda rows: self._on_read(window, rows, start, end),
                limit=WINDOW_MESSAGES - len(window.ready),
                max_bytes=WINDOW_BYTES,
            )

    def _on_read(self, window: Window, rows: list[Row] | StoreError, start: int, end: int) -> None:
        if window is not self.window:
            return  # the fragment was loaded anew, or purged
        if isinstance(rows, StoreError):
            self._fragment.commit_log.fail(str(rows))
            return
        window.fill(rows, start, end, self._fragment.in_flight.__contains__, self._withheld_values)
        if not self._consumers:
            window.clear()
        self.dispatch()
