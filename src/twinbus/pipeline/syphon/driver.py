"""The driver: round after round, until it is stopped or nothing is parked any more.

A round lasts an hour at most, then backlog queues are looked for anew and spread over the places there are. Ending a
round costs an idle backlog queue no receive more: four polls of 15 minutes are an hour. Owns: what follows a round, and
the report. When a round is over is decided by `watch`.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from twinbus.client.clock import SystemClock
from twinbus.client.pairing.blame import NOT_FOUND_GRACE_S
from twinbus.model.callbacks import ignore
from twinbus.model.errors import ServiceBusError
from twinbus.pipeline.errors import PipelineError
from twinbus.pipeline.syphon import report
from twinbus.pipeline.syphon.assignment import Assignment, lock_durations, look, spread
from twinbus.pipeline.syphon.line import Caller, Exchange
from twinbus.pipeline.syphon.report import Report
from twinbus.pipeline.syphon.round import Round, RoundFailed
from twinbus.pipeline.syphon.watch import Kind, Over, Progress, Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import SparkSession

    from twinbus.client import NamespaceManager
    from twinbus.pipeline.syphon.assignment import Address, Pair
    from twinbus.pipeline.syphon.tally import Moved

log: Final = logging.getLogger(__name__)

MASTER: Final = "local[*,4]"
"""This machine; a task that fails is started again, as on a cluster."""
SETTINGS: Final = {
    "spark.speculation": "false",  # a second attempt beside the first would take its queues from it
    "spark.task.maxFailures": "8",
}
POLL_S: Final = 900.0
ROUND_S: Final = 3600.0
NONE_THERE_S: Final = 60.0
"""How often backlog queues are looked for where there is none yet."""
NO_ANSWER_S: Final = 5.0
"""How often the secondary is asked if it does not answer."""
FAILED_PAUSE_S: Final = 5.0
MOST_FAILURES: Final = 3
"""Rounds in a row that failed without moving anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the user asks for."""

    pair: Pair
    available_now: bool = False
    """End when nothing is parked any more, or nothing moves."""
    wait_s: float = 60.0
    """How long nothing may move then."""
    deduct: bool = False
    """Take the parked time off the time to live."""
    not_found_grace_s: float = NOT_FOUND_GRACE_S
    """How long messages for a destination that does not exist stay parked before they are dead-lettered."""
    journal_dir: str | None = None
    """Where each task writes down what became of each message, on its machine."""
    report_place: str | None = None
    """Where the report is added as Parquet."""
    poll_s: float = POLL_S
    round_s: float = ROUND_S


class SparkSyphon:
    """One run of it."""

    def __init__(self, spark: SparkSession, wanted: Wanted, told: Callable[[Progress], None] = ignore) -> None:
        """`run` begins; `told` hears how far it is, several times a second."""
        self.report = Report()
        self._spark = spark
        self._wanted = wanted
        self._told = told
        self._started_ms = SystemClock().wall_ms()
        self._stopped = asyncio.Event()
        self._exchange = Exchange(self._heard)
        self._round: Round | None = None
        self._locks_ms: Mapping[str, int] = {}
        self._rounds = 0
        self._failures = 0

    def stop(self) -> None:
        """End soon, and well; asked again, at once."""
        if self._stopped.is_set() and self._round is not None:
            self._round.kill()
        self._stopped.set()

    async def run(self) -> Report:
        """Drain. PipelineError, or ServiceBusError if the secondary does not even answer once."""
        conf = self._spark.sparkContext.getConf()
        host = conf.get("spark.driver.host") or "127.0.0.1"
        driver = await self._exchange.open(conf.get("spark.driver.bindAddress") or host, host)
        try:
            async with self._wanted.pair.manager() as manager:
                await self._go_on(manager, driver)
        finally:
            await self._exchange.close()
        if self._stopped.is_set():
            self.report.why = "stopped"
        return self.report

    async def _go_on(self, manager: NamespaceManager, driver: Address) -> None:
        """Round after round."""
        name, wanted = self._wanted.pair.primary_name, self._wanted
        watch = Watch(
            stopped=self._stopped,
            slots=lambda: self._spark.sparkContext.defaultParallelism,
            look=lambda: look(manager, name),
            told=self._tell,
            round_s=wanted.round_s,
            wait_s=wanted.wait_s if wanted.available_now else None,
        )
        parked: Mapping[str, int] | None = await look(manager, name)
        self._locks_ms = await lock_durations(manager, name) if parked else {}
        most: int | None = None
        while not self._stopped.is_set():
            if parked:
                over = await self._one(watch, self._plan(parked, driver, most), sum(parked.values()))
                most = over.most
                parked = await self._count(manager)
                await self._conclude(parked, over)
                if over.kind is Kind.STOPPED or (wanted.available_now and over.kind in (Kind.EMPTY, Kind.STUCK)):
                    return
            elif parked is not None and wanted.available_now:
                self.report.is_over, self.report.why = True, "there is no backlog queue"
                return
            else:
                await self._rest(NONE_THERE_S if parked is not None else NO_ANSWER_S)
                parked = await self._count(manager)

    def _plan(self, parked: Mapping[str, int], driver: Address, most: int | None) -> list[Assignment]:
        slots = self._spark.sparkContext.defaultParallelism
        groups = spread(parked, slots if most is None else min(most, slots))
        self._rounds += 1
        return [
            Assignment(
                pair=self._wanted.pair,
                queues=queues,
                driver=driver,
                round=self._rounds,
                group=group,
                started_ms=self._started_ms,
                poll_s=self._wanted.poll_s,
                deduct=self._wanted.deduct,
                not_found_grace_s=self._wanted.not_found_grace_s,
                locks_ms={path: self._locks_ms[path] for path in queues if path in self._locks_ms},
                journal_dir=self._wanted.journal_dir,
            )
            for group, queues in enumerate(groups)
        ]

    async def _one(self, watch: Watch, assignments: list[Assignment], parked: int) -> Over:
        """One round. PipelineError where Spark cannot run it at all."""
        one = self._round = Round(self._spark, self._exchange, self._rounds, assignments)
        try:
            over = await one.run(lambda this: watch.over(this, parked))
        except RoundFailed as error:
            self._failures = 0 if one.ledger.moved else self._failures + 1
            if not list(one.ledger.callers) or self._failures >= MOST_FAILURES:
                raise PipelineError(f"Spark gave up: {error}") from error
            log.warning("a round failed, and is begun anew: %s", error)
            await self._rest(FAILED_PAUSE_S)
            return Over(Kind.ROUTINE, f"a task was given up: {error}")
        else:
            return over or Over(Kind.ROUTINE, "its tasks have ended")

    async def _conclude(self, parked: Mapping[str, int] | None, over: Over) -> None:
        """Add a round to the report."""
        assert self._round is not None
        rows = self._round.ledger.rows(parked, over.why)
        self._round = None
        self.report.add(rows)
        self.report.is_over = over.kind is Kind.EMPTY or self.report.left == 0
        self.report.why = over.why
        if self._wanted.report_place is not None:
            try:
                await asyncio.to_thread(report.write, self._spark, rows, self._wanted.report_place)
            except Exception as error:  # noqa: BLE001  # whatever Spark has: the messages are moved all the same
                self.report.failure = f"{self._wanted.report_place}: {str(error).strip().splitlines()[0]}"
                log.error("the report was not written: %s", self.report.failure)  # noqa: TRY400  # Spark's stack says no more

    async def _count(self, manager: NamespaceManager) -> Mapping[str, int] | None:
        try:
            return await look(manager, self._wanted.pair.primary_name)
        except ServiceBusError as error:
            log.warning("the backlog queues were not counted: %s", error)
            return None

    async def _rest(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stopped.wait()
        except TimeoutError:
            pass

    def _heard(self, caller: Caller, rows: list[Moved], troubles: dict[str, str]) -> None:
        if self._round is not None and caller.round == self._round.number:
            self._round.ledger.hear(caller, rows, troubles)

    def _tell(self, progress: Progress) -> None:
        """With what earlier rounds have moved."""
        moved, dead_lettered = self.report.moved + progress.moved, self.report.dead_lettered + progress.dead_lettered
        self._told(
            Progress(
                moved=moved,
                dead_lettered=dead_lettered,
                left=progress.left,
                tasks=progress.tasks,
                trouble=progress.trouble,
            )
        )
