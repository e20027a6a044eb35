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
from twinbus.client.pairing.events import EventKind, PairingEvent
from twinbus.pipeline.audit.contents import SCHEMA
from twinbus.pipeline.audit.looking import Found, Look, read_scope
from twinbus.pipeline.audit.run import weigh
from twinbus.pipeline.audit.settings import AuditSettings
from twinbus.pipeline.audit.topology import Destination, Place, Role, Topology
from twinbus.pipeline.journals import journals
from twinbus.testing.clock import FakeClock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import Row, SparkSession

    from twinbus.client.journal import FactoryJournal
    from twinbus.pipeline.audit.report import Outcome

STRING = "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=a;SharedAccessKey=Yg==;UseDevelopmentEmulator=true"
BACKLOG = "contoso/x-servicebus-transfer/0"
MINUTE_S = 60.0


def message(name: str, *, session: str | None = None, lives: dt.timedelta | None = None) -> BrokeredMessage:
    """One to be sent."""
    return BrokeredMessage(message_id=name, session_id=session, time_to_live=lives)


class Program:
    """One that writes a journal."""

    def __init__(self, rows: FactoryJournal, clock: FakeClock) -> None:
        self._clock = clock
        self.hear = rows.hear

    def sent(self, entity: str, *names: str, **more: Any) -> None:  # noqa: ANN401
        session, lives = more.pop("session", None), more.pop("lives", None)
        self.hear(Sent(entity, [message(name, session=session, lives=lives) for name in names], **more))

    def parked(self, entity: str, *names: str, reason: str | None = None) -> None:
        for name in names:
            self.event(EventKind.PARKED, entity, name, reason)

    def event(self, kind: EventKind, entity: str, name: str, reason: str | None = None) -> None:
        now_ms = self._clock.wall_ms()
        self.hear(
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
        self.hear(Settled(entity, BrokeredMessage.decode(payload), how, **more))


@dataclass
class World:
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

    def queue(self, path: str, **about: Any) -> None:  # noqa: ANN401
        """One whose duplicates are kept."""
        self.destination(path, path, detects_duplicates=False, **about)

    def subscription(self, topic: str, name: str, **about: Any) -> None:  # noqa: ANN401
        about.setdefault("detects_duplicates", False)
        self.destination(topic, f"{topic}/subscriptions/{name}", is_subscription=True, **about)

    def destination(self, entity: str, path: str, **about: Any) -> None:  # noqa: ANN401
        self.topology.routes.append((entity, path))
        self.topology.destinations[path] = Destination(path, **about)
        dead = f"{path}/$deadletterqueue"
        self.topology.places.extend([Place(path, path, Role.MAIN), Place(dead, path, Role.DEAD)])

    # --- journals -----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def program(self, *, is_killed: bool = False) -> Iterator[Program]:
        """One that runs for as long as the block, and ends in good order or is killed."""
        before = set(self.journals.glob("*")) if self.journals.exists() else set()
        journal = Journal(self.journals, clock=self.clock)
        factory = MessagingFactory.from_connection_string(STRING, clock=self.clock)
        yield Program(journal.attach(factory), self.clock)
        journal.close_now()
        if is_killed:
            for path in set(self.journals.glob("*")) - before:
                cut_off(path)

    # --- what is there ------------------------------------------------------------------------------------------------

    def here(self, place: str, name: str, number: int, session: str | None = None) -> None:
        self.primary.append((place, None, name, session, number, "active", self.now, None))

    def parked_here(self, entity: str, name: str, *, is_dead: bool = False) -> None:
        place = f"{BACKLOG}/$deadletterqueue" if is_dead else BACKLOG
        self.backlog.append((place, entity, name, None, 1, "active", self.now, None))

    # --- the audit ----------------------------------------------------------------------------------------------------

    def audit(self, spark: SparkSession, **settings: Any) -> tuple[Outcome, dict[tuple[str, str], Row]]:  # noqa: ANN401
        """What comes of it, and the row of each message at each destination."""
        report = str(self.folder / f"report-{os.urandom(4).hex()}")
        given: dict[str, Any] = {"journals": [self.journals], "covered": ["*"], "skew_s": 0.0, "report": report}
        chosen = AuditSettings(**given | settings)
        found = Found(
            self.now,
            read_scope(journals(spark, self.journals)),
            self.topology,
            Look(spark.createDataFrame(self.backlog, SCHEMA), self.now),
            Look(spark.createDataFrame(self.primary, SCHEMA), self.now, self.failures),
        )
        outcome = weigh(spark, chosen, found)
        rows = spark.read.parquet(report).collect()
        return outcome, {(row.destination, row.message_id): row for row in rows}


def cut_off(path: Path) -> None:
    """As if its process had been killed before its last row, in the middle of a write."""
    rows = read(path)
    batches = rows.slice(0, rows.num_rows - 1).to_batches()
    whole = [COLUMNS.serialize().to_pybytes(), *[batch.serialize().to_pybytes() for batch in batches]]
    path.write_bytes(b"".join(whole) + b"torn")
