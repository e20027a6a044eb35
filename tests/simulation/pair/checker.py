"""The delivery checker of the pair simulation: sent messages, outcomes of sends, and found copies.

Owns: the messages, and the paths that they took. The guarantees are in `tests.support.delivery_checker.pair_checker`.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tests.simulation.pair.messages import Outcome
from tests.support.delivery_checker.pair_checker import PairDeliveryChecker, stored_positions_of
from twinbus.client.errors import may_have_happened
from twinbus.client.pairing import EventKind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.simulation.pair.messages import FoundCopy, SimulatedMessage
    from tests.simulation.pair.settings import EntityPlan
    from twinbus.client.events import Sent
    from twinbus.client.pairing import PairingEvent

COUNTED_EVENTS = {
    EventKind.PARKED: "parked",
    EventKind.SPOOLED: "spooled",
    EventKind.UNSPOOLED: "taken from the spool",
    EventKind.DEFERRED: "deferred by a pump",
    EventKind.DEAD_LETTERED: "dead-lettered by a pump",
    EventKind.SPOOL_REFUSED: "refused from the spool",
    EventKind.FAILED_OVER: "entities failed over",
    EventKind.FRAGMENT_DOWN: "fragments down",
    EventKind.UNREACHABLE: "entities unreachable",
    EventKind.PUMP_STARTED: "pumps started",
    EventKind.PUMP_DISPLACED: "pumps displaced",
    EventKind.QUEUE_OUT: "backlog queues out",
}


class SendCall:
    """A send call with one message or a batch."""

    def __init__(
        self, plan: EntityPlan, messages: Sequence[SimulatedMessage], host: str, began_s: float, limit_s: float
    ) -> None:
        self.plan = plan
        self.messages = messages
        self.host = host
        self.began_s = began_s
        self.limit_s = limit_s


class SimulationChecker(PairDeliveryChecker):
    """Checker of all messages of a run."""

    def __init__(self, secondary_ms: Callable[[], int]) -> None:
        """`secondary_ms` returns the time of the secondary's wall clock."""
        super().__init__()
        self._secondary_ms = secondary_ms
        self.messages_sent: dict[str, SimulatedMessage] = {}
        self.found_copies: dict[object, Sequence[FoundCopy]] = {}
        """All found copies, by the place where they were found."""
        self.pending_calls: dict[SendCall, None] = {}
        self.path_counts: Counter[str] = Counter()
        """Number of messages by the path that they took."""
        self.call_count = 0
        """Number of send calls."""

    # --- senders -----------------------------------------------------------------------------------------------------

    def begin_call(self, sending: SendCall) -> None:
        self.call_count += 1
        self.pending_calls[sending] = None
        now_ms, plan = self._secondary_ms(), sending.plan
        for message in sending.messages:
            message.send_began_ms = now_ms
            self.messages_sent[message.id] = message
            keeps_order = message.session is not None and message.due_ms is None
            message.record = self.send_started(
                message.id,
                message.path,
                [plan.receive_path],
                (message.path, message.session) if keeps_order else None,
                has_fault=message.own_fault is not None,
                detects_duplicates=plan.detects_duplicates,
            )

    def call_returned(self, sending: SendCall) -> None:
        self._call_ended(sending, [Outcome.RETURNED] * len(sending.messages))

    def call_failed(self, sending: SendCall, error: BaseException) -> None:
        """Record a send call that raised. Messages of a batch that the error reports as stored count as returned."""
        stored = set(stored_positions_of(error))
        other = Outcome.UNCERTAIN if may_have_happened(error) else Outcome.REFUSED
        outcomes = [Outcome.RETURNED if position in stored else other for position in range(len(sending.messages))]
        self._call_ended(sending, outcomes, f"{type(error).__name__}: {error!s:.200}")
        self.path_counts[f"error {type(error).__name__}"] += 1

    def call_crashed(self, sending: SendCall, why: str) -> None:
        self._call_ended(sending, [Outcome.CRASHED] * len(sending.messages), why)

    def host_crashed(self, host: str) -> None:
        for sending in [call for call in self.pending_calls if call.host == host]:
            self.call_crashed(sending, "the process was killed")

    def _call_ended(self, sending: SendCall, outcomes: Sequence[Outcome], error: str = "") -> None:
        del self.pending_calls[sending]
        for message, outcome in zip(sending.messages, outcomes, strict=True):
            message.outcome = outcome
            is_known = outcome in (Outcome.RETURNED, Outcome.REFUSED)
            self.send_ended(
                message.record, None if outcome is Outcome.RETURNED else error, may_have_happened=not is_known
            )
            self.path_counts[f"sends {outcome.value}"] += 1

    def primary_confirmed(self, event: Sent) -> None:
        """Record messages that the primary has confirmed to the sender."""
        for message in event.messages:
            self.messages_sent[str(message.message_id)].record.is_confirmed_by_primary = True
        self.path_counts["sent to the primary"] += len(event.messages)

    # --- pairing -----------------------------------------------------------------------------------------------------

    def on_event(self, event: PairingEvent) -> None:
        """Record an event of a pairing."""
        if name := COUNTED_EVENTS.get(event.kind):
            self.path_counts[name] += event.count
        message = self.messages_sent.get(str(event.message_id)) if event.message_id is not None else None
        if message is None:
            return
        queue = str(event.backlog_queue).rpartition("/")[2]
        if event.kind is EventKind.PARKED:
            message.record.parked_in.append(queue)
            message.parked_at_ms = message.parked_at_ms or self._secondary_ms()
        elif event.kind is EventKind.MOVED:
            message.record.moved_from.add(queue)
        elif event.kind is EventKind.SPOOLED:
            message.record.is_spooled = True
