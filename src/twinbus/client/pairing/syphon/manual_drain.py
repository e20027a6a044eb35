"""Pumps without a pairing, for operators who drain backlog queues by hand.

Owns: the pumps of some backlog queues, the number of messages they moved, and the reasons why other messages wait. The
pumps are the same as the syphon's, and dead-letter a message only if its destination will never accept the message.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from twinbus.client.pairing.backlog.inspection import SAMPLE_SIZE, inspect
from twinbus.client.pairing.backlog.rewriting import DEFAULT_LOCK_MS
from twinbus.client.pairing.delivery_failure import NOT_FOUND_GRACE_S
from twinbus.client.pairing.observe.event_publisher import PairEventPublisher
from twinbus.client.pairing.observe.events import ALL_KINDS, EventKind
from twinbus.client.pairing.syphon.destination import PrimarySenders
from twinbus.client.pairing.syphon.pump import Pump, PumpSettings
from twinbus.client.pairing.syphon.wakeups import Wakeups
from twinbus.model.path import canonical_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from twinbus.client.factory import MessagingFactory
    from twinbus.client.management import NamespaceManager
    from twinbus.client.pairing.observe.events import PairingEvent

POLL_S: Final = 900.0
INSPECTION_TIMEOUT_S: Final = 10.0
_BLOCKING_EVENTS: Final = frozenset(
    {EventKind.DEFERRED, EventKind.DESTINATION_REFUSES, EventKind.PUMP_FAILED, EventKind.PUMP_DISPLACED}
)


class WaitingMessages(NamedTuple):
    """Messages for one destination that are left in the backlog."""

    path: str | None
    """The destination; None if the messages do not have one."""
    message_count: int
    is_sample: bool
    """Whether the queues have more messages than were read to count the messages by destination."""
    reason: str


class ManualDrain:
    """The pumps for some backlog queues."""

    def __init__(
        self,
        primary: MessagingFactory,
        secondary: MessagingFactory,
        manager: NamespaceManager,
        paths: Iterable[str],
        *,
        deduct_parked_time: bool = False,
        not_found_grace_s: float = NOT_FOUND_GRACE_S,
        lock_durations_ms: Mapping[str, int] | None = None,
    ) -> None:
        """Create the pumps; `start` starts them.

        `lock_durations_ms` has the lock durations that differ from the default of one minute, by queue.
        """
        self.moved = 0
        self.dead_lettered = 0
        self._secondary = secondary
        self._manager = manager
        self._reasons: dict[tuple[str, str | None], str] = {}
        """The reasons why messages wait, by backlog queue and destination. The destination is None if the pump of the
        queue is not running."""
        clock = primary.settings.clock
        events = PairEventPublisher(clock, primary.address, secondary.address)
        events.listen(self._on_event, ALL_KINDS)
        settings = PumpSettings(
            secondary=secondary,
            sender_to=PrimarySenders(primary).sender_to,
            wakeups=Wakeups(),
            epoch=clock.wall_ms(),
            poll_s=POLL_S,
            send_timeout_s=primary.settings.operation_timeout_s,
            deduct_parked_time=deduct_parked_time,
            not_found_grace_s=not_found_grace_s,
            clock=clock,
            events=events,
        )
        self._pumps = [Pump(path, settings, (lock_durations_ms or {}).get(path, DEFAULT_LOCK_MS)) for path in paths]

    def start(self) -> None:
        """Start the pumps."""
        for pump in self._pumps:
            pump.start()

    async def close(self) -> None:
        """Stop the pumps."""
        await asyncio.gather(*[pump.close() for pump in self._pumps])

    async def count_remaining(self) -> int:
        """Return the number of messages that are still in these queues."""
        runtimes = [await self._manager.get_queue_runtime(pump.path) for pump in self._pumps]
        return sum(runtime.active_count + runtime.deferred_count for runtime in runtimes)

    @property
    def has_begun(self) -> bool:
        """Whether a message was moved or dead-lettered, or a reason why messages wait is known."""
        return self.has_blocked_messages or self.moved > 0 or self.dead_lettered > 0

    @property
    def has_blocked_messages(self) -> bool:
        """Whether messages wait for their destination or for a namespace."""
        return bool(self._reasons)

    async def waiting_messages(self) -> list[WaitingMessages]:
        """Return the messages that are left, by destination and reason, most messages first."""
        inspected = await asyncio.gather(
            *[
                inspect(self._secondary, self._manager, pump.path, sample=SAMPLE_SIZE, limit_s=INSPECTION_TIMEOUT_S)
                for pump in self._pumps
            ]
        )
        counts: Counter[tuple[str | None, str]] = Counter()
        is_sample = False
        for pump, contents in zip(self._pumps, inspected, strict=True):
            is_sample |= contents.is_sample
            for path, count in (contents.for_entities or {}).items():
                counts[path, self._reason_for(pump.path, path)] += count
            if contents.without_destination:
                counts[None, self._reason_for(pump.path, None)] += contents.without_destination
        return [WaitingMessages(path, count, is_sample, reason) for (path, reason), count in counts.most_common()]

    def _reason_for(self, queue: str, path: str | None) -> str:
        destination_reason = None if path is None else self._reasons.get((queue, canonical_key(path)))
        return destination_reason or self._reasons.get((queue, None)) or "not attempted yet"

    def _on_event(self, event: PairingEvent) -> None:
        kind, queue = event.kind, event.backlog_queue or ""
        key = (queue, None if event.path is None else canonical_key(event.path))
        if kind is EventKind.MOVED or kind is EventKind.DESTINATION_ACCEPTS or kind is EventKind.PUMP_STARTED:
            self.moved += kind is EventKind.MOVED
            self._reasons.pop(key, None)
        elif kind in _BLOCKING_EVENTS and event.reason is not None:
            self._reasons[key] = event.reason
        self.dead_lettered += kind is EventKind.DEAD_LETTERED
