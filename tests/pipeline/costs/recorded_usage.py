"""Usage and journals as servers and clients write them, for the scenario of a test."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

import msgspec

from twinbus.client.journal_file import JournalFiles
from twinbus.model.usage import END, UsageRow
from twinbus.server.usage import parquet_files
from twinbus.server.usage.usage_journal import UsageJournal

if TYPE_CHECKING:
    from pathlib import Path

    from twinbus.client.journal_file import Row

NOON = dt.datetime(2026, 10, 31, 12, tzinfo=dt.UTC)


def epoch_seconds(when: dt.datetime) -> int:
    return int(when.timestamp())


class UsageRecorder:
    """The usage of one process, in the data folder of its namespace."""

    def __init__(self, data: Path, namespace: str, *, process: int = 0, life: str = "5f1c") -> None:
        self.folder = data / "usage"
        self._journal = UsageJournal(self.folder, namespace=namespace, process=process, life=life)

    def record_minute(self, when: dt.datetime, *rows: UsageRow, connections: int = 0, mark: str = "") -> None:
        """Record the usage of a minute; the minute of each row is set to it."""
        minute = epoch_seconds(when)
        process_row = UsageRow(minute=minute, connections=connections, mark=mark)
        self._journal.append([process_row, *[msgspec.structs.replace(row, minute=minute) for row in rows]], minute)

    def end(self, when: dt.datetime) -> None:
        """Record a regular shutdown."""
        self.record_minute(when, mark=END)
        self._journal.close()

    def roll(self) -> None:
        """Convert all journals to Parquet files."""
        self._journal.close()
        for journal in sorted(self.folder.glob("*.journal")):
            parquet_files.convert_journal(self.folder, journal)


def usage_row(entity: str, client: str = "shop", /, **counts: int) -> UsageRow:
    return msgspec.structs.replace(UsageRow(minute=0, entity=entity, client=client), **counts)


class FixedClock:
    """The clock of a journal, which stands still."""

    def __init__(self, now: dt.datetime) -> None:
        self.now = now

    def wall_ms(self) -> int:
        return epoch_seconds(self.now) * 1000

    def monotonic_s(self) -> float:
        return self.now.timestamp()


class JournalRecorder:
    """The journal of one client."""

    def __init__(self, folder: Path, client_id: str = "shop", address: str = "localhost:5672") -> None:
        self._files = JournalFiles(folder, FixedClock(NOON))
        self._client = (address, client_id)
        self._rows: list[Row] = []

    def add_row(
        self,
        when: dt.datetime,
        outcome: str,
        entity: str | None = "orders",
        *,
        kind: str = "event",
        backlog_queue: str | None = None,
        reason: str | None = None,
        count: int = 1,
    ) -> None:
        time_ms = round(when.timestamp() * 1000)
        message_columns = (None, entity, None, None, backlog_queue)
        self._rows.append((time_ms, kind, *message_columns, outcome, reason, count, *self._client, None, None))

    def write_file(self) -> None:
        self._files.write(self._rows)
        self._files.close()
