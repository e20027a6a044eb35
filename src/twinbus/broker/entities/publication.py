"""A publication: the messages of one send to a topic, until it is known which rules match them.

Finding that out changes nothing, so it can be spread over many turns of the loop; what comes of it is then put into one
batch, all or nothing (`fan_out`). Each message is judged by the rules that are there when its turn comes.

Owns: how far the evaluation got, and what it found: matching rules, and the copies that their actions made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.broker.filters.cost import FULL_SIZE, SIZE_BITS
from twinbus.broker.filters.errors import FilterError
from twinbus.broker.filters.message_view import MessageView
from twinbus.broker.filters.rule_index import PAIR_BITS
from twinbus.broker.message_record import SCHEDULED_STATE
from twinbus.model.errors import QuotaExceeded

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twinbus.broker.commit_log import OnApplied
    from twinbus.broker.entities.local_parts import SubscriptionPart
    from twinbus.broker.filters.action import Action
    from twinbus.broker.filters.rule_index import IncrementalMatch, IndexedRule, RuleIndex
    from twinbus.broker.ports.callbacks import OnDone
    from twinbus.model.limits import NamespaceLimits


class Publication:
    """What is published together."""

    def __init__(
        self,
        records: Sequence[bytes],
        first_sequence: int,
        size: int,
        on_done: OnDone,
        on_applied: OnApplied,
        on_batched: Callable[[], None] | None,
    ) -> None:
        """Messages with the numbers from `first` on.

        `size` is what they weigh, 0 for messages that the topic held before. `beside` is called when they are put into
        a batch, and may put something into the same; `applied` and `answer` are for the journal.
        """
        self.records = records
        self.first_sequence = first_sequence
        self.size = size
        self.on_done = on_done
        self.on_applied = on_applied
        self.on_batched = on_batched
        self.copied_bytes = 0
        """Bytes of the copies that actions made."""
        self.counted_bytes = 0
        """Bytes of the messages and these copies that its fragment counts as waiting."""
        self.spans_turns = False
        """Its evaluation did not fit in the turn in which it began."""
        self.matches: list[list[tuple[IndexedRule[tuple[SubscriptionPart, str]], FilterError | None]] | None] = []
        """Rules that match each of the first messages, or fail with an error; None for a message that is for later."""
        self.altered_copies: dict[tuple[int, int], bytes | FilterError] = {}
        """What actions made of messages: by their places, and by those of the rules among what was found."""
        self._current_match: IncrementalMatch[tuple[SubscriptionPart, str]] | None = None
        """Of the message that is being judged."""
        self._next_action = 0
        """Of this message's matching rules: the first whose action was not looked at."""

    @property
    def total_bytes(self) -> int:
        """Bytes of the messages, as far as they are new to the topic, and of the copies that actions made."""
        return self.size + self.copied_bytes

    @property
    def is_evaluated(self) -> bool:
        """All messages are judged."""
        return len(self.matches) == len(self.records)

    def evaluate_without_actions(self, rules: RuleIndex[tuple[SubscriptionPart, str]], budget: int) -> int:
        """Evaluate, message by message, what costs no more than so many units. Returns what is left of them.

        This is the way of nearly all messages, where no rule has an action. Where it ends before all are judged, `work`
        goes on.
        """
        number = self.first_sequence
        for record in self.records:
            if record[3] == SCHEDULED_STATE:
                self.matches.append(None)
            else:
                found = rules.match_within(MessageView(record, number), budget)
                if found is None:
                    break
                self.matches.append(found)
                budget -= rules.last_cost
            number += 1
        return budget

    def evaluate(self, rules: RuleIndex[tuple[SubscriptionPart, str]], limits: NamespaceLimits, budget: int) -> int:
        """Evaluate until so many units are used up. Returns what is left of them, which may be less than nothing.

        QuotaExceeded if actions make too many bytes of copies of messages that are new to the topic.
        """
        found, records = self.matches, self.records
        while len(found) < len(records):
            record = records[len(found)]
            if record[3] == SCHEDULED_STATE:
                found.append(None)
                continue
            if budget <= 0:
                return budget
            matching = self._current_match
            if matching is None:
                matching = self._current_match = rules.begin_match(
                    MessageView(record, self.first_sequence + len(found))
                )
                self._next_action = 0
            budget = matching.advance(budget)
            if not matching.is_done:
                return budget
            if self._next_action == 0:
                budget -= matching.view.scanned_properties >> PAIR_BITS
            budget = self._apply_actions(record, matching, limits, budget)
            if self._next_action < len(matching.matches):
                return budget
            found.append(matching.matches)
            self._current_match = None
        return budget

    def _apply_actions(
        self,
        record: bytes,
        matching: IncrementalMatch[tuple[SubscriptionPart, str]],
        limits: NamespaceLimits,
        budget: int,
    ) -> int:
        """Make the copies that actions change, as `work`."""
        message, size, view = len(self.matches), min(len(record), FULL_SIZE), matching.view
        while self._next_action < len(matching.matches):
            entry, error = matching.matches[self._next_action]
            action = entry.rule.action
            if action is not None and error is None and entry.key[0].accepts_copies:
                if budget <= 0:
                    break
                altered = self._apply_action(action, record, view, limits)
                self.altered_copies[message, self._next_action] = altered
                if isinstance(altered, bytes):
                    self.copied_bytes += len(altered)
                    self._check_copied_bytes(limits)
                budget -= action.cost.fixed + (action.cost.variable * size >> SIZE_BITS) + view.scanned_properties
            self._next_action += 1
        return budget

    def _check_copied_bytes(self, limits: NamespaceLimits) -> None:
        """Refuse a send before its copies fill the memory; scheduled messages were accepted before, and are not."""
        if self.size and self.copied_bytes > limits.max_pending_bytes:
            raise QuotaExceeded(
                f"the actions of the topic's rules make {self.copied_bytes:,} bytes or more of copies of what "
                "was sent, and "
                f"max_pending_bytes is {limits.max_pending_bytes:,}: send fewer or smaller messages at a time, or "
                "delete rules with an action"
            )

    def _apply_action(
        self, action: Action, record: bytes, view: MessageView, limits: NamespaceLimits
    ) -> bytes | FilterError:
        try:
            return action.apply(record, limits, self.first_sequence + len(self.matches), view)
        except FilterError as problem:
            return problem
