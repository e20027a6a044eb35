"""A server that measures the pauses of its event loop, and the results of each phase of a benchmark.

    async with index_bench.phase("fill", 1_000_000):
        ...

Owns the server's queues and counts over HTTP, the phases of one index, and the checks at the end. `bench.indexes`
defines what happens in each phase.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from bench.support.engine_client import batches, connect_client, write_message
from bench.support.results import Threshold
from bench.support.server import MIB, Server
from twinbus.server.runtime.loop_pauses import MIN_KEPT_PAUSE_MS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from bench.support.cpu_steal import StealMonitor

MAX_RESIDENT_MIB: Final = 1024
MAX_PAUSE_MS: Final = 50.0
MAX_RESTART_S: Final = 10.0
BATCH: Final = 250
BODY: Final = b"a message of an index"
TIMEOUT_S: Final = 600.0
POLL_INTERVAL_S: Final = 0.1
PROBE_EVERY_S: Final = 0.02
QUEUE: Final = "index"
PROBE: Final = "probe"
_SETTINGS: Final = (
    '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">'
    '<QueueDescription xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect">'
    "{}</QueueDescription></content></entry>"
)


class MeasuredServer(Server):
    """A server that measures the pauses of its event loop."""

    def create_index_queue(self, name: str, **settings: object) -> None:
        """Create a queue that does not exist yet."""
        self._request("PUT", name, _described(settings), expected=201)

    def update_queue(self, name: str, **settings: object) -> None:
        """Change the description of a queue."""
        self._request("PUT", name, _described(settings), expected=200, headers={"If-Match": "*"})

    def counts(self, name: str) -> dict[str, int]:
        """Return the message counts of a queue by state; the key "" is the total."""
        text = self._request("GET", name, None, expected=200)
        return {kind: int(count) for kind, count in re.findall(r"[<:](\w*)MessageCount>(\d+)<", text)}

    def take_pauses(self) -> dict[str, Any]:
        """Return the pauses since the last call."""
        found: dict[str, Any] = json.loads(self._request("DELETE", "$pauses", None, expected=200))
        return found

    def token(self, name: str) -> str:
        """Return a token for an entity; for the namespace, if the name is a path of the server."""
        return super().token("" if name.startswith("$") else name)  # `$` paths are not entities


def _described(settings: dict[str, object]) -> str:
    return _SETTINGS.format("".join([f"<{name}>{text}</{name}>" for name, text in settings.items()]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """The result of one phase."""

    index: str
    name: str
    took_s: float
    count: int
    """Number of operations, or 0 if a rate is meaningless."""
    pauses: dict[str, Any]
    own_ms: float
    """The longest pause, without time that other programs or the host took."""
    worked_ms: float
    """Time in that pause in which the event loop itself was working."""
    long_count: int
    idle_ms: float
    """The longest pause of the idle server in the same period, without time that other programs or the host took."""
    resident_mib: float
    worst_probe_ms: float | None
    """The longest time until a message to another queue of the same store was accepted; None if not measured."""

    def row(self) -> str:
        """Return a row of the table."""
        rate = f"{self.count / self.took_s:,.0f}/s" if self.count else ""
        whole = self.pauses["longest_ms"]
        probe = f"{self.worst_probe_ms:,.0f} ms" if self.worst_probe_ms is not None else ""
        return (
            f"| {self.index} | {self.name} | {self.took_s:,.1f} s | {rate} | {self.own_ms:,.0f} ms | "
            f"{self.worked_ms:,.0f} ms | {self.long_count:,} | {self.idle_ms:,.0f} ms | {whole:,.0f} ms | {probe} | "
            f"{self.resident_mib:,.0f} MiB |"
        )


COLUMNS: Final = (
    "index",
    "phase",
    "took",
    "rate",
    "longest own pause",
    "event loop work in it",
    "over 50 ms",
    "longest pause of the idle server",
    "longest pause with waiting time",
    "slowest accept of another queue",
    "resident",
)
TABLE_HEAD: Final = f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}\n"


class IndexBench:
    """The benchmark of one index in one server, with its results so far."""

    def __init__(self, name: str, server: MeasuredServer, idle: MeasuredServer, host: StealMonitor, count: int) -> None:
        """Create the benchmark. Both servers are running."""
        self.server = server
        self.count = count
        self.phases: list[Phase] = []
        self.thresholds: list[Threshold] = []
        self._name = name
        self._idle = idle
        self._host = host
        self._peak_mib = 0.0
        self._wrong = 0

    # --- phases -------------------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def phase(self, name: str, count: int = 0, *, probes: bool = False) -> AsyncIterator[None]:
        """Measure the block as one phase."""
        self.server.take_pauses()
        self._idle.take_pauses()
        started = time.monotonic()
        async with self._probing(is_wanted=probes) as worst_ms:
            yield
        took_s = time.monotonic() - started
        pauses, idle_pauses = self.server.take_pauses(), self._idle.take_pauses()
        self.note_memory()
        resident_mib = self.server.process.resident_bytes / MIB
        worst = max(worst_ms) if worst_ms else None
        own = self._own_ms(pauses)
        found = Phase(
            index=self._name,
            name=name,
            took_s=took_s,
            count=count,
            pauses={key: value for key, value in pauses.items() if key != "pauses"},
            own_ms=max(own)[0],
            worked_ms=max(own)[1],
            long_count=sum(own_ms > MAX_PAUSE_MS for own_ms, _ in own),
            idle_ms=max(self._own_ms(idle_pauses))[0],
            resident_mib=resident_mib,
            worst_probe_ms=worst,
        )
        self.phases.append(found)
        print(found.row(), flush=True)

    def _own_ms(self, found: dict[str, Any]) -> list[tuple[float, float]]:
        """Return each long pause without the time of the host or other programs, and the event loop's work in it.

        Only the longer of the two times is subtracted, because programs also wait while the host has the processor.
        """
        own = [(min(found["longest_own_ms"], MIN_KEPT_PAUSE_MS), 0.0)]
        for since, until, waited_s, worked_s in found["pauses"]:
            others_s = max(waited_s, self._host.stolen_s(since, until))
            own.append((1e3 * max(0.0, until - since - others_s), 1e3 * worked_s))
        return own

    @contextlib.asynccontextmanager
    async def _probing(self, *, is_wanted: bool) -> AsyncIterator[list[float]]:
        """Send messages to another queue at intervals; yield how long each took to be accepted."""
        took_ms: list[float] = []
        if not is_wanted:
            yield took_ms
            return
        async with connect_client(self.server) as client:
            link = await client.attach_sender(PROBE)

            async def probe() -> None:
                while True:
                    started = time.monotonic()
                    await client.send_on(link, batches([write_message("probe", BODY)], 1))
                    took_ms.append(1e3 * (time.monotonic() - started))
                    await asyncio.sleep(PROBE_EVERY_S)

            task = asyncio.create_task(probe())
            try:
                yield took_ms
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def fill(self, make: Callable[[int], bytes], count: int | None = None, name: str = "fill") -> None:
        """Send `count` messages to the queue."""
        numbers = range(count if count is not None else self.count)
        async with self.phase(name, len(numbers)), connect_client(self.server) as client:
            await client.send(QUEUE, batches(map(make, numbers), BATCH))

    async def wait_until(self, is_reached: Callable[[dict[str, int]], bool]) -> None:
        """Wait until the queue's counts meet a condition. Exit if they do not within the time-out."""
        deadline = time.monotonic() + TIMEOUT_S
        while not is_reached(counts := self.server.counts(QUEUE)):
            if time.monotonic() > deadline:
                sys.exit(f"{self._name}: still {counts} after {TIMEOUT_S:.0f} s\n{self.server.log_tail()}")
            await asyncio.sleep(POLL_INTERVAL_S)

    # --- checks -------------------------------------------------------------------------------------------------------

    def check_value(self, what: str, found: object, expected: object) -> None:
        """Check a result; a wrong value means that messages are missing or duplicated."""
        if found != expected:
            self._wrong += 1
            print(f"{self._name}: {what}: {found!r:.300} instead of {expected!r:.300}", flush=True)

    def expect_counts(self, **expected: int) -> None:
        """Check counts of the queue: Active, Scheduled, DeadLetter, or the total."""
        counts = self.server.counts(QUEUE)
        self.check_value("counts", {kind: counts["" if kind == "All" else kind] for kind in expected}, expected)

    def note_memory(self) -> None:
        """Record the peak memory; called at intervals and before a process ends."""
        self._peak_mib = max(self._peak_mib, self.server.process.peak_resident_bytes / MIB)

    def restart(self, when: str) -> None:
        """Restart the server cleanly, and add a threshold for the time."""
        self.note_memory()
        took_s = self.server.stop() + self.server.start()
        self._add_threshold(f"restart {when}", took_s, MAX_RESTART_S, " s")

    def kill(self, when: str) -> None:
        """Kill the server and start it again, and add a threshold for the time."""
        self.note_memory()
        self.server.kill()
        self._add_threshold(f"restart after SIGKILL {when}", self.server.start(), MAX_RESTART_S, " s")

    def check_thresholds(self) -> None:
        """Add the thresholds of the whole benchmark."""
        self.note_memory()
        longest_ms, where = max((phase.own_ms, phase.name) for phase in self.phases)
        self._add_threshold(f"longest own pause ({where})", longest_ms, MAX_PAUSE_MS, " ms")
        self._add_threshold("resident at most", self._peak_mib, MAX_RESIDENT_MIB, " MiB")
        self._add_threshold("counts that are wrong", self._wrong, 0, "")
        self._add_threshold("warnings in the server's log", len(self.server.log_errors()), 0, "")

    def _add_threshold(self, what: str, found: float, needed: float, unit: str) -> None:
        self.thresholds.append(Threshold(f"{self._name}: {what}", found, needed, unit, is_ceiling=True))
        print(self.thresholds[-1].row(), flush=True)
