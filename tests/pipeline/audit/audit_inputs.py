"""Inputs of audits: journals that the real classes write, a fake clock, and the messages in entities.

    inputs = AuditInputs(folder)
    with inputs.run_program() as shop:
        shop.sent("orders", "one")
    inputs.add_message("orders", "one", 1)

The contents of the namespaces are invented; test_contents.py and test_topology.py test how real ones are read.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from twinbus.amqp.message import Properties, build, data
from twinbus.amqp.types import Timestamp
from twinbus.client import BrokeredMessage, MessagingFactory
from twinbus.client.events import Sent, Settled
from twinbus.client.journal import Journal
from twinbus.client.journal_file import SCHEMA as COLUMNS
from twinbus.client.journal_file import read
from twinbus.client.pairing.observe.events import EventKind, PairingEvent
from twinbus.pipeline.audit.contents import SPARK_SCHEMA
from twinbus.pipeline.audit.inspection import ContentsSnapshot, Inspection, read_scope
from twinbus.pipeline.audit.job import AuditSettings, judge_all
from twinbus.pipeline.audit.topology import Destination, LocationRole, MessageLocation, Topology
from twinbus.pipeline.journals import read_journals
from twinbus.testing.clock import FakeClock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import Row, SparkSession

    from twinbus.client.journal import FactoryJournal
    from twinbus.pipeline.audit.report import AuditResult

STRING = "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=a;SharedAccessKey=Yg==;UseDevelopmentEmulator=true"
BACKLOG = "contoso/x-servicebus-transfer/0"
MINUTE_S = 60.0


def message(name: str, *, session: str | None = None, time_to_live: dt.timedelta | None = None) -> BrokeredMessage:
    """Return a message to send."""
    return BrokeredMessage(message_id=name, session_id=session, time_to_live=time_to_live)


class JournalWriter:
    """A program that writes a journal."""

    def __init__(self, rows: FactoryJournal, clock: FakeClock) -> None:
        self._clock = clock
        self.on_event = rows.on_event

    def sent(self, entity: str, *names: str, **details: Any) -> None:  # noqa: ANN401
        session, time_to_live = details.pop("session", None), details.pop("time_to_live", None)
        self.on_event(
            Sent(entity, [message(name, session=session, time_to_live=time_to_live) for name in names], **details)
        )

    def parked(self, entity: str, *names: str, reason: str | None = None) -> None:
        for name in names:
            self.event(EventKind.PARKED, entity, name, reason)

    def event(self, kind: EventKind, entity: str, name: str, reason: str | None = None) -> None:
        now_ms = self._clock.wall_ms()
        self.on_event(
            PairingEvent(kind=kind, at_ms=now_ms, path=entity, backlog_queue=BACKLOG, message_id=name, reason=reason)
        )

    def settled(self, entity: str, name: str, number: int, outcome: str = "completed", **details: Any) -> None:  # noqa: ANN401
        payload = build(
            message_annotations={
                "x-opt-sequence-number": number,
                "x-opt-enqueued-time": Timestamp(self._clock.wall_ms() - 1_000),
            },
            properties=Properties(message_id=name, group_id=details.pop("session", None)),
            body=data(b""),
        )
        self.on_event(Settled(entity, BrokeredMessage.decode(payload), outcome, **details))


@dataclass
class AuditInputs:
    """The journals, topology and contents that an audit reads."""

    folder: Path
    clock: FakeClock = field(default_factory=FakeClock)
    topology: Topology = field(default_factory=Topology)
    primary: list[tuple[Any, ...]] = field(default_factory=list)
    backlog: list[tuple[Any, ...]] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)

    @property
    def journals(self) -> Path:
        return self.folder / "journals"

    @property
    def now(self) -> dt.datetime:
        return dt.datetime.fromtimestamp(self.clock.wall_ms() / 1000, dt.UTC)

    # --- entities -----------------------------------------------------------------------------------------------------

    def add_queue(self, path: str, **details: Any) -> None:  # noqa: ANN401
        """Add a queue without duplicate detection."""
        self.add_destination(path, path, detects_duplicates=False, **details)

    def add_subscription(self, topic: str, name: str, **details: Any) -> None:  # noqa: ANN401
        details.setdefault("detects_duplicates", False)
        self.add_destination(topic, f"{topic}/subscriptions/{name}", is_subscription=True, **details)

    def add_destination(self, entity: str, path: str, **details: Any) -> None:  # noqa: ANN401
        self.topology.routes.append((entity, path))
        self.topology.destinations[path] = Destination(path, **details)
        dead_letters = f"{path}/$deadletterqueue"
        self.topology.locations.extend(
            [
                MessageLocation(path, path, LocationRole.MAIN),
                MessageLocation(dead_letters, path, LocationRole.DEAD_LETTER),
            ]
        )

    # --- journals -----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def run_program(self, *, is_killed: bool = False) -> Iterator[JournalWriter]:
        """Run a program for the duration of the block; it ends regularly or is killed."""
        before = set(self.journals.glob("*")) if self.journals.exists() else set()
        journal = Journal(self.journals, clock=self.clock)
        factory = MessagingFactory.from_connection_string(STRING, clock=self.clock)
        yield JournalWriter(journal.attach(factory), self.clock)
        journal.close_now()
        if is_killed:
            for path in set(self.journals.glob("*")) - before:
                truncate_journal(path)

    # --- contents -----------------------------------------------------------------------------------------------------

    def add_message(self, address: str, name: str, number: int, session: str | None = None) -> None:
        self.primary.append((address, None, name, session, number, "active", self.now, None))

    def add_parked_message(self, entity: str, name: str, *, is_dead: bool = False) -> None:
        location = f"{BACKLOG}/$deadletterqueue" if is_dead else BACKLOG
        self.backlog.append((location, entity, name, None, 1, "active", self.now, None))

    # --- the audit ----------------------------------------------------------------------------------------------------

    def audit(self, spark: SparkSession, **settings: Any) -> tuple[AuditResult, dict[tuple[str, str], Row]]:  # noqa: ANN401
        """Run the audit; return its result, and the row of each message at each destination."""
        report = str(self.folder / f"report-{os.urandom(4).hex()}")
        defaults: dict[str, Any] = {
            "journals": [self.journals],
            "covered_entities": ["*"],
            "max_clock_skew_s": 0.0,
            "report_folder": report,
        }
        audit_settings = AuditSettings(**defaults | settings)
        inspection = Inspection(
            self.now,
            read_scope(read_journals(spark, self.journals)),
            self.topology,
            ContentsSnapshot(spark.createDataFrame(self.backlog, SPARK_SCHEMA), self.now),
            ContentsSnapshot(spark.createDataFrame(self.primary, SPARK_SCHEMA), self.now, self.failures),
        )
        result = judge_all(spark, audit_settings, inspection)
        rows = spark.read.parquet(report).collect()
        return result, {(row.destination, row.message_id): row for row in rows}


def truncate_journal(path: Path) -> None:
    """Truncate a journal as if its process had been killed while it wrote the last row."""
    rows = read(path)
    batches = rows.slice(0, rows.num_rows - 1).to_batches()
    parts = [COLUMNS.serialize().to_pybytes(), *[batch.serialize().to_pybytes() for batch in batches]]
    path.write_bytes(b"".join(parts) + b"torn")
