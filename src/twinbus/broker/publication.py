"""A publication: the messages of one send to a topic, until it is known which rules match them.

Finding that out changes nothing, so it can be spread over many turns of the loop; what comes of it is then put into one
batch, all or nothing (`fan_out`). Each message is judged by the rules that are there when its turn comes.

Owns: how far the evaluation got, and what it found: matching rules, and the copies that their actions made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.broker.filters.cost import FULL_SIZE, SIZE_BITS
from twinbus.broker.filters.errors import FilterError
from twinbus.broker.filters.index import PAIR_BITS
from twinbus.broker.filters.view import View
from twinbus.broker.record import SCHEDULED_STATE
from twinbus.model.errors import QuotaExceeded

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twinbus.broker.filters.action import Action
    from twinbus.broker.filters.index import Entry, Matching, RuleIndex
    from twinbus.broker.journal import Applied
    from twinbus.broker.ports.callbacks import Answered
    from twinbus.broker.receivable_part import SubscriptionPart
    from twinbus.model.limits import NamespaceLimits


class Publication:
    """What is published together."""

    def __init__(
        self,
        records: Sequence[bytes],
        first: int,
        size: int,
        answer: Answered,
        applied: Applied,
        beside: Callable[[], None] | None,
    ) -> None:
        """Messages with the numbers from `first` on.

        `size` is what they weigh, 0 for messages that the topic held before. `beside` is called when they are put into
        a batch, and may put something into the same; `applied` and `answer` are for the journal.
        """
        self.records = records
        self.first = first
        self.size = size
        self.answer = answer
        self.applied = applied
        self.beside = beside
        self.copied = 0
        """Bytes of the copies that actions made."""
        self.held = 0
        """Bytes of the messages and these copies that its fragment counts as waiting."""
        self.is_late = False
        """Its evaluation did not fit in the turn in which it began."""
        self.found: list[list[tuple[Entry[tuple[SubscriptionPart, str]], FilterError | None]] | None] = []
        """Rules that match each of the first messages, or fail with an error; None for a message that is for later."""
        self.altered: dict[tuple[int, int], bytes | FilterError] = {}
        """What actions made of messages: by their places, and by those of the rules among what was found."""
        self._matching: Matching[tuple[SubscriptionPart, str]] | None = None
        """Of the message that is being judged."""
        self._next_action = 0
        """Of this message's matching rules: the first whose action was not looked at."""

    @property
    def weight(self) -> int:
        """Bytes of the messages, as far as they are new to the topic, and of the copies that actions made."""
        return self.size + self.copied

    @property
    def is_done(self) -> bool:
        """All messages are judged."""
        return len(self.found) == len(self.records)

    def work_at_once(self, rules: RuleIndex[tuple[SubscriptionPart, str]], allowance: int) -> int:
        """Evaluate, message by message, what costs no more than so many units. Returns what is left of them.

        This is the way of nearly all messages, where no rule has an action. Where it ends before all are judged, `work`
        goes on.
        """
        number = self.first
        for record in self.records:
            if record[3] == SCHEDULED_STATE:
                self.found.append(None)
            else:
                found = rules.match_within(View(record, number), allowance)
                if found is None:
                    break
                self.found.append(found)
                allowance -= rules.spent
            number += 1
        return allowance

    def work(self, rules: RuleIndex[tuple[SubscriptionPart, str]], limits: NamespaceLimits, allowance: int) -> int:
        """Evaluate until so many units are used up. Returns what is left of them, which may be less than nothing.

        QuotaExceeded if actions make too many bytes of copies of messages that are new to the topic.
        """
        found, records = self.found, self.records
        while len(found) < len(records):
            record = records[len(found)]
            if record[3] == SCHEDULED_STATE:
                found.append(None)
                continue
            if allowance <= 0:
                return allowance
            matching = self._matching
            if matching is None:
                matching = self._matching = rules.begin(View(record, self.first + len(found)))
                self._next_action = 0
            allowance = matching.go_on(allowance)
            if not matching.is_done:
                return allowance
            if self._next_action == 0:
                allowance -= matching.view.pairs >> PAIR_BITS
            allowance = self._act(record, matching, limits, allowance)
            if self._next_action < len(matching.found):
                return allowance
            found.append(matching.found)
            self._matching = None
        return allowance

    def _act(
        self, record: bytes, matching: Matching[tuple[SubscriptionPart, str]], limits: NamespaceLimits, allowance: int
    ) -> int:
        """Make the copies that actions change, as `work`."""
        message, size, view = len(self.found), min(len(record), FULL_SIZE), matching.view
        while self._next_action < len(matching.found):
            entry, error = matching.found[self._next_action]
            action = entry.rule.action
            if action is not None and error is None and entry.key[0].takes_copies:
                if allowance <= 0:
                    break
                altered = self._altered(action, record, view, limits)
                self.altered[message, self._next_action] = altered
                if isinstance(altered, bytes):
                    self.copied += len(altered)
                    self._check_copies(limits)
                allowance -= action.cost.fixed + (action.cost.sized * size >> SIZE_BITS) + view.pairs
            self._next_action += 1
        return allowance

    def _check_copies(self, limits: NamespaceLimits) -> None:
        """Refuse a send before its copies fill the memory; scheduled messages were accepted before, and are not."""
        if self.size and self.copied > limits.max_pending_bytes:
            raise QuotaExceeded(
                f"the actions of the topic's rules make {self.copied:,} bytes or more of copies of what was sent, and "
                f"max_pending_bytes is {limits.max_pending_bytes:,}: send fewer or smaller messages at a time, or "
                "delete rules with an action"
            )

    def _altered(self, action: Action, record: bytes, view: View, limits: NamespaceLimits) -> bytes | FilterError:
        try:
            return action.apply(record, limits, self.first + len(self.found), view)
        except FilterError as problem:
            return problem
