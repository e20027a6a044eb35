"""Work: how much is done in one turn of the loop before others are served.

Evaluating the rules of a topic is pure computation, and how long it takes is up to whoever adds rules and sends
messages. So all topics of a process share one budget for each turn. Work that does not fit in what is left of the
budget waits, and goes on in the next turn, after everyone else was served.

Owns: the budget, and who waits for the next turn. Units are those of `filters.cost`, about a microsecond each: they are
counted, not measured, so that a run can be repeated. Knows nothing of rules or messages.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    BudgetedTask: TypeAlias = Callable[[int], int]
    """Works until so many units are used up; returns what is left of them."""

UNITS_PER_TURN: Final = 5_000
"""Of one turn."""
MIN_UNITS: Final = 50
"""Units that work may take whatever is left: as much as receiving a message takes anyway."""


class WorkBudget:
    """The work of one process."""

    def __init__(self, call_at_turn_end: Callable[[Callable[[], None]], object], units: int = UNITS_PER_TURN) -> None:
        """`defer` makes a call at the end of this turn."""
        self.remaining = units
        """Of this turn; less than nothing where work took more than was expected of it."""
        self._units = units
        self._call_at_turn_end = call_at_turn_end
        self._waiting_tasks: deque[BudgetedTask] = deque()
        self._turn_is_scheduled = False

    def spend(self, units: int) -> None:
        """Work was done."""
        self.remaining -= units
        if self.remaining < self._units >> 1 and not self._turn_is_scheduled:
            self._end_turn()

    def run_in_next_turns(self, task: BudgetedTask) -> None:
        """Have work done in the turns to come, beside that of others."""
        self._waiting_tasks.append(task)
        if not self._turn_is_scheduled:
            self._end_turn()

    def call_at_turn_end(self, call: Callable[[], None]) -> None:
        """Make a call at the end of this turn."""
        self._call_at_turn_end(call)

    def _end_turn(self) -> None:
        self._turn_is_scheduled = True
        self._call_at_turn_end(self._begin_turn)

    def _begin_turn(self) -> None:
        """Give each of those who wait the same share, so that little work is not held up by much."""
        self._turn_is_scheduled = False
        self.remaining = self._units
        count = len(self._waiting_tasks)
        share = max(MIN_UNITS, self._units // count) if count else 0
        try:
            while count and self.remaining > 0:
                count -= 1
                allowance = min(share, self.remaining)
                used = allowance - self._waiting_tasks.popleft()(allowance)  # which may spend more of what is left
                self.remaining -= used
        finally:
            if self._waiting_tasks and not self._turn_is_scheduled:
                self._end_turn()
