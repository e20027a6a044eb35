"""A topic whose rules take more than one turn of the event loop, and a loop that tests run turn by turn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.broker.topic_harness import TopicHarness, sql_rule
from tests.support.parts import local_part

if TYPE_CHECKING:
    from twinbus.broker.entities.subscription import Subscription
    from twinbus.model.rule import RuleDescription
    from twinbus.model.topic import TopicDescription

WORK_UNITS = 60
"""Work units of one turn: evaluating one slow rule uses all of them."""


class SlowRuleHarness(TopicHarness):
    """A namespace that evaluates one slow rule per turn."""

    def __init__(self, description: TopicDescription | None = None, *, units: int = WORK_UNITS) -> None:
        super().__init__(description, work_units=units)

    def run_turn(self) -> None:
        """Run all calls pending for this turn of the loop, and all store operations."""
        for _ in range(len(self.deferred_calls)):
            self.deferred_calls.popleft()()
        while self.store_callbacks or self.store.has_work:
            if self.store_callbacks:
                self.store_callbacks.popleft()()
            else:
                self.store.step()

    def run_turns(self, max_turns: int = 100) -> int:
        """Run turns until idle; return the number of turns."""
        for turn in range(max_turns):
            if not (self.deferred_calls or self.store_callbacks or self.store.has_work):
                return turn
            self.run_turn()
        raise AssertionError("still busy")

    def bodies(self, subscription: Subscription) -> list[bytes]:
        """Return the bodies of all messages of a subscription."""
        consumer = self.consumer(1_000, of=local_part(subscription).main)
        consumer.leave()
        return consumer.bodies


def slow_rules(count: int, ending: str = "n > 0", action: str | None = None) -> list[RuleDescription]:
    """Return rules that take a turn each; the last one is true where `ending` is."""
    costly = " OR ".join(["n > 1000"] * WORK_UNITS)
    rules = [sql_rule(costly, name=f"h{number}") for number in range(count - 1)]
    return [*rules, sql_rule(f"{ending} AND ({costly} OR n < 1000 OR n IS NULL)", action, name="last")]
