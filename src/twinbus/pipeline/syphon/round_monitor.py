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

    from twinbus.pipeline.syphon.driver import Round

log: Final = logging.getLogger(__name__)

TICK_INTERVAL_S: Final = 0.25
COUNT_INTERVAL_S: Final = 5.0
"""How often the backlog queues are counted while messages move; when all seem to be moved, each tick."""
FIRST_TASK_TIMEOUT_S: Final = 180.0
"""How long the first task of a round may take to start."""
SLOT_WAIT_TIMEOUT_S: Final = 30.0
"""How long a task may wait for a place on the cluster before backlog queues are spread over fewer tasks."""
SLOT_CHECK_INTERVAL_S: Final = 10.0
"""How often it is looked whether there are more places."""


class RoundEndKind(Enum):
    """Why a round is over."""

    STOPPED = "stopped"
    ROUTINE = "its time is up"
    EMPTY = "empty"
    STUCK = "nothing moves"
    REGROUPED = "regrouped"


class RoundEnd(NamedTuple):
    """A round is."""

    kind: RoundEndKind
    reason: str
    max_tasks: int | None = None
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
    problem: str
    """What hinders one of them."""


class RoundMonitor:
    """Over the rounds of a run."""

    def __init__(
        self,
        *,
        stopped: asyncio.Event,
        count_slots: Callable[[], int],
        count_parked: Callable[[], Awaitable[Mapping[str, int]]],
        on_progress: Callable[[Progress], None],
        max_round_s: float,
        idle_timeout_s: float | None,
    ) -> None:
        """`wait_s`: end when nothing is left, or has moved for so long; None: go on until it is stopped."""
        self._stopped = stopped
        self._count_slots = count_slots
        self._count_parked = count_parked
        self._on_progress = on_progress
        self._max_round_s = max_round_s
        self._idle_timeout_s = idle_timeout_s

    async def wait_for_end(self, round_: Round, parked: int) -> RoundEnd:
        """Wait until a round is."""
        loop = asyncio.get_running_loop()
        state = _RoundState(round_, parked, loop.time(), self._count_slots())
        while True:
            await self._pause()
            state.update(loop.time())
            self._on_progress(state.progress())
            if self._stopped.is_set():
                return RoundEnd(RoundEndKind.STOPPED, "stopped")
            found = self._check_slots(state) or (
                self._check_time_limit(state) if self._idle_timeout_s is None else await self._check_drained(state)
            )
            if found is not None:
                return found

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(TICK_INTERVAL_S):
                await self._stopped.wait()
        except TimeoutError:
            pass

    def _check_time_limit(self, state: _RoundState) -> RoundEnd | None:
        return (
            RoundEnd(RoundEndKind.ROUTINE, "still draining")
            if state.now_s - state.started_s >= self._max_round_s
            else None
        )

    async def _check_drained(self, state: _RoundState) -> RoundEnd | None:
        """Nothing is left, or moves."""
        assert self._idle_timeout_s is not None
        if state.first_task_s is None:
            if state.now_s - state.started_s >= FIRST_TASK_TIMEOUT_S:
                raise PipelineError(
                    f"no task has started for {FIRST_TASK_TIMEOUT_S:.0f} s: does the cluster have a free core?"
                )
            return None
        if state.is_count_due():
            try:
                state.set_left(sum((await self._count_parked()).values()))
            except ServiceBusError as error:
                log.warning("the backlog queues were not counted: %s", error)
            if state.left == 0 and state.is_counted:
                return RoundEnd(RoundEndKind.EMPTY, "empty")
        if state.now_s - state.last_progress_s >= self._idle_timeout_s:
            return RoundEnd(RoundEndKind.STUCK, f"nothing has moved for {self._idle_timeout_s:g} s")
        return None

    def _check_slots(self, state: _RoundState) -> RoundEnd | None:
        """None while there is a place for each task, and none too many."""
        wanted = len(state.round.assignments)
        if state.waiting_since_s is not None and state.now_s - state.waiting_since_s >= SLOT_WAIT_TIMEOUT_S:
            return RoundEnd(RoundEndKind.REGROUPED, "spread over fewer tasks", max(1, state.round.running_tasks))
        queues = sum(len(assignment.backlog_queues) for assignment in state.round.assignments)
        if wanted < queues and state.now_s - state.last_slot_check_s >= SLOT_CHECK_INTERVAL_S:
            state.last_slot_check_s = state.now_s
            if self._count_slots() > state.slots:
                return RoundEnd(RoundEndKind.REGROUPED, "spread over more tasks")
        return None


class _RoundState:
    """Of one round."""

    def __init__(self, round_: Round, parked: int, now_s: float, slots: int) -> None:
        self.round = round_
        self.now_s = self.started_s = self.last_progress_s = self.last_count_s = self.last_slot_check_s = now_s
        self.slots = slots
        self.first_task_s: float | None = None
        """When the first task was heard of."""
        self.waiting_since_s: float | None = None
        """Since when some task waits for its place."""
        self.left = parked
        self.is_counted = True
        """`left` is what was counted; else what follows from what was moved since."""
        self._done_count = 0

    def update(self, now_s: float) -> None:
        """What the tasks have told meanwhile."""
        self.now_s = now_s
        on_line = self.round.running_tasks
        if on_line and self.first_task_s is None:
            self.first_task_s = self.last_progress_s = now_s
        is_waiting = 0 < on_line < len(self.round.assignments)
        self.waiting_since_s = (self.waiting_since_s or now_s) if is_waiting else None
        done = self.round.counts.moved + self.round.counts.dead_lettered
        if done != self._done_count:
            self.left, self.is_counted = max(0, self.left - (done - self._done_count)), False
            self._done_count, self.last_progress_s = done, now_s

    def is_count_due(self) -> bool:
        """It is time to count what is parked."""
        return self.left == 0 or self.now_s - self.last_count_s >= COUNT_INTERVAL_S

    def set_left(self, left: int) -> None:
        """It was counted."""
        if left != self.left and self.is_counted:
            self.last_progress_s = self.now_s  # somebody else moves them
        self.left, self.is_counted, self.last_count_s = left, True, self.now_s

    def progress(self) -> Progress:
        ledger = self.round.counts
        trouble = next((text for text in ledger.problems.values() if text), "")
        return Progress(
            moved=ledger.moved,
            dead_lettered=ledger.dead_lettered,
            left=self.left,
            tasks=self.round.running_tasks,
            problem=trouble or ("" if self.first_task_s is not None else "no task has started yet"),
        )
