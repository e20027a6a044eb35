"""The dispatcher: which message of a fragment is next, and which consumer gets it.

Owns: the window of available messages, the consumers with credit, and their turns. The fragment locks or deletes the
messages that it delivers. A fragment with sessions uses `session_dispatcher` instead.
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
"""The maximum number of messages that a consumer gets per turn while other consumers wait."""
MAX_SCAN_SPAN: Final = 20_000
"""The maximum range of sequence numbers of one scan. Scanning deleted records takes as long as reading existing
records, and blocks the event loop."""


class LocalDispatcher(DispatcherPort):
    """The dispatcher interface that a fragment in this process uses."""

    @property
    def lowest_available(self) -> int:
        """The sequence number below which no message is available: all lower messages are in flight or removed."""
        raise NotImplementedError

    def add_messages(self, messages: list[tuple[int, bytes]], size: int) -> None:
        """Make new messages, which are now on disk, available."""
        raise NotImplementedError

    def requeue(self, sequence: int, record: bytes) -> None:
        """Make an in-flight message available again."""
        raise NotImplementedError

    def requeue_unread(self, sequence: int) -> None:
        """Make an in-flight message available again; the message is read again before its delivery."""

    def withdraw(self, sequences: set[int]) -> None:
        """Remove messages from the window, because another operation has taken them."""
        raise NotImplementedError

    def begin_pending_delivery(self, consumer: Consumer, count: int) -> None:
        """Reserve credit for messages that are delivered after their deletion is on disk."""
        raise NotImplementedError

    def end_pending_delivery(self, consumer: Consumer, count: int) -> None:
        """Record that the deletion of `count` messages for a consumer is on disk."""
        raise NotImplementedError

    def reset(self, low_watermark: int) -> None:
        """Discard the window and read messages again, from `low_watermark` on."""
        raise NotImplementedError


class Dispatcher(LocalDispatcher):
    """The dispatcher of a fragment without sessions: it delivers messages in order to consumers with credit."""

    def __init__(self, fragment: Fragment) -> None:
        """Create a dispatcher without consumers, with an empty window."""
        self._consumers: set[Consumer] = set()
        self.window = Window(fragment.message_table.first_sequence)
        self._fragment = fragment
        self._waiting_consumers: OrderedDict[Consumer, None] = OrderedDict()
        self._drain_callbacks: dict[Consumer, Callable[[], None]] = {}
        self._pending_deliveries: dict[Consumer, int] = {}
        """The number of messages that each consumer gets when their deletion is on disk."""
        self._withheld_values: WithheldValues | None = None
        """The property values that the exclusive receiver skips for now, or None."""

    @property
    def consumers(self) -> set[Consumer]:
        """All attached consumers."""
        return self._consumers

    # --- consumers ----------------------------------------------------------------------------------------------------

    def add(self, consumer: Consumer) -> None:
        """Add a consumer, which gets messages once `dispatch_to` is called."""
        self._consumers.add(consumer)

    def remove(self, consumer: Consumer) -> None:
        """Remove a consumer; if no consumers are left, clear the window."""
        self._consumers.discard(consumer)
        self._drain_callbacks.pop(consumer, None)
        self._waiting_consumers.pop(consumer, None)
        if not self._consumers:
            self.withhold()
            self.window.clear()

    def withhold(self, property_name: str = "", values: Sequence[str] = ()) -> None:
        """Skip messages whose property `property_name` has one of `values`, until the next call replaces the values."""
        if self._withheld_values is None and not values:
            return
        withheld = self._withheld_values or WithheldValues()
        lowest_freed = withheld.set_values(property_name, values)
        if lowest_freed is not None:
            self.requeue_unread(lowest_freed)
        self._withheld_values = withheld if withheld.values else None
        if self._withheld_values is not None:
            self.window.withhold(withheld)

    def dispatch_to(self, consumer: Consumer) -> None:
        """Dispatch messages to a consumer that has new credit, and to other waiting consumers."""
        if consumer in self._consumers:
            self._waiting_consumers.setdefault(consumer)
        self.dispatch()

    def drain(self, consumer: Consumer, on_drained: Callable[[], None]) -> None:
        """Deliver available messages to a consumer; call `on_drained` when no more are available, or after 0.1 s."""
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
        """Reserve credit for messages that are delivered after their deletion is on disk."""
        consumer.reserve_credit(count)
        self._pending_deliveries[consumer] = self._pending_deliveries.get(consumer, 0) + count

    def end_pending_delivery(self, consumer: Consumer, count: int) -> None:
        """Record that the deletion of `count` messages for a consumer is on disk."""
        remaining = self._pending_deliveries.pop(consumer, 0) - count
        if remaining > 0:
            self._pending_deliveries[consumer] = remaining

    def close(self, error: ServiceBusError) -> None:
        """Detach all consumers with an error."""
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
        """The sequence number below which no message is available: all lower messages are in flight or removed."""
        skipped = None if self._withheld_values is None else self._withheld_values.lowest_skipped
        return self.window.lowest_available if skipped is None else min(skipped, self.window.lowest_available)

    def add_messages(self, messages: list[tuple[int, bytes]], size: int) -> None:
        """Make new messages, which are now on disk, available."""
        if messages and self._consumers and self._withheld_values is None:  # otherwise the messages are read later
            self.window.extend(messages, size)

    def requeue(self, sequence: int, record: bytes) -> None:
        """Make an in-flight message available again."""
        window = self.window
        if self._consumers and sequence < window.next_read:
            if self._withheld_values is None or not self._withheld_values.skips(sequence, record):
                window.requeue(sequence, record)
        else:
            window.next_read = min(window.next_read, sequence)

    def requeue_unread(self, sequence: int) -> None:
        """Make an in-flight message available again; the message is read again before its delivery."""
        self.window.clear()
        self.window.next_read = min(self.window.next_read, sequence)

    def withdraw(self, sequences: set[int]) -> None:
        """Remove messages from the window, because another operation has taken them."""
        self.window.withdraw(sequences)

    def reset(self, low_watermark: int) -> None:
        """Discard the window and read messages again, from `low_watermark` on."""
        pending, self._pending_deliveries = self._pending_deliveries, {}
        for consumer, count in pending.items():
            consumer.reserve_credit(-count)
            if consumer in self._consumers:
                self._waiting_consumers.setdefault(consumer)
        if self._withheld_values is not None:
            self._withheld_values.forget_skipped()
        self.window = Window(low_watermark)
        for consumer in pending:
            if consumer in self._consumers:
                # other fragments skipped the consumer while its credit was reserved here
                consumer.request_messages()

    def dispatch(self) -> None:
        """Deliver available messages to waiting consumers, and read ahead."""
        fragment, window, waiting = self._fragment, self.window, self._waiting_consumers
        redelivery = fragment.redelivery
        if not fragment.can_deliver:
            return  # messages delivered now could not be settled
        while window.ready and waiting:
            available_locks = fragment.available_locks
            if available_locks <= 0:
                break
            consumer = next(iter(waiting))
            count = min(consumer.available_credit, len(window.ready), available_locks)
            if count <= 0:
                del waiting[consumer]
                continue
            if len(waiting) > 1:
                count = min(count, FAIR_SHARE, len(window.ready) // len(waiting) or 1)
                waiting.move_to_end(consumer)
            if redelivery.is_tracking:
                count = redelivery.deliverable_count(window.ready, count)
                if not count:
                    break  # dispatching continues when `redelivery` has noted a block on disk
            fragment.deliver_to(consumer, window.take(count))
        self._read_ahead()
        if self._drain_callbacks and not window.is_reading:
            self._finish_drains()

    def _finish_drains(self) -> None:
        is_empty = not self.window.ready
        for consumer, on_drained in list(self._drain_callbacks.items()):
            if consumer in self._pending_deliveries:
                continue
            if is_empty or consumer.available_credit <= 0 or self._fragment.available_locks <= 0:
                self._end_drain(consumer, on_drained)

    def _read_ahead(self) -> None:
        window, message_table = self.window, self._fragment.message_table
        if (
            self._consumers
            and window.needs_read(message_table.committed.next_sequence)
            and self._fragment.commit_log.unavailable_reason is None
        ):
            window.is_reading = True
            start = window.next_read
            end = min(message_table.committed.next_sequence, start + MAX_SCAN_SPAN)
            self._fragment.scan(
                message_table.active_prefix + pack_sequence(start),
                message_table.active_prefix + pack_sequence(end),
                lambda rows: self._on_read(window, rows, start, end),
                limit=WINDOW_MESSAGES - len(window.ready),
                max_bytes=WINDOW_BYTES,
            )

    def _on_read(self, window: Window, rows: list[Row] | StoreError, start: int, end: int) -> None:
        if window is not self.window:
            return  # the fragment was reloaded or purged meanwhile
        if isinstance(rows, StoreError):
            self._fragment.commit_log.fail(str(rows))
            return
        window.fill(rows, start, end, self._fragment.in_flight.__contains__, self._withheld_values)
        if not self._consumers:
            window.clear()
        self.dispatch()
