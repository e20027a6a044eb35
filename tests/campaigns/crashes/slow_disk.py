"""One of four disks becomes slow, then fails, then recovers: queues on the other disks must not be affected.

    report = await run_scenario(SHORT, folder)
    assert report.problems == []

In every phase: sends to queues of healthy stores are as fast as those to a second server with the same load on the same
machine, whose disks are all healthy; sends to queues of the faulty store are accepted or refused in time, and a refusal
says that the store is unavailable; after the fault the store accepts messages again; and no accepted message is lost,
also if the power is cut then.

Owns: that scenario and its figures.
"""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from tests.campaigns import management
from tests.campaigns.clients import ClientDisconnected, SenderClient, connect_client
from tests.campaigns.crashes.campaign import drain
from tests.campaigns.restartable_server import RestartableServer
from tests.support.delivery_checker.checker import DeliveryChecker
from tests.support.fault_injection.shim import UNLIMITED, Action, DiskShim

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence
    from pathlib import Path

    from tests.support.delivery_checker.messages import Message


STORES: Final = 4
FAULTY_STORE: Final = 1
"""Number of the store with the faulty disk."""
QUEUES: Final = tuple(f"queue-{number}" for number in range(2 * STORES))
BODY_BYTES: Final = 1_000
FAULTY_STORE_SENDERS: Final = 4
"""Clients that keep sending to queues of the faulty store."""
CONCURRENT_SENDS: Final = 20
"""Messages that each of them sends before it waits for responses."""
PAUSE_S: Final = 0.25
"""Pause between their messages, so that fast refusals do not increase the load."""
RECOVERY_TIMEOUT_S: Final = 60.0
RESPONSE_SLACK_S: Final = 1.5
"""Margin beyond the store timeout: the server checks its stores periodically, on a busy machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """Fault of the disk in one phase."""

    name: str
    delay_s: float = 0.0
    failures: int = 0
    """Number of syncs that fail (`UNLIMITED`: all of them)."""
    is_full: bool = False
    """All writes fail."""
    must_refuse: bool = True
    """Queues of the faulty store cannot accept messages in this phase; if False, they are only slow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Durations and limits of a run."""

    store_timeout_s: float
    samples: int
    """Minimum number of sequential sends to healthy queues in each phase."""
    phase_s: float
    """Minimum duration of a phase."""
    p99_ratio_max: float
    p99_floor_s: float
    """A p99 below this is accepted, whatever the ratio."""
    worst_max_s: float
    """Longest allowed send to a healthy queue; a longer one was delayed by the faulty store."""
    phases: tuple[Phase, ...]
    cuts_power: bool
    """Cut the power at the end; the trace for that slows down every write."""


SHORT: Final = Plan(
    store_timeout_s=1.5,
    samples=150,
    phase_s=4.0,
    p99_ratio_max=5.0,
    p99_floor_s=0.5,
    worst_max_s=3.0,
    phases=(
        Phase(name="syncs take 5 s", delay_s=5.0),
        Phase(name="syncs fail", failures=UNLIMITED),
    ),
    cuts_power=True,
)
FAILING_AND_SLOW: Final = replace(
    SHORT, phases=(Phase(name="one sync fails and the others take 2 s", delay_s=2.0, failures=1),), phase_s=8.0
)
"""The store is reopened while its disk is slow."""
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
        Phase(name="syncs fail", failures=UNLIMITED),
        Phase(name="writes fail", is_full=True),
        *FAILING_AND_SLOW.phases,
    ),
    cuts_power=False,
)


@dataclass(slots=True)
class Report:
    """Measurements and problems."""

    figures: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def summary(self) -> str:
        return "; ".join([*self.figures, f"{len(self.problems)} problems"])

    def __str__(self) -> str:
        return "\n".join([*self.problems, *self.figures])


class SendResults:
    """Outcomes and durations of sends to queues of the faulty store."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._accepted = 0
        self._refused = 0
        self._unanswered = 0
        self._slowest_s = 0.0
        self._refusals: set[str] = set()

    def record(self, messages: Sequence[Message], seconds: float) -> None:
        """Record messages that were sent together, and the time until the last response or the timeout."""
        self._slowest_s = max(self._slowest_s, seconds)
        self._accepted += sum(message.is_accepted for message in messages)
        refusals = [message.refusal for message in messages if message.refusal is not None]
        self._refused += len(refusals)
        self._refusals.update(refusals)
        self._unanswered += sum(message.refusal is None and not message.is_accepted for message in messages)

    def problems(self, *, must_refuse: bool) -> list[str]:
        found = [f"refused with {refusal!r}" for refusal in sorted(self._refusals) if "unavailable" not in refusal]
        if self._unanswered:
            found.append(f"{self._unanswered} sends had no answer after {self.timeout_s:.1f} s")
        if must_refuse and not self._refused:
            found.append("no send was refused")
        return found

    def __str__(self) -> str:
        return f"{self._accepted} accepted, {self._refused} refused, slowest answer {self._slowest_s:.1f} s"


async def run_scenario(plan: Plan, folder: Path, on_progress: Callable[[str], None] = lambda _line: None) -> Report:
    """Run all phases on two new servers."""
    async with (
        _serve(folder / "sick", plan) as (server, shim),
        _serve(folder / "well", plan) as (control, control_shim),
    ):
        run = SlowDiskRun(plan, DiskFaultSetup(server, shim), DiskFaultSetup(control, control_shim), on_progress)
        await run.prepare()
        for phase in plan.phases:
            await run.run_phase(phase)
        await run.verify()
        return run.report


@asynccontextmanager
async def _serve(folder: Path, plan: Plan) -> AsyncIterator[tuple[RestartableServer, DiskShim]]:
    data = folder / "data"
    data.mkdir(parents=True)
    options = [f"--stores={STORES}", f"--store-timeout={plan.store_timeout_s}"]
    with DiskShim(data, folder, has_trace=plan.cuts_power) as shim:
        async with RestartableServer(folder, shim=shim, options=options) as server:
            yield server, shim


class DiskFaultSetup:
    """A server, its checker, and the stores of its queues."""

    def __init__(self, server: RestartableServer, shim: DiskShim) -> None:
        self.server = server
        self.shim = shim
        self.checker = DeliveryChecker(random.Random(0))
        self.faulty_queues: list[str] = []
        """Queues of the store with the faulty disk (in the control server: of the store with the same number)."""
        self.healthy_queues: list[str] = []
        """One queue of each other store."""

    async def prepare(self) -> None:
        for queue in QUEUES:
            await management.create_queue(self.server.endpoint, queue)
        store_by_queue = await self._find_stores()
        self.faulty_queues = [queue for queue in QUEUES if store_by_queue[queue] == FAULTY_STORE]
        healthy = [store for store in range(STORES) if store != FAULTY_STORE]
        self.healthy_queues = [next(queue for queue in QUEUES if store_by_queue[queue] == store) for store in healthy]

    async def _find_stores(self) -> dict[str, int]:
        """Return the store of each queue: the one that syncs when a message is sent to the queue."""
        store_by_queue = {}
        with ExitStack() as stack:
            rules = [
                stack.enter_context(self.shim.rule(Action.DELAY_SYNC, self.folder_of(number)))
                for number in range(STORES)
            ]
            for queue in QUEUES:
                before = [rule.hit_count for rule in rules]
                async with self.connect_sender(queue) as client:
                    for _ in range(3):
                        await send_and_wait(client)
                synced = [rule.hit_count - count for rule, count in zip(rules, before, strict=True)]
                store_by_queue[queue] = synced.index(max(synced))
        assert set(store_by_queue.values()) == set(range(STORES)), (
            f"queues are not spread over all stores: {store_by_queue}"
        )
        return store_by_queue

    def folder_of(self, store: int) -> Path:
        return self.server.data / "stores" / str(store)

    @asynccontextmanager
    async def connect_sender(self, queue: str) -> AsyncIterator[SenderClient]:
        """Connect a sender and wait for credit."""
        async with connect_client(SenderClient(self.checker, queue), self.server.endpoint) as client:
            if not await client.wait_until(lambda: client.can_send, timeout_s=RECOVERY_TIMEOUT_S):
                raise ClientDisconnected(f"no credit to send to {queue} after {RECOVERY_TIMEOUT_S:.0f} s")
            yield client

    async def keep_sending(self, results: SendResults, number: int) -> None:
        """Send to a queue of the faulty store, a few messages at a time, and record the response times."""
        async with self.connect_sender(self.faulty_queues[number % len(self.faulty_queues)]) as client:
            while True:
                sent = [self.checker.messages[client.send(BODY_BYTES)] for _ in range(CONCURRENT_SENDS)]
                started = time.monotonic()
                if not await client.wait_until(lambda: not client.unsettled, timeout_s=results.timeout_s):
                    client.unsettled.clear()  # recorded as sends without a response
                results.record(sent, time.monotonic() - started)
                await asyncio.sleep(PAUSE_S)


async def send_and_wait(client: SenderClient) -> float:
    """Send one message, and return the time until its response."""
    started = time.monotonic()
    client.send(BODY_BYTES)
    if not await client.wait_until(lambda: not client.unsettled, timeout_s=RECOVERY_TIMEOUT_S):
        raise ClientDisconnected(f"a send to {client.queue} has no answer after {RECOVERY_TIMEOUT_S:.0f} s")
    return time.monotonic() - started


class SlowDiskRun:
    """One server with a disk fault, compared with a healthy control server."""

    def __init__(
        self, plan: Plan, site: DiskFaultSetup, control: DiskFaultSetup, on_progress: Callable[[str], None]
    ) -> None:
        self.report = Report()
        self._plan = plan
        self._setup = site
        self._control = control
        self._on_progress = on_progress

    async def prepare(self) -> None:
        await self._setup.prepare()
        await self._control.prepare()

    # --- one phase ----------------------------------------------------------------------------------------------------

    async def run_phase(self, phase: Phase) -> None:
        """Inject the fault, measure both servers, and wait for the recovery."""
        plan, results = self._plan, SendResults(self._plan.store_timeout_s + RESPONSE_SLACK_S)
        with self._disk_fault(phase):
            times_s, control_s = await self._measure_during_fault(results)
        ended_s = time.monotonic()
        ratio = _p99(times_s) / _p99(control_s)
        figure = (
            f"{phase.name}: elsewhere {_percentiles(times_s)}; all well {_percentiles(control_s)}: {ratio:.2f} x p99"
        )
        self._report_figure(f"{figure}; there {results}")
        if _p99(times_s) > max(plan.p99_ratio_max * _p99(control_s), plan.p99_floor_s):
            self.report.problems.append(figure)
        if max(times_s) > plan.worst_max_s:
            self.report.problems.append(f"{phase.name}: a send elsewhere took {max(times_s):.1f} s")
        self.report.problems += [
            f"{phase.name}: {problem}" for problem in results.problems(must_refuse=phase.must_refuse)
        ]
        await self._wait_for_recovery()
        self._report_figure(f"back {time.monotonic() - ended_s:.1f} s after")

    @contextmanager
    def _disk_fault(self, phase: Phase) -> Iterator[None]:
        folder, delay_ms = self._setup.folder_of(FAULTY_STORE), round(phase.delay_s * 1000)
        shim = self._setup.shim
        with (
            shim.rule(Action.FAIL_WRITE, folder, times=UNLIMITED if phase.is_full else 0) as writes,
            shim.rule(Action.FAIL_SYNC, folder, times=phase.failures),
            shim.rule(Action.DELAY_SYNC, folder, delay_ms=delay_ms) as syncs,
        ):
            yield
            assert writes.hit_count or syncs.hit_count, "the disk had no fault: nothing was written there"

    async def _measure_during_fault(self, results: SendResults) -> tuple[list[float], list[float]]:
        """Measure sends to healthy queues of both servers, while others send to the faulty store."""
        control_results = SendResults(results.timeout_s)
        senders = [
            asyncio.ensure_future(setup.keep_sending(recorded_results, number))
            for setup, recorded_results in ((self._setup, results), (self._control, control_results))
            for number in range(FAULTY_STORE_SENDERS)
        ]
        try:
            return await self._measure()
        finally:
            for sender in senders:
                sender.cancel()
            ends = await asyncio.gather(*senders, return_exceptions=True)
            self.report.problems += [f"a sender failed: {end!r}" for end in ends if isinstance(end, Exception)]

    async def _measure(self) -> tuple[list[float], list[float]]:
        """Send one message at a time, alternating between the servers and their healthy queues."""
        times_s: list[float] = []
        control_s: list[float] = []
        until = time.monotonic() + self._plan.phase_s
        async with AsyncExitStack() as stack:
            senders, control_senders = [
                [await stack.enter_async_context(setup.connect_sender(queue)) for queue in setup.healthy_queues]
                for setup in (self._setup, self._control)
            ]
            while len(times_s) < self._plan.samples or time.monotonic() < until:
                turn = len(times_s) % len(senders)
                times_s.append(await send_and_wait(senders[turn]))
                control_s.append(await send_and_wait(control_senders[turn]))
        return times_s, control_s

    async def _wait_for_recovery(self) -> None:
        """Wait until every queue of the faulty store accepts a message again."""
        async with asyncio.timeout(RECOVERY_TIMEOUT_S):
            messages = self._setup.checker.messages
            for queue in self._setup.faulty_queues:
                sent = len(messages)
                while not any(message.is_accepted for message in messages[sent:]):
                    with suppress(ClientDisconnected):
                        async with self._setup.connect_sender(queue) as client:
                            await send_and_wait(client)
                    await asyncio.sleep(PAUSE_S)

    # --- the end ------------------------------------------------------------------------------------------------------

    async def verify(self) -> None:
        """Check that no message was lost: in half of the queues directly, in the others after a crash."""
        half = len(QUEUES) // 2
        await self._drain(QUEUES[:half])
        await self._setup.server.kill()
        if self._plan.cuts_power:
            self._setup.shim.replayed_disk().cut_power()
        await self._setup.server.start()
        await self._drain(QUEUES[half:])
        self.report.problems += self._setup.checker.finish()
        self._report_figure(self._setup.checker.statistics())

    async def _drain(self, queues: Sequence[str]) -> None:
        for queue in queues:
            reported = await management.active_count(self._setup.server.endpoint, queue)
            completed = await drain(self._setup.server, self._setup.checker, queue)
            if reported != completed:
                self.report.problems.append(
                    f"count: {queue} was said to hold {reported} messages, and held {completed}"
                )

    def _report_figure(self, figure: str) -> None:
        self.report.figures.append(figure)
        self._on_progress(figure)


def _percentiles(times_s: Sequence[float]) -> str:
    ordered = sorted(times_s)
    middle, p99, worst = ordered[len(ordered) // 2], _p99(times_s), ordered[-1]
    return f"{len(ordered)} sends, p50 {middle * 1000:.1f} ms, p99 {p99 * 1000:.1f} ms, worst {worst * 1000:.1f} ms"


def _p99(times_s: Sequence[float]) -> float:
    return sorted(times_s)[int(len(times_s) * 0.99)]
