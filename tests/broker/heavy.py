"""A topic whose rules take more than one turn of the loop, and a loop that is moved turn by turn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.broker.topics import TopicRig, sql
from tests.parts import part_of

if TYPE_CHECKING:
    from twinbus.broker.subscription import Subscription
    from twinbus.model.rule import RuleDescription
    from twinbus.model.topic import TopicDescription

UNITS = 60
"""Of work in one turn: one heavy rule takes all of it."""


class HeavyRig(TopicRig):
    """A namespace in which one heavy rule is evaluated in a turn."""

    def __init__(self, description: TopicDescription | None = None, *, units: int = UNITS) -> None:
        super().__init__(description, work_units=units)

    def turn_once(self) -> None:
        """All that waits for this turn of the loop, and what a disk does meanwhile."""
        for _ in range(len(self.turn)):
            self.turn.popleft()()
        while self.mail or self.store.pending:
            if self.mail:
                self.mail.popleft()()
            else:
                self.store.step()

    def turns(self, most: int = 100) -> int:
        """Until nothing is left to do but wait; how many turns that took."""
        for turn in range(most):
            if not (self.turn or self.mail or self.store.pending):
                return turn
            self.turn_once()
        raise AssertionError("still busy")

    def bodies(self, subscription: Subscription) -> list[bytes]:
        """All that it has."""
        consumer = self.consumer(1_000, of=part_of(subscription).main)
        consumer.leave()
        return consumer.bodies


def heavy(count: int, ending: str = "n > 0", action: str | None = None) -> list[RuleDescription]:
    """Rules that each take a turn; the last one is true where `ending` is."""
    costly = " OR ".join(["n > 1000"] * UNITS)
    rules = [sql(costly, name=f"h{number}") for number in range(count - 1)]
    return [*rules, sql(f"{ending} AND ({costly} OR n < 1000 OR n IS NULL)", action, name="last")]
