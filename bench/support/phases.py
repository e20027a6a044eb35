"""A server whose pauses are measured, and what is found in it, phase by phase.

    async with site.phase("fill", 1_000_000):
        ...

Owns: the server's queues and counts over HTTP, the phases of one index, what must hold in the end. What is done in each
phase is `indexes`'s.
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
    """A server that measures its pauses."""

    def create_index_queue(self, name: str, **settings: object) -> None:
        """A queue that was not there before."""
        self._request("PUT", name, _described(settings), expected=201)

    def update_queue(self, name: str, **settings: object) -> None:
        """Describe a queue anew."""
        self._request("PUT", name, _described(settings), expected=200, headers={"If-Match": "*"})

    def counts(self, name: str) -> dict[str, int]:
        """Messages of a queue by their states; "" is all of them."""
        text = self._request("GET", name, None, expected=200)
        return {kind: int(count) for kind, count in re.findall(r"[<:](\w*)MessageCount>(\d+)<", text)}

    def take_pauses(self) -> dict[str, Any]:
        """What was found since they were last taken."""
        found: dict[str, Any] = json.loads(self._request("DELETE", "$pauses", None, expected=200))
        return found

    def _token(self, name: str) -> str:
        return super()._token("" if name.startswith("$") else name)  # what is no entity is the namespace's


def _described(settings: dict[str, object]) -> str:
    return _SETTINGS.format("".join([f"<{name}>{text}</{name}>" for name, text in settings.items()]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """What was found while one thing was done."""

    index: str
    name: str
    took_s: float
    count: int
    """Of what was done; 0 where that says nothing."""
    pauses: dict[str, Any]
    own_ms: float
    """The longest pause, without what others had of it."""
    worked_ms: float
    """What the loop itself did in that one."""
    long_count: int
    idle_ms: float
    """The longest pause of the server that has nothing to do, in the same moments; without what others had of it."""
    resident_mib: float
    worst_probe_ms: float | None
    """The longest wait for a message to another queue of the same store to be accepted; where that was tried."""

    def row(self) -> str:
        """A line of a table."""
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
    "longest pause of its own",
    "the loop's work in it",
    "over 50 ms",
    "the idle server's longest",
    "longest with waiting",
    "another queue's accept, at worst",
    "resident",
)
TABLE_HEAD: Final = f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}\n"


class IndexBench:
    """One index in one server, and what was found so far."""

    def __init__(self, name: str, server: MeasuredServer, idle: MeasuredServer, host: StealMonitor, count: int) -> None:
        """Both serve."""
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
        """Measure what is done in the block."""
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
        """Each long pause without what the host had of it, or other programs, whichever is more; and the loop's work.

        Not without both: while the host has a processor, programs wait for it.
        """
        own = [(min(found["longest_own_ms"], MIN_KEPT_PAUSE_MS), 0.0)]
        for since, until, waited_s, worked_s in found["pauses"]:
            others_s = max(waited_s, self._host.stolen_s(since, until))
            own.append((1e3 * max(0.0, until - since - others_s), 1e3 * worked_s))
        return own

    @contextlib.asynccontextmanager
    async def _probing(self, *, is_wanted: bool) -> AsyncIterator[list[float]]:
        """Send a message to another queue now and then; how long each took to be accepted."""
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
        """Send so many messages to the queue."""
        numbers = range(count if count is not None else self.count)
        async with self.phase(name, len(numbers)), connect_client(self.server) as client:
            await client.send(QUEUE, batches(map(make, numbers), BATCH))

    async def wait_until(self, is_reached: Callable[[dict[str, int]], bool]) -> None:
        """Wait until the queue's counts are as wanted. Exits where they never are."""
        deadline = time.monotonic() + TIMEOUT_S
        while not is_reached(counts := self.server.counts(QUEUE)):
            if time.monotonic() > deadline:
                sys.exit(f"{self._name}: still {counts} after {TIMEOUT_S:.0f} s\n{self.server.log_tail()}")
            await asyncio.sleep(POLL_INTERVAL_S)

    # --- what must hold -----------------------------------------------------------------------------------------------

    def check_value(self, what: str, found: object, expected: object) -> None:
        """Correctness: one thing that is not as it has to be is a message missing or too many."""
        if found != expected:
            self._wrong += 1
            print(f"{self._name}: {what}: {found!r:.300} instead of {expected!r:.300}", flush=True)

    def expect_counts(self, **expected: int) -> None:
        """... of the queue: Active, Scheduled, DeadLetter, or all of them."""
        counts = self.server.counts(QUEUE)
        self.check_value("counts", {kind: counts["" if kind == "All" else kind] for kind in expected}, expected)

    def note_memory(self) -> None:
        """Before a process ends, and now and then."""
        self._peak_mib = max(self._peak_mib, self.server.process.peak_resident_bytes / MIB)

    def restart(self, when: str) -> None:
        """In good order."""
        self.note_memory()
        took_s = self.server.stop() + self.server.start()
        self._add_threshold(f"restart {when}", took_s, MAX_RESTART_S, " s")

    def kill(self, when: str) -> None:
        """And start again."""
        self.note_memory()
        self.server.kill()
        self._add_threshold(f"restart after SIGKILL {when}", self.server.start(), MAX_RESTART_S, " s")

    def check_thresholds(self) -> None:
        """At the end."""
        self.note_memory()
        longest_ms, where = max((phase.own_ms, phase.name) for phase in self.phases)
        self._add_threshold(f"longest pause of its own ({where})", longest_ms, MAX_PAUSE_MS, " ms")
        self._add_threshold("resident at most", self._peak_mib, MAX_RESIDENT_MIB, " MiB")
        self._add_threshold("counts that are wrong", self._wrong, 0, "")
        self._add_threshold("warnings in the server's log", len(self.server.log_errors()), 0, "")

    def _add_threshold(self, what: str, found: float, needed: float, unit: str) -> None:
        self.thresholds.append(Threshold(f"{self._name}: {what}", found, needed, unit, is_ceiling=True))
        print(self.thresholds[-1].row(), flush=True)
