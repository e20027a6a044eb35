"""A world for audits: journals that the real classes write, a time that is set by hand, and what is in places.

    world = World(folder)
    with world.program() as shop:
        shop.sent("orders", message("one"))
    world.here("orders", "one", number=1)

Owns: how what a test says becomes inputs. Namespaces are made up: the look at a real one has tests of its own.
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


def message(name: str, *, session: str | None = None, lives: dt.timedelta | None = None) -> BrokeredMessage:
    """One to be sent."""
    return BrokeredMessage(message_id=name, session_id=session, time_to_live=lives)


class JournalWriter:
    """One that writes a journal."""

    def __init__(self, rows: FactoryJournal, clock: FakeClock) -> None:
        self._clock = clock
        self.on_event = rows.on_event

    def sent(self, entity: str, *names: str, **more: Any) -> None:  # noqa: ANN401
        session, lives = more.pop("session", None), more.pop("lives", None)
        self.on_event(Sent(entity, [message(name, session=session, lives=lives) for name in names], **more))

    def parked(self, entity: str, *names: str, reason: str | None = None) -> None:
        for name in names:
            self.event(EventKind.PARKED, entity, name, reason)

    def event(self, kind: EventKind, entity: str, name: str, reason: str | None = None) -> None:
        now_ms = self._clock.wall_ms()
        self.on_event(
            PairingEvent(kind=kind, at_ms=now_ms, path=entity, backlog_queue=BACKLOG, message_id=name, reason=reason)
        )

    def settled(self, entity: str, name: str, number: int, how: str = "completed", **more: Any) -> None:  # noqa: ANN401
        payload = build(
            message_annotations={
                "x-opt-sequence-number": number,
                "x-opt-enqueued-time": Timestamp(self._clock.wall_ms() - 1_000),
            },
            properties=Properties(message_id=name, group_id=more.pop("session", None)),
            body=data(b""),
        )
        self.on_event(Settled(entity, BrokeredMessage.decode(payload), how, **more))


@dataclass
class AuditInputs:
    """All inputs of an audit."""

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

    def add_queue(self, path: str, **about: Any) -> None:  # noqa: ANN401
        """One whose duplicates are kept."""
        self.add_destination(path, path, detects_duplicates=False, **about)

    def add_subscription(self, topic: str, name: str, **about: Any) -> None:  # noqa: ANN401
        about.setdefault("detects_duplicates", False)
        self.add_destination(topic, f"{topic}/subscriptions/{name}", is_subscription=True, **about)

    def add_destination(self, entity: str, path: str, **about: Any) -> None:  # noqa: ANN401
        self.topology.routes.append((entity, path))
        self.topology.destinations[path] = Destination(path, **about)
        dead = f"{path}/$deadletterqueue"
        self.topology.locations.extend(
            [MessageLocation(path, path, LocationRole.MAIN), MessageLocation(dead, path, LocationRole.DEAD_LETTER)]
        )

    # --- journals -----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def run_program(self, *, is_killed: bool = False) -> Iterator[JournalWriter]:
        """One that runs for as long as the block, and ends in good order or is killed."""
        before = set(self.journals.glob("*")) if self.journals.exists() else set()
        journal = Journal(self.journals, clock=self.clock)
        factory = MessagingFactory.from_connection_string(STRING, clock=self.clock)
        yield JournalWriter(journal.attach(factory), self.clock)
        journal.close_now()
        if is_killed:
            for path in set(self.journals.glob("*")) - before:
                truncate_journal(path)

    # --- what is there ------------------------------------------------------------------------------------------------

    def add_message(self, address: str, name: str, number: int, session: str | None = None) -> None:
        self.primary.append((address, None, name, session, number, "active", self.now, None))

    def add_parked_message(self, entity: str, name: str, *, is_dead: bool = False) -> None:
        place = f"{BACKLOG}/$deadletterqueue" if is_dead else BACKLOG
        self.backlog.append((place, entity, name, None, 1, "active", self.now, None))

    # --- the audit ----------------------------------------------------------------------------------------------------

    def audit(self, spark: SparkSession, **settings: Any) -> tuple[AuditResult, dict[tuple[str, str], Row]]:  # noqa: ANN401
        """What comes of it, and the row of each message at each destination."""
        report = str(self.folder / f"report-{os.urandom(4).hex()}")
        given: dict[str, Any] = {
            "journals": [self.journals],
            "covered_entities": ["*"],
            "max_clock_skew_s": 0.0,
            "report_folder": report,
        }
        chosen = AuditSettings(**given | settings)
        found = Inspection(
            self.now,
            read_scope(read_journals(spark, self.journals)),
            self.topology,
            ContentsSnapshot(spark.createDataFrame(self.backlog, SPARK_SCHEMA), self.now),
            ContentsSnapshot(spark.createDataFrame(self.primary, SPARK_SCHEMA), self.now, self.failures),
        )
        outcome = judge_all(spark, chosen, found)
        rows = spark.read.parquet(report).collect()
        return outcome, {(row.destination, row.message_id): row for row in rows}


def truncate_journal(path: Path) -> None:
    """As if its process had been killed before its last row, in the middle of a write."""
    rows = read(path)
    batches = rows.slice(0, rows.num_rows - 1).to_batches()
    whole = [COLUMNS.serialize().to_pybytes(), *[batch.serialize().to_pybytes() for batch in batches]]
    path.write_bytes(b"".join(whole) + b"torn")
