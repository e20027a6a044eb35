"""What was sent, what the senders were told, and what was found in the end.

Owns: the letters and their copies. What they have to be is in `checks`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from tests.pair_simulation.letters import Outcome
from twinbus.client.errors import may_have_happened
from twinbus.client.pairing import EventKind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.pair_simulation.letters import Copy, Letter
    from twinbus.client.events import Sent
    from twinbus.client.pairing import PairingEvent

COUNTED = {
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


class Sending:
    """One call of a sender: a letter, or a batch."""

    def __init__(self, letters: Sequence[Letter], host: str, began_s: float, limit_s: float) -> None:
        self.letters = letters
        self.host = host
        self.began_s = began_s
        self.limit_s = limit_s


class Ledger:
    """All of one run."""

    def __init__(self, secondary_ms: Callable[[], int]) -> None:
        """`secondary_ms` is what the secondary's wall clock shows now."""
        self._secondary_ms = secondary_ms
        self.letters: dict[str, Letter] = {}
        self.copies: defaultdict[str, list[Copy]] = defaultdict(list)
        self._places: dict[object, Sequence[Copy]] = {}
        self.pending: dict[Sending, None] = {}
        self.counts: Counter[str] = Counter()
        """Paths that messages took."""
        self.begun = 0
        """Calls of senders."""

    # --- senders ------------------------------------------------------------------------------------------------------

    def begin(self, sending: Sending) -> None:
        self.begun += 1
        self.pending[sending] = None
        now_ms = self._secondary_ms()
        for letter in sending.letters:
            letter.begun_ms = now_ms
            self.letters[letter.id] = letter

    def returned(self, sending: Sending) -> None:
        self._end(sending, [Outcome.RETURNED] * len(sending.letters))

    def failed(self, sending: Sending, error: BaseException) -> None:
        """A send raised. Of a batch, the messages that the error calls stored count as returned."""
        stored = set(stored_in(error))
        other = Outcome.UNCERTAIN if may_have_happened(error) else Outcome.REFUSED
        outcomes = [Outcome.RETURNED if place in stored else other for place in range(len(sending.letters))]
        self._end(sending, outcomes, f"{type(error).__name__}: {error!s:.200}")
        self.counts[f"error {type(error).__name__}"] += 1

    def crashed(self, sending: Sending, why: str) -> None:
        self._end(sending, [Outcome.CRASHED] * len(sending.letters), why)

    def host_crashed(self, host: str) -> None:
        for sending in [one for one in self.pending if one.host == host]:
            self.crashed(sending, "the process was killed")

    def _end(self, sending: Sending, outcomes: Sequence[Outcome], error: str = "") -> None:
        del self.pending[sending]
        for letter, outcome in zip(sending.letters, outcomes, strict=True):
            letter.outcome, letter.error = outcome, error
            self.counts[f"sends {outcome.value}"] += 1

    def confirm(self, event: Sent) -> None:
        """The primary has confirmed messages to a sender."""
        for message in event.messages:
            self.letters[str(message.message_id)].is_direct = True
        self.counts["sent to the primary"] += len(event.messages)

    # --- the pairing --------------------------------------------------------------------------------------------------

    def hear(self, event: PairingEvent) -> None:
        """Something happened in a pairing."""
        if name := COUNTED.get(event.kind):
            self.counts[name] += event.count
        letter = self.letters.get(str(event.message_id)) if event.message_id is not None else None
        if letter is None:
            return
        queue = str(event.backlog_queue).rpartition("/")[2]
        if event.kind is EventKind.PARKED:
            letter.parked_in.append(queue)
            letter.parked_at_ms = letter.parked_at_ms or self._secondary_ms()
        elif event.kind is EventKind.MOVED:
            letter.moved_from.add(queue)
        elif event.kind is EventKind.SPOOLED:
            letter.was_spooled = True

    # --- what is found ------------------------------------------------------------------------------------------------

    def found(self, where: object, copies: Sequence[Copy]) -> None:
        """All copies that are in one place, instead of those that were found there before."""
        self._places[where] = copies

    def sort(self) -> None:
        """Put the copies of each letter together."""
        self.copies.clear()
        for copies in self._places.values():
            for copy in copies:
                self.copies[copy.id].append(copy)


def stored_in(error: BaseException) -> Sequence[int]:
    """The places of those messages of a batch that an error calls safe."""
    stored = getattr(error, "stored", None)
    return range(getattr(error, "safe", 0)) if stored is None else list(stored)
