"""The monitor of a round, which decides when the round ends.

A round ends when the run is stopped, its hour is over, no messages are parked, or its tasks no longer match the
cluster's slots. Owns these decisions and the counting of parked messages. While messages move, task reports show how
many are left, so requests to the secondary are rare.
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
"""Interval between counts of the parked messages while messages move.

If no messages seem to be left, the messages are counted on every tick.
"""
FIRST_TASK_TIMEOUT_S: Final = 180.0
"""Maximum time until the first task of a round starts."""
SLOT_WAIT_TIMEOUT_S: Final = 30.0
"""Time that a task may wait for a slot before backlog queues are spread over fewer tasks."""
SLOT_CHECK_INTERVAL_S: Final = 10.0
"""Interval between checks for additional slots."""


class RoundEndKind(Enum):
    """Reason why a round ended."""

    STOPPED = "stopped"
    ROUTINE = "its time is up"
    EMPTY = "empty"
    STUCK = "nothing moves"
    REGROUPED = "regrouped"


class RoundEnd(NamedTuple):
    """The end of a round."""

    kind: RoundEndKind
    reason: str
    max_tasks: int | None = None
    """Maximum number of tasks in the next round, if there are too few slots."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Progress of a run."""

    moved: int
    dead_lettered: int
    left: int
    """Messages still parked, as far as known."""
    tasks: int
    """Number of running tasks."""
    problem: str
    """A current problem of one of the tasks, or an empty string."""


class RoundMonitor:
    """Monitor for the rounds in a run."""

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
        """Create a monitor.

        A round ends if no messages are left, or no messages were moved for `idle_timeout_s`. If `idle_timeout_s` is
        None, rounds end only after `max_round_s`, and the run continues until it is stopped.
        """
        self._stopped = stopped
        self._count_slots = count_slots
        self._count_parked = count_parked
        self._on_progress = on_progress
        self._max_round_s = max_round_s
        self._idle_timeout_s = idle_timeout_s

    async def wait_for_end(self, round_: Round, parked: int) -> RoundEnd:
        """Wait until a round ends, and return the reason."""
        loop = asyncio.get_running_loop()
        state = _RoundState(round_, parked, loop.time(), self._count_slots())
        while True:
            await self._pause()
            state.update(loop.time())
            self._on_progress(state.progress())
            if self._stopped.is_set():
                return RoundEnd(RoundEndKind.STOPPED, "stopped")
            round_end = self._check_slots(state) or (
                self._check_time_limit(state) if self._idle_timeout_s is None else await self._check_drained(state)
            )
            if round_end is not None:
                return round_end

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
        """Return the end of the round if no messages are left or moving."""
        assert self._idle_timeout_s is not None
        if state.first_task_s is None:
            if state.now_s - state.started_s >= FIRST_TASK_TIMEOUT_S:
                raise PipelineError(
                    f"no task has started for {FIRST_TASK_TIMEOUT_S:.0f} s: check that the cluster has a free core"
                )
            return None
        if state.is_count_due():
            try:
                state.set_left(sum((await self._count_parked()).values()))
            except ServiceBusError as error:
                log.warning("the backlog queues could not be counted: %s", error)
            if state.left == 0 and state.is_counted:
                return RoundEnd(RoundEndKind.EMPTY, "empty")
        if state.now_s - state.last_progress_s >= self._idle_timeout_s:
            return RoundEnd(RoundEndKind.STUCK, f"nothing has moved for {self._idle_timeout_s:g} s")
        return None

    def _check_slots(self, state: _RoundState) -> RoundEnd | None:
        """Return the end of the round if tasks wait for slots, or if there are more slots than before."""
        task_count = len(state.round.assignments)
        if state.waiting_since_s is not None and state.now_s - state.waiting_since_s >= SLOT_WAIT_TIMEOUT_S:
            return RoundEnd(RoundEndKind.REGROUPED, "spread over fewer tasks", max(1, state.round.running_tasks))
        queues = sum(len(assignment.backlog_queues) for assignment in state.round.assignments)
        if task_count < queues and state.now_s - state.last_slot_check_s >= SLOT_CHECK_INTERVAL_S:
            state.last_slot_check_s = state.now_s
            if self._count_slots() > state.slots:
                return RoundEnd(RoundEndKind.REGROUPED, "spread over more tasks")
        return None


class _RoundState:
    """State of one round."""

    def __init__(self, round_: Round, parked: int, now_s: float, slots: int) -> None:
        self.round = round_
        self.now_s = self.started_s = self.last_progress_s = self.last_count_s = self.last_slot_check_s = now_s
        self.slots = slots
        self.first_task_s: float | None = None
        """Time at which the first task connected."""
        self.waiting_since_s: float | None = None
        """Time since which a task has been waiting for a slot."""
        self.left = parked
        self.is_counted = True
        """Whether `left` was counted. If not, it was computed from the messages moved since the last count."""
        self._done_count = 0

    def update(self, now_s: float) -> None:
        """Update the state from task reports."""
        self.now_s = now_s
        running = self.round.running_tasks
        if running and self.first_task_s is None:
            self.first_task_s = self.last_progress_s = now_s
        is_waiting = 0 < running < len(self.round.assignments)
        self.waiting_since_s = (self.waiting_since_s or now_s) if is_waiting else None
        done = self.round.counts.moved + self.round.counts.dead_lettered
        if done != self._done_count:
            self.left, self.is_counted = max(0, self.left - (done - self._done_count)), False
            self._done_count, self.last_progress_s = done, now_s

    def is_count_due(self) -> bool:
        """Return whether to count parked messages now."""
        return self.left == 0 or self.now_s - self.last_count_s >= COUNT_INTERVAL_S

    def set_left(self, left: int) -> None:
        """Set the counted number of parked messages."""
        if left != self.left and self.is_counted:
            self.last_progress_s = self.now_s  # another syphon moves messages
        self.left, self.is_counted, self.last_count_s = left, True, self.now_s

    def progress(self) -> Progress:
        counts = self.round.counts
        problem = next((text for text in counts.problems.values() if text), "")
        return Progress(
            moved=counts.moved,
            dead_lettered=counts.dead_lettered,
            left=self.left,
            tasks=self.round.running_tasks,
            problem=problem or ("" if self.first_task_s is not None else "no task has started yet"),
        )
