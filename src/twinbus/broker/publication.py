"""A publication: the messages of one send to a topic, until it is known which rules match them.

Finding that out changes nothing, so it can be spread over many turns of the loop; what comes of it is then put into one
batch, all or nothing (`fan_out`). Each message is judged by the rules that are there when its turn comes.

Owns: how far the evaluation got, and what it found: matching rules, and the copies that their actions made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.broker.filters.cost import FULL_SIZE, SIZE_BITS
from twinbus.broker.filters.errors import FilterError
from twinbus.broker.filters.view import View
from twinbus.broker.record import SCHEDULED_STATE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twinbus.broker.filters.index import Entry, Matching, RuleIndex
    from twinbus.broker.journal import Answered, Applied
    from twinbus.broker.subscription import Subscription
    from twinbus.model.limits import NamespaceLimits

PAIR_BITS: Final = 1
"""Walking over two properties costs about one unit."""


class Judged:
    """One message, and the rules that match it."""

    def __init__(self, found: list[tuple[Entry[tuple[Subscription, str]], FilterError | None]]) -> None:
        """`found` are rules that match, or fail with an error."""
        self.found = found
        self.altered: dict[int, bytes | FilterError] = {}
        """What the actions of some of them made of it, by their places in `found`."""


class Publication:
    """What is published together."""

    def __init__(
        self,
        rules: RuleIndex[tuple[Subscription, str]],
        limits: NamespaceLimits,
        records: Sequence[bytes],
        first: int,
        answer: Answered,
        *,
        size: int,
        applied: Applied,
        beside: Callable[[], None] | None,
    ) -> None:
        """Messages with the numbers from `first` on.

        `size` is what they weigh, 0 for messages that the topic held before. `beside` is called when they are put into
        a batch, and may put something into the same; `applied` and `answer` are for the journal.
        """
        self.records = records
        self.first = first
        self.answer = answer
        self.size = size
        self.applied = applied
        self.beside = beside
        self.is_late = False
        """Its evaluation did not fit in the turn in which it began."""
        self.judged: list[Judged | None] = []
        """By place; None for a message that is for later."""
        self._rules = rules
        self._limits = limits
        self._matching: Matching[tuple[Subscription, str]] | None = None
        """Of the message whose rules are being evaluated."""
        self._acting: Judged | None = None
        """The message whose copies are being made, and how far that is."""
        self._view: View | None = None
        self._next_action = 0

    @property
    def is_done(self) -> bool:
        """All messages are judged."""
        return len(self.judged) == len(self.records)

    def work(self, allowance: int) -> int:
        """Evaluate until so many units are used up. Returns what is left of them, which may be less than nothing."""
        judged, records, rules = self.judged, self.records, self._rules
        while len(judged) < len(records):
            if allowance <= 0:
                return allowance
            record = records[len(judged)]
            if record[3] == SCHEDULED_STATE:
                judged.append(None)
                continue
            if self._acting is None:
                matching = self._matching
                if matching is None:
                    matching = self._matching = rules.begin(View(record, self.first + len(judged)))
                if matching.units <= allowance:
                    allowance -= matching.units
                    matching.finish()
                else:
                    allowance = matching.go_on(allowance)
                    if not matching.is_done:
                        return allowance
                allowance -= matching.view.pairs >> PAIR_BITS
                self._acting = Judged(matching.found)
                self._view = matching.view
                self._next_action, self._matching = 0, None
            if rules.actions:
                allowance = self._act(record, self._acting, allowance)
                if self._next_action < len(self._acting.found):
                    return allowance
            judged.append(self._acting)
            self._acting = None
        return allowance

    def _act(self, record: bytes, acting: Judged, allowance: int) -> int:
        """Make the copies that actions change, as `work`."""
        number, size, view = self.first + len(self.judged), min(len(record), FULL_SIZE), self._view
        while self._next_action < len(acting.found) and allowance > 0:
            place = self._next_action
            self._next_action = place + 1
            entry, error = acting.found[place]
            action = entry.rule.action
            if action is None or error is not None or not entry.key[0].takes_copies:
                continue
            try:
                acting.altered[place] = action.apply(record, self._limits, number, view)
            except FilterError as problem:
                acting.altered[place] = problem
            allowance -= action.cost.fixed + (action.cost.sized * size >> SIZE_BITS)
            if view is not None:
                allowance -= view.pairs
        return allowance
