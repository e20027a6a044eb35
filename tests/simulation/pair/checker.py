"""What was sent, what the senders were told, and where messages are.

Owns: the letters, and the paths that they took. The promises are in `tests.support.delivery_checker.pair_checker`.
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
    """One call of a sender: a letter, or a batch."""

    def __init__(
        self, plan: EntityPlan, messages: Sequence[SimulatedMessage], host: str, began_s: float, limit_s: float
    ) -> None:
        self.plan = plan
        self.messages = messages
        self.host = host
        self.began_s = began_s
        self.limit_s = limit_s


class SimulationChecker(PairDeliveryChecker):
    """All messages of one run."""

    def __init__(self, secondary_ms: Callable[[], int]) -> None:
        """`secondary_ms` is what the secondary's wall clock shows now."""
        super().__init__()
        self._secondary_ms = secondary_ms
        self.messages_sent: dict[str, SimulatedMessage] = {}
        self.found_copies: dict[object, Sequence[FoundCopy]] = {}
        """All copies that were found, by the place where they are."""
        self.pending_calls: dict[SendCall, None] = {}
        self.path_counts: Counter[str] = Counter()
        """Paths that messages took."""
        self.call_count = 0
        """Calls of senders."""

    # --- senders ------------------------------------------------------------------------------------------------------

    def begin_call(self, sending: SendCall) -> None:
        self.call_count += 1
        self.pending_calls[sending] = None
        now_ms, plan = self._secondary_ms(), sending.plan
        for letter in sending.messages:
            letter.send_began_ms = now_ms
            self.messages_sent[letter.id] = letter
            keeps_order = letter.session is not None and letter.due_ms is None
            letter.record = self.send_started(
                letter.id,
                letter.path,
                [plan.receive_path],
                (letter.path, letter.session) if keeps_order else None,
                has_fault=letter.own_fault is not None,
                detects_duplicates=plan.detects_duplicates,
            )

    def call_returned(self, sending: SendCall) -> None:
        self._call_ended(sending, [Outcome.RETURNED] * len(sending.messages))

    def call_failed(self, sending: SendCall, error: BaseException) -> None:
        """A send raised. Of a batch, the messages that the error calls stored count as returned."""
        stored = set(stored_positions_of(error))
        other = Outcome.UNCERTAIN if may_have_happened(error) else Outcome.REFUSED
        outcomes = [Outcome.RETURNED if place in stored else other for place in range(len(sending.messages))]
        self._call_ended(sending, outcomes, f"{type(error).__name__}: {error!s:.200}")
        self.path_counts[f"error {type(error).__name__}"] += 1

    def call_crashed(self, sending: SendCall, why: str) -> None:
        self._call_ended(sending, [Outcome.CRASHED] * len(sending.messages), why)

    def host_crashed(self, host: str) -> None:
        for sending in [one for one in self.pending_calls if one.host == host]:
            self.call_crashed(sending, "the process was killed")

    def _call_ended(self, sending: SendCall, outcomes: Sequence[Outcome], error: str = "") -> None:
        del self.pending_calls[sending]
        for letter, outcome in zip(sending.messages, outcomes, strict=True):
            letter.outcome = outcome
            is_known = outcome in (Outcome.RETURNED, Outcome.REFUSED)
            self.send_ended(
                letter.record, None if outcome is Outcome.RETURNED else error, may_have_happened=not is_known
            )
            self.path_counts[f"sends {outcome.value}"] += 1

    def primary_confirmed(self, event: Sent) -> None:
        """The primary has confirmed messages to a sender."""
        for message in event.messages:
            self.messages_sent[str(message.message_id)].record.is_confirmed_by_primary = True
        self.path_counts["sent to the primary"] += len(event.messages)

    # --- the pairing --------------------------------------------------------------------------------------------------

    def on_event(self, event: PairingEvent) -> None:
        """Something happened in a pairing."""
        if name := COUNTED_EVENTS.get(event.kind):
            self.path_counts[name] += event.count
        letter = self.messages_sent.get(str(event.message_id)) if event.message_id is not None else None
        if letter is None:
            return
        queue = str(event.backlog_queue).rpartition("/")[2]
        if event.kind is EventKind.PARKED:
            letter.record.parked_in.append(queue)
            letter.parked_at_ms = letter.parked_at_ms or self._secondary_ms()
        elif event.kind is EventKind.MOVED:
            letter.record.moved_from.add(queue)
        elif event.kind is EventKind.SPOOLED:
            letter.record.is_spooled = True
