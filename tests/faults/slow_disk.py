"""One of four disks gets slow, then sick, then well again: the queues on the others must not notice.

    report = await suffer(SHORT, folder)
    assert report.problems == []

What must hold, phase after phase: sends to queues of healthy stores are answered as before; sends to queues of the sick
store are accepted or refused in time, and a refusal says that the store is unavailable; once the fault is lifted the
store takes messages again by itself; and nothing that was accepted is lost, also if the power is cut then.

Owns: that scenario and its figures.
"""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from tests.faults import management
from tests.faults.harness import drain
from tests.faults.ledger import Ledger
from tests.faults.line import LineFailed, SendingLine, connected
from tests.faults.server_process import ServerProcess
from tests.faults.shim import ALWAYS, Action, Shim

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence
    from pathlib import Path

    from tests.faults.ledger import Entry

STORES: Final = 4
SICK: Final = 1
"""The number of the store whose disk gets sick."""
QUEUES: Final = tuple(f"queue-{number}" for number in range(2 * STORES))
BODY_BYTES: Final = 1_000
SICK_SENDERS: Final = 4
"""That go on sending to queues of the sick store."""
TOGETHER: Final = 20
"""Messages that each of them sends before it waits for answers."""
PAUSE_S: Final = 0.25
"""Between their messages: a refusal comes quickly, and must not make more work than an accept."""
RETURN_S: Final = 60.0
SLACK_S: Final = 1.5
"""Beyond the store's time-out: a server looks at its stores now and then, on a machine that has other things to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A disk that does something to its syncs."""

    name: str
    delay_s: float = 0.0
    failures: int = 0
    """So many syncs fail; `ALWAYS`: all of them."""
    is_full: bool = False
    """All writes fail."""
    must_refuse: bool = True
    """The sick store's queues cannot take anything in this phase. Else it is only slow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How long, how strict."""

    store_timeout_s: float
    samples: int
    """Sends to healthy queues, one at a time, in each phase at least."""
    phase_s: float
    """How long a phase lasts at least."""
    p99_ratio_max: float
    p99_floor_s: float
    """Below this a p99 is good, whatever it was before."""
    worst_max_s: float
    """No send to a healthy queue may take longer: then it was held up by the sick one."""
    phases: tuple[Phase, ...]
    cuts_power: bool
    """At the end; writing down what it takes for that costs time in every write."""


SHORT: Final = Plan(
    store_timeout_s=1.5,
    samples=150,
    phase_s=4.0,
    p99_ratio_max=5.0,
    p99_floor_s=0.5,
    worst_max_s=3.0,
    phases=(
        Phase(name="syncs take 5 s", delay_s=5.0),
        Phase(name="syncs fail", failures=ALWAYS),
    ),
    cuts_power=True,
)
FAILING_AND_SLOW: Final = replace(
    SHORT, phases=(Phase(name="one sync fails and the others take 2 s", delay_s=2.0, failures=1),), phase_s=8.0
)
"""The store is opened again while its disk is slow."""
LONG: Final = Plan(
    store_timeout_s=10.0,
    samples=3_000,
    phase_s=30.0,
    p99_ratio_max=2.0,
    p99_floor_s=0.0,
    worst_max_s=2.0,
    phases=(
        Phase(name="syncs take 5 s", delay_s=5.0, must_refuse=False),
        Phase(name="syncs take 25 s", delay_s=25.0),
        Phase(name="syncs fail", failures=ALWAYS),
        Phase(name="writes fail", is_full=True),
        *FAILING_AND_SLOW.phases,
    ),
    cuts_power=False,
)


@dataclass(slots=True)
class Report:
    """What was measured, and what was wrong."""

    figures: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def summary(self) -> str:
        return "; ".join([*self.figures, f"{len(self.problems)} problems"])

    def __str__(self) -> str:
        return "\n".join([*self.problems, *self.figures])


class Answers:
    """What was said to the sends to queues of the sick store, and how long that took."""

    def __init__(self, patience_s: float) -> None:
        self.patience_s = patience_s
        self._accepted = 0
        self._refused = 0
        self._unanswered = 0
        self._slowest_s = 0.0
        self._refusals: set[str] = set()

    def note(self, entries: Sequence[Entry], seconds: float) -> None:
        """These were sent together, and this is when the last answer came, or nobody waited any longer."""
        self._slowest_s = max(self._slowest_s, seconds)
        self._accepted += sum(entry.is_accepted for entry in entries)
        refusals = [entry.refusal for entry in entries if entry.refusal is not None]
        self._refused += len(refusals)
        self._refusals.update(refusals)
        self._unanswered += sum(entry.refusal is None and not entry.is_accepted for entry in entries)

    def problems(self, *, must_refuse: bool) -> list[str]:
        found = [f"refused with {why!r}" for why in sorted(self._refusals) if "unavailable" not in why]
        if self._unanswered:
            found.append(f"{self._unanswered} sends had no answer after {self.patience_s:.1f} s")
        if must_refuse and not self._refused:
            found.append("no send was refused")
        return found

    def __str__(self) -> str:
        return f"{self._accepted} accepted, {self._refused} refused, slowest answer {self._slowest_s:.1f} s"


async def suffer(plan: Plan, folder: Path, say: Callable[[str], None] = lambda _line: None) -> Report:
    """Go through all phases, with a server of its own."""
    options = [f"--stores={STORES}", f"--store-timeout={plan.store_timeout_s}"]
    data = folder / "data"
    data.mkdir()
    with Shim(data, folder, traces=plan.cuts_power) as shim:
        async with ServerProcess(folder, shim=shim, options=options) as server:
            ordeal = Ordeal(plan, server, shim, say)
            await ordeal.prepare()
            for phase in plan.phases:
                await ordeal.go_through(phase)
            await ordeal.reckon()
            return ordeal.report


class Ordeal:
    """One server, from health to health."""

    def __init__(self, plan: Plan, server: ServerProcess, shim: Shim, say: Callable[[str], None]) -> None:
        self.report = Report()
        self._plan = plan
        self._server = server
        self._shim = shim
        self._say = say
        self._ledger = Ledger(random.Random(0))
        self._sick: list[str] = []
        """The queues of the sick store."""
        self._healthy: list[str] = []
        """One queue of each other store."""
        self._before_s: list[float] = []
        """How long sends to these took when all was well."""

    async def prepare(self) -> None:
        for queue in QUEUES:
            await management.make_queue(self._server.endpoint, queue)
        places = await self._find_stores()
        self._sick = [queue for queue in QUEUES if places[queue] == SICK]
        well = [store for store in range(STORES) if store != SICK]
        self._healthy = [next(queue for queue in QUEUES if places[queue] == store) for store in well]
        self._before_s = await self._measure_beside(Answers(self._plan.store_timeout_s))
        self._tell(f"before: {_percentiles(self._before_s)}")

    async def _find_stores(self) -> dict[str, int]:
        """In which store each queue lies: the one that syncs when a message is sent to it."""
        places = {}
        with ExitStack() as stack:
            rules = [
                stack.enter_context(self._shim.rule(Action.DELAY_SYNC, self._folder_of(number)))
                for number in range(STORES)
            ]
            for queue in QUEUES:
                before = [rule.hits for rule in rules]
                await self._measure([queue], 3)
                synced = [rule.hits - count for rule, count in zip(rules, before, strict=True)]
                places[queue] = synced.index(max(synced))
        assert set(places.values()) == set(range(STORES)), f"queues are not spread over all stores: {places}"
        return places

    def _folder_of(self, store: int) -> Path:
        return self._server.data / "stores" / str(store)

    async def _measure(self, queues: Sequence[str], samples: int, at_least_s: float = 0.0) -> list[float]:
        """Send one message at a time, to each queue in turn: how long each took until it was answered."""
        times_s: list[float] = []
        until = time.monotonic() + at_least_s
        async with AsyncExitStack() as stack:
            lines = [await stack.enter_async_context(self._line_to(queue)) for queue in queues]
            while len(times_s) < samples or time.monotonic() < until:
                line = lines[len(times_s) % len(lines)]
                started = time.monotonic()
                line.send(BODY_BYTES)
                if not await line.until(lambda line=line: not line.unanswered, patience_s=RETURN_S):  # type: ignore[misc]
                    raise LineFailed(f"a send to {line.queue} has no answer after {RETURN_S:.0f} s")
                times_s.append(time.monotonic() - started)
        return times_s

    @asynccontextmanager
    async def _line_to(self, queue: str) -> AsyncIterator[SendingLine]:
        """A line that may send."""
        async with connected(SendingLine(self._ledger, queue), self._server.endpoint) as line:
            if not await line.until(lambda: line.has_room, patience_s=RETURN_S):
                raise LineFailed(f"no credit to send to {queue} after {RETURN_S:.0f} s")
            yield line

    # --- one phase ----------------------------------------------------------------------------------------------------

    async def go_through(self, phase: Phase) -> None:
        """Let the disk be sick for a while, look at both sides, and wait until the sick one is well again."""
        plan, answers = self._plan, Answers(self._plan.store_timeout_s + SLACK_S)
        with self._sickness(phase):
            times_s = await self._measure_beside(answers)
        lifted = time.monotonic()
        ratio = _p99(times_s) / _p99(self._before_s)
        self._tell(f"{phase.name}: {_percentiles(times_s)}, {ratio:.2f} x p99; there {answers}")
        if _p99(times_s) > max(plan.p99_ratio_max * _p99(self._before_s), plan.p99_floor_s):
            self.report.problems.append(f"{phase.name}: elsewhere {_percentiles(times_s)}, {ratio:.2f} x p99")
        if max(times_s) > plan.worst_max_s:
            self.report.problems.append(f"{phase.name}: a send elsewhere took {max(times_s):.1f} s")
        self.report.problems += [
            f"{phase.name}: {problem}" for problem in answers.problems(must_refuse=phase.must_refuse)
        ]
        await self._wait_for_return()
        self._tell(f"back {time.monotonic() - lifted:.1f} s after")

    @contextmanager
    def _sickness(self, phase: Phase) -> Iterator[None]:
        folder, delay_ms = self._folder_of(SICK), round(phase.delay_s * 1000)
        with (
            self._shim.rule(Action.FAIL_WRITE, folder, times=ALWAYS if phase.is_full else 0) as writes,
            self._shim.rule(Action.FAIL_SYNC, folder, times=phase.failures),
            self._shim.rule(Action.DELAY_SYNC, folder, delay_ms=delay_ms) as syncs,
        ):
            yield
            assert writes.hits or syncs.hits, "the disk was not sick: nothing was written there"

    async def _measure_beside(self, answers: Answers) -> list[float]:
        """How long sends to healthy queues take, while others send to those of the sick store."""
        senders = [asyncio.ensure_future(self._keep_sending(answers, number)) for number in range(SICK_SENDERS)]
        try:
            return await self._measure(self._healthy, self._plan.samples, self._plan.phase_s)
        finally:
            for sender in senders:
                sender.cancel()
            ends = await asyncio.gather(*senders, return_exceptions=True)
            self.report.problems += [f"a sender failed: {end!r}" for end in ends if isinstance(end, Exception)]

    async def _keep_sending(self, answers: Answers, number: int) -> None:
        """Send to a queue of the sick store, a few at a time, and note how long the answers take."""
        async with self._line_to(self._sick[number % len(self._sick)]) as line:
            while True:
                sent = [self._ledger.entries[line.send(BODY_BYTES)] for _ in range(TOGETHER)]
                started = time.monotonic()
                if not await line.until(lambda: not line.unanswered, patience_s=answers.patience_s):
                    line.unanswered.clear()  # they are late, and told as such
                answers.note(sent, time.monotonic() - started)
                await asyncio.sleep(PAUSE_S)

    async def _wait_for_return(self) -> None:
        """Until every queue of the sick store takes a message again."""
        async with asyncio.timeout(RETURN_S):
            for queue in self._sick:
                sent = len(self._ledger.entries)
                while not any(entry.is_accepted for entry in self._ledger.entries[sent:]):
                    with suppress(LineFailed):
                        await self._measure([queue], 1)
                    await asyncio.sleep(PAUSE_S)

    # --- the end ------------------------------------------------------------------------------------------------------

    async def reckon(self) -> None:
        """Nothing was lost: half of the queues are looked at as they are, the others after a death."""
        half = len(QUEUES) // 2
        await self._empty(QUEUES[:half])
        await self._server.kill()
        if self._plan.cuts_power:
            self._shim.disk().cut_power()
        await self._server.start()
        await self._empty(QUEUES[half:])
        self.report.problems += self._ledger.close()
        self._tell(self._ledger.figures())

    async def _empty(self, queues: Sequence[str]) -> None:
        for queue in queues:
            told = await management.active_count(self._server.endpoint, queue)
            completed = await drain(self._server, self._ledger, queue)
            if told != completed:
                self.report.problems.append(f"count: {queue} was said to hold {told} messages, and held {completed}")

    def _tell(self, figure: str) -> None:
        self.report.figures.append(figure)
        self._say(figure)


def _percentiles(times_s: Sequence[float]) -> str:
    ordered = sorted(times_s)
    middle, p99, worst = ordered[len(ordered) // 2], _p99(times_s), ordered[-1]
    return f"{len(ordered)} sends, p50 {middle * 1000:.1f} ms, p99 {p99 * 1000:.1f} ms, worst {worst * 1000:.1f} ms"


def _p99(times_s: Sequence[float]) -> float:
    return sorted(times_s)[int(len(times_s) * 0.99)]
