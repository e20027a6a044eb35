"""When a round is over: stopped, its hour is up, nothing is parked any more, or its tasks fit the cluster no more.

Owns: these decisions, and how often the secondary is asked how much is parked: while messages move that is known from
the tasks, so it is asked seldom.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from twinbus.model.errors import ServiceBusError
from twinbus.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from twinbus.pipeline.syphon.round import Round

log: Final = logging.getLogger(__name__)

TICK_S: Final = 0.25
LOOK_S: Final = 5.0
"""How often the backlog queues are counted while messages move; when all seem to be moved, each tick."""
START_S: Final = 180.0
"""How long the first task of a round may take to start."""
STARVED_S: Final = 30.0
"""How long a task may wait for a place on the cluster before backlog queues are spread over fewer tasks."""
GROWN_S: Final = 10.0
"""How often it is looked whether there are more places."""


class Kind(Enum):
    """Why a round is over."""

    STOPPED = "stopped"
    ROUTINE = "its time is up"
    EMPTY = "empty"
    STUCK = "nothing moves"
    REGROUPED = "regrouped"


class Over(NamedTuple):
    """A round is."""

    kind: Kind
    why: str
    most: int | None = None
    """Tasks of the next round, where there are places for so many only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far it is."""

    moved: int
    dead_lettered: int
    left: int
    """As far as is known."""
    tasks: int
    """That run now."""
    trouble: str
    """What hinders one of them."""


class Watch:
    """Over the rounds of a run."""

    def __init__(
        self,
        *,
        stopped: asyncio.Event,
        slots: Callable[[], int],
        look: Callable[[], Awaitable[Mapping[str, int]]],
        told: Callable[[Progress], None],
        round_s: float,
        wait_s: float | None,
    ) -> None:
        """`wait_s`: end when nothing is left, or has moved for so long; None: go on until it is stopped."""
        self._stopped = stopped
        self._slots = slots
        self._look = look
        self._told = told
        self._round_s = round_s
        self._wait_s = wait_s

    async def over(self, one: Round, parked: int) -> Over:
        """Wait until a round is."""
        loop = asyncio.get_running_loop()
        state = _State(one, parked, loop.time(), self._slots())
        while True:
            await self._pause()
            state.notice(loop.time())
            self._told(state.progress())
            if self._stopped.is_set():
                return Over(Kind.STOPPED, "stopped")
            found = self._fits(state) or (self._in_time(state) if self._wait_s is None else await self._done(state))
            if found is not None:
                return found

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(TICK_S):
                await self._stopped.wait()
        except TimeoutError:
            pass

    def _in_time(self, state: _State) -> Over | None:
        return Over(Kind.ROUTINE, "still draining") if state.now_s - state.began_s >= self._round_s else None

    async def _done(self, state: _State) -> Over | None:
        """Nothing is left, or moves."""
        assert self._wait_s is not None
        if state.first_s is None:
            if state.now_s - state.began_s >= START_S:
                raise PipelineError(f"no task has started for {START_S:.0f} s: does the cluster have a free core?")
            return None
        if state.is_to_look():
            try:
                state.found(sum((await self._look()).values()))
            except ServiceBusError as error:
                log.warning("the backlog queues were not counted: %s", error)
            if state.left == 0 and state.is_counted:
                return Over(Kind.EMPTY, "empty")
        if state.now_s - state.changed_s >= self._wait_s:
            return Over(Kind.STUCK, f"nothing has moved for {self._wait_s:g} s")
        return None

    def _fits(self, state: _State) -> Over | None:
        """None while there is a place for each task, and none too many."""
        wanted = len(state.round.assignments)
        if state.waiting_since_s is not None and state.now_s - state.waiting_since_s >= STARVED_S:
            return Over(Kind.REGROUPED, "spread over fewer tasks", max(1, state.round.on_line))
        queues = sum(len(assignment.queues) for assignment in state.round.assignments)
        if wanted < queues and state.now_s - state.slots_s >= GROWN_S:
            state.slots_s = state.now_s
            if self._slots() > state.slots:
                return Over(Kind.REGROUPED, "spread over more tasks")
        return None


class _State:
    """Of one round."""

    def __init__(self, one: Round, parked: int, now_s: float, slots: int) -> None:
        self.round = one
        self.now_s = self.began_s = self.changed_s = self.looked_s = self.slots_s = now_s
        self.slots = slots
        self.first_s: float | None = None
        """When the first task was heard of."""
        self.waiting_since_s: float | None = None
        """Since when some task waits for its place."""
        self.left = parked
        self.is_counted = True
        """`left` is what was counted; else what follows from what was moved since."""
        self._done = 0

    def notice(self, now_s: float) -> None:
        """What the tasks have told meanwhile."""
        self.now_s = now_s
        on_line = self.round.on_line
        if on_line and self.first_s is None:
            self.first_s = self.changed_s = now_s
        is_waiting = 0 < on_line < len(self.round.assignments)
        self.waiting_since_s = (self.waiting_since_s or now_s) if is_waiting else None
        done = self.round.ledger.moved + self.round.ledger.dead_lettered
        if done != self._done:
            self.left, self.is_counted = max(0, self.left - (done - self._done)), False
            self._done, self.changed_s = done, now_s

    def is_to_look(self) -> bool:
        """It is time to count what is parked."""
        return self.left == 0 or self.now_s - self.looked_s >= LOOK_S

    def found(self, left: int) -> None:
        """It was counted."""
        if left != self.left and self.is_counted:
            self.changed_s = self.now_s  # somebody else moves them
        self.left, self.is_counted, self.looked_s = left, True, self.now_s

    def progress(self) -> Progress:
        ledger = self.round.ledger
        trouble = next((text for text in ledger.troubles.values() if text), "")
        return Progress(
            moved=ledger.moved,
            dead_lettered=ledger.dead_lettered,
            left=self.left,
            tasks=self.round.on_line,
            trouble=trouble or ("" if self.first_s is not None else "no task has started yet"),
        )
