"""The work budget: how much rule evaluation a process does in one turn of the event loop.

Evaluating the rules of a topic is pure computation, and its duration depends on the clients' rules and messages. All
topics in a process therefore share one budget per turn. Work that does not fit into the remaining budget continues in
the next turns, after the other work of the event loop.

Owns: the budget, and the tasks waiting for the next turn. Units are those of `filters.cost`, about a microsecond each.
Units are counted, not measured, so that a simulated run can be repeated. This module must not know rules or messages.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    BudgetedTask: TypeAlias = Callable[[int], int]
    """A task that works until the given number of units is used up, and returns the number of unused units."""

UNITS_PER_TURN: Final = 5_000
"""The budget of one turn."""
MIN_UNITS: Final = 50
"""Units that a task may use even if no budget remains: about the cost of receiving a message."""


class WorkBudget:
    """The work budget of one process."""

    def __init__(self, call_at_turn_end: Callable[[Callable[[], None]], object], units: int = UNITS_PER_TURN) -> None:
        """Create a full budget of `units` per turn; `call_at_turn_end` schedules a call for the end of this turn."""
        self.remaining = units
        """Units that remain in this turn; negative if a task used more than its allowance."""
        self._units = units
        self._call_at_turn_end = call_at_turn_end
        self._waiting_tasks: deque[BudgetedTask] = deque()
        self._turn_is_scheduled = False

    def spend(self, units: int) -> None:
        """Deduct units of finished work from the budget."""
        self.remaining -= units
        if self.remaining < self._units >> 1 and not self._turn_is_scheduled:
            self._end_turn()

    def run_in_next_turns(self, task: BudgetedTask) -> None:
        """Run a task in the next turns, in fair shares with other waiting tasks."""
        self._waiting_tasks.append(task)
        if not self._turn_is_scheduled:
            self._end_turn()

    def call_at_turn_end(self, call: Callable[[], None]) -> None:
        """Schedule a call for the end of this turn."""
        self._call_at_turn_end(call)

    def _end_turn(self) -> None:
        self._turn_is_scheduled = True
        self._call_at_turn_end(self._begin_turn)

    def _begin_turn(self) -> None:
        """Give each waiting task the same share of the budget, so that long tasks do not hold up short tasks."""
        self._turn_is_scheduled = False
        self.remaining = self._units
        count = len(self._waiting_tasks)
        share = max(MIN_UNITS, self._units // count) if count else 0
        try:
            while count and self.remaining > 0:
                count -= 1
                allowance = min(share, self.remaining)
                used = allowance - self._waiting_tasks.popleft()(allowance)  # the task may itself spend budget
                self.remaining -= used
        finally:
            if self._waiting_tasks and not self._turn_is_scheduled:
                self._end_turn()
