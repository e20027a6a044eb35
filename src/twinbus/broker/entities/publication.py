"""A publication: the messages of one send to a topic while the rules are evaluated for them.

The evaluation changes nothing, so it can be spread over many turns of the event loop; `fan_out` then puts all results
into one batch, or none. Each message is evaluated against the rules that exist when its evaluation begins.

Owns: the progress of the evaluation and its results: the matching rules, and the copies that their actions made.
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
    """Messages that are published together, and the results of evaluating the rules for them."""

    def __init__(
        self,
        records: Sequence[bytes],
        first_sequence: int,
        size: int,
        on_done: OnDone,
        on_applied: OnApplied,
        on_batched: Callable[[], None] | None,
    ) -> None:
        """Create a publication whose messages get the sequence numbers from `first_sequence` on.

        `size` is the size of the messages in bytes, or 0 for scheduled messages, which the topic already counts.
        `on_batched` is called when the messages are put into a batch, and may put changes into the same batch;
        `on_applied` and `on_done` are passed to the commit log.
        """
        self.records = records
        self.first_sequence = first_sequence
        self.size = size
        self.on_done = on_done
        self.on_applied = on_applied
        self.on_batched = on_batched
        self.copied_bytes = 0
        """The size of the copies that actions made."""
        self.counted_bytes = 0
        """The bytes of messages and copies that the fragment counts as pending."""
        self.spans_turns = False
        """Whether the evaluation takes more than one turn."""
        self.matches: list[list[tuple[IndexedRule[tuple[SubscriptionPart, str]], FilterError | None]] | None] = []
        """The matching or failed rules for each message evaluated so far; None for a scheduled message."""
        self.altered_copies: dict[tuple[int, int], bytes | FilterError] = {}
        """The copies that actions made, by the message's index and the rule's index in the message's matches."""
        self._current_match: IncrementalMatch[tuple[SubscriptionPart, str]] | None = None
        """The evaluation of the current message, or None."""
        self._next_action = 0
        """The index of the next rule in the current message's matches whose action is to be applied."""

    @property
    def total_bytes(self) -> int:
        """The size of new messages and of the copies that actions made."""
        return self.size + self.copied_bytes

    @property
    def is_evaluated(self) -> bool:
        """Whether all messages are evaluated."""
        return len(self.matches) == len(self.records)

    def evaluate_without_actions(self, rules: RuleIndex[tuple[SubscriptionPart, str]], budget: int) -> int:
        """Evaluate whole messages, as many as `budget` units allow. Return the remaining units.

        Most topics take this fast path, which requires that no rule has an action. If messages remain, call `evaluate`.
        """
        sequence = self.first_sequence
        for record in self.records:
            if record[3] == SCHEDULED_STATE:
                self.matches.append(None)
            else:
                matches = rules.match_within(MessageView(record, sequence), budget)
                if matches is None:
                    break
                self.matches.append(matches)
                budget -= rules.last_cost
            sequence += 1
        return budget

    def evaluate(self, rules: RuleIndex[tuple[SubscriptionPart, str]], limits: NamespaceLimits, budget: int) -> int:
        """Evaluate messages until `budget` units are used up. Return the remaining units, which may be negative.

        Raises QuotaExceeded if the copies that actions make of new messages take too much memory.
        """
        matches, records = self.matches, self.records
        while len(matches) < len(records):
            record = records[len(matches)]
            if record[3] == SCHEDULED_STATE:
                matches.append(None)
                continue
            if budget <= 0:
                return budget
            matching = self._current_match
            if matching is None:
                matching = self._current_match = rules.begin_match(
                    MessageView(record, self.first_sequence + len(matches))
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
            matches.append(matching.matches)
            self._current_match = None
        return budget

    def _apply_actions(
        self,
        record: bytes,
        matching: IncrementalMatch[tuple[SubscriptionPart, str]],
        limits: NamespaceLimits,
        budget: int,
    ) -> int:
        """Apply the actions of the matching rules until `budget` is used up. Return the remaining units."""
        position, size, view = len(self.matches), min(len(record), FULL_SIZE), matching.view
        while self._next_action < len(matching.matches):
            entry, error = matching.matches[self._next_action]
            action = entry.rule.action
            if action is not None and error is None and entry.key[0].accepts_copies:
                if budget <= 0:
                    break
                altered = self._apply_action(action, record, view, limits)
                self.altered_copies[position, self._next_action] = altered
                if isinstance(altered, bytes):
                    self.copied_bytes += len(altered)
                    self._check_copied_bytes(limits)
                budget -= action.cost.fixed + (action.cost.variable * size >> SIZE_BITS) + view.scanned_properties
            self._next_action += 1
        return budget

    def _check_copied_bytes(self, limits: NamespaceLimits) -> None:
        """Raise QuotaExceeded if the copies of a send use too much memory.

        Scheduled messages are exempt, because they were accepted earlier.
        """
        if self.size and self.copied_bytes > limits.max_pending_bytes:
            raise QuotaExceeded(
                f"the actions of the topic's rules make {self.copied_bytes:,} bytes or more of copies of the "
                "messages, and "
                f"max_pending_bytes is {limits.max_pending_bytes:,}: send fewer or smaller messages at a time, or "
                "delete rules with an action"
            )

    def _apply_action(
        self, action: Action, record: bytes, view: MessageView, limits: NamespaceLimits
    ) -> bytes | FilterError:
        try:
            return action.apply(record, limits, self.first_sequence + len(self.matches), view)
        except FilterError as error:
            return error
