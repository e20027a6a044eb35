"""Generates a year of usage files, with the same columns, paths and function as a server.

    written = write_usage(Path("data"), days=365, rows_per_minute=96)

Owns the contents of the year. There is one pair: contoso, which is busy, and contoso-backup, whose backlog queues are
polled and, for an hour each week, filled and drained. The clients' journals record these outages.
"""

from __future__ import annotations

import datetime as dt
import multiprocessing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from twinbus.client.journal_file import JournalFiles
from twinbus.model.usage import BEGIN, COUNTS, JournalHead
from twinbus.server.usage.parquet_files import write_hour

if TYPE_CHECKING:
    from pathlib import Path

    from twinbus.client.journal_file import Row

BEGINS: Final = dt.datetime(2025, 1, 1, tzinfo=dt.UTC)
HOUR_S: Final = 3_600
QUEUES: Final = 10
"""Number of backlog queues."""
DISTINCT_HOURS: Final = 24
"""Number of generated hours, which the year repeats."""
PARKED: Final = 500
"""Parked messages per minute while the primary is down."""
_OF_QUEUES: Final = ("sends", "send_units", "receives", "receive_units", "settlements")


@dataclass(frozen=True, slots=True)
class WrittenUsage:
    """Numbers of what was written."""

    rows: int
    files: int
    bytes: int


def write_usage(folder: Path, *, days: int, rows_per_minute: int) -> WrittenUsage:
    """Write the usage of both namespaces for some days, with two processes."""
    busy = rows_per_minute - QUEUES - 1
    jobs = [(folder, days, busy, part) for part in range(2)]
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        parts = pool.starmap(_write_part, jobs)
    return WrittenUsage(*(sum(numbers) for numbers in zip(*parts, strict=True)))


def _write_part(folder: Path, days: int, busy: int, part: int) -> tuple[int, int, int]:
    """Write every other day."""
    primary = [_busy_hour(busy, seed) for seed in range(DISTINCT_HOURS)]
    quiet, filled = _backlog_hour(is_down=False), _backlog_hour(is_down=True)
    rows = files = size = 0
    for day in range(part, days, 2):
        for hour in range(24):
            begins = int((BEGINS + dt.timedelta(days=day, hours=hour)).timestamp())
            is_down = day % 7 == 0 and hour == 12
            for namespace, columns in (
                ("contoso", primary[hour % DISTINCT_HOURS]),
                ("contoso-backup", filled if is_down else quiet),
            ):
                head = JournalHead(namespace=namespace, process=0, life=f"{namespace}-{day // 30}", hour=begins)
                path = write_hour(
                    folder / namespace / "usage", head, _with_time(columns, begins, day, hour), sync=False
                )
                rows, files, size = rows + len(columns["minute"]), files + 1, size + path.stat().st_size
    return rows, files, size


def _with_time(columns: dict[str, pa.Array], begins: int, day: int, hour: int) -> dict[str, pa.Array]:
    """Return the same hour at another time. A process runs for thirty days, and its first row has a mark."""
    moved = {**columns, "minute": pc.add(columns["minute"], begins)}
    if day % 30 == 0 and hour == 0:
        marks = [BEGIN] + [""] * (len(columns["minute"]) - 1)
        moved["mark"] = pa.array(marks)
    return moved


def _busy_hour(busy: int, seed: int) -> dict[str, pa.Array]:
    """Return a row for the namespace and for each pair of entity and client, for each minute."""
    pairs = [("", "")] + [(_entity(number), f"client-{number % 7}") for number in range(busy - 1)]
    count = len(pairs) * 60
    columns = {
        "minute": pa.array([minute * 60 for minute in range(60) for _ in pairs], pa.int64()),
        "entity": pa.array([entity for _ in range(60) for entity, _ in pairs]),
        "client": pa.array([client for _ in range(60) for _, client in pairs]),
    }
    is_own = pc.equal(columns["entity"], "")
    for number, name in enumerate(COUNTS):
        most = {"failed_pings": 1, "pings": 1, "management": 1, "renewals": 2, "connections": 40}.get(name, 300)
        drawn = pc.random(count, initializer=seed * 100 + number)
        numbers = pc.cast(pc.floor(pc.multiply(drawn, most)), pa.int64())
        columns[name] = pc.if_else(is_own if name == "connections" else pc.invert(is_own), numbers, 0)
    return columns


def _entity(number: int) -> str:
    return f"orders-{number}" if number % 4 else f"news-{number // 12}/Subscriptions/region-{number % 12}"


def _backlog_hour(*, is_down: bool) -> dict[str, pa.Array]:
    paths = ["", *(f"contoso/x-servicebus-transfer/{number}" for number in range(QUEUES))]
    minutes = [minute for minute in range(60) for _ in paths]
    entities = [path for _ in range(60) for path in paths]
    columns = {
        "minute": pa.array([minute * 60 for minute in minutes], pa.int64()),
        "entity": pa.array(entities),
        "client": pa.array(["syphon" if path else "" for path in entities]),
        "empty_receives": pa.array(
            [int(bool(path) and minute % 15 == 0) for path, minute in zip(entities, minutes, strict=True)]
        ),
        "connections": pa.array([0 if path else 12 for path in entities]),
    }
    if is_down:
        parked = pa.array([PARKED // QUEUES if path else 0 for path in entities])
        columns |= dict.fromkeys(_OF_QUEUES, parked)
        columns |= dict.fromkeys(("send_bytes", "receive_bytes"), pc.multiply(parked, 1_100))
    return columns


class _Clock:
    def __init__(self, now: dt.datetime) -> None:
        self.now = now

    def wall_ms(self) -> int:
        return int(self.now.timestamp() * 1000)

    def monotonic_s(self) -> float:
        return self.now.timestamp()


def write_journals(folder: Path, *, days: int) -> int:
    """Write the clients' journals of the outages, and return the number of outages."""
    outages = 0
    for day in range(0, days, 7):
        begins = BEGINS + dt.timedelta(days=day, hours=12)
        rows: list[Row] = []
        for number in range(1, 20, 4):
            rows += _outage(f"orders-{number}", begins, f"client-{number % 7}")
            outages += 1
        files = JournalFiles(folder, _Clock(begins))
        files.write(rows)
        files.close()
    return outages


def _outage(entity: str, begins: dt.datetime, client: str) -> list[Row]:
    at_ms = int(begins.timestamp() * 1000)

    def row(minute: int, kind: str, outcome: str, queue: str | None, reason: str | None, count: int = 1) -> Row:
        about = (None, entity, None, None, queue)
        return (at_ms + minute * 60_000, kind, *about, outcome, reason, count, "contoso:5671", client, None, None)

    queue = "contoso/x-servicebus-transfer/0"
    rows = [row(0, "event", "failed over", None, "TimedOut: no answer")]
    for minute in range(1, 60):
        rows.append(row(minute, "event", "pinged", None, "TimedOut: no answer" if minute < 59 else None))
        rows.append(row(minute, "send", "parked", queue, None, PARKED // 5))
    rows.append(row(59, "event", "restored", None, None))
    rows += [row(60 + minute, "event", "moved back", queue, None, PARKED // 5) for minute in range(59)]
    return rows
