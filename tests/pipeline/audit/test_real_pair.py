"""An audit of a real pair: an outage loses nothing, and messages that later vanish or arrive twice are named."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from typing import TYPE_CHECKING, Final

import pytest

from tests.support.server_process import ServerProcess
from twinbus.client import BrokeredMessage, MessagingFactory, NamespaceManager, ReceiveMode
from twinbus.client.journal import Journal
from twinbus.client.pairing import EventKind, SendAvailabilityPairedNamespaceOptions
from twinbus.model.topic import SubscriptionDescription, TopicDescription
from twinbus.pipeline.audit.contents import NamespaceAccess
from twinbus.pipeline.audit.job import AuditSettings, run_audit
from twinbus.pipeline.audit.report import EXIT_LOST
from twinbus.pipeline.audit.verdicts import Verdict

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from twinbus.client.pairing import Pairing, PairingEvent
    from twinbus.pipeline.audit.report import AuditResult

BEFORE: Final = 20
DURING: Final = 20
TIMEOUT_S: Final = 30.0


class Pair:
    """Two servers, and the journals of their clients."""

    def __init__(self, folder: Path) -> None:
        self.journals = folder / "journals"
        self.primary, self.secondary = ServerProcess(folder / "a"), ServerProcess(folder / "b", name="contoso-backup")
        for name in ("a", "b"):
            (folder / name).mkdir()

    @contextlib.asynccontextmanager
    async def paired(self) -> AsyncIterator[Pairing]:
        strings = (self.primary.connection_string, self.secondary.connection_string)
        async with (
            MessagingFactory.from_connection_string(strings[0], operation_timeout=8.0) as primary,
            MessagingFactory.from_connection_string(strings[1]) as secondary,
            NamespaceManager.from_connection_string(self.admin(self.secondary)) as manager,
        ):
            options = SendAvailabilityPairedNamespaceOptions(
                secondary_factory=secondary,
                secondary_namespace_manager=manager,
                failover_interval=0,
                ping_primary_interval=1.0,
                backlog_queue_count=2,
                primary_namespace_name="contoso",
                enable_syphon=True,
                journal_dir=self.journals,
            )
            async with await primary.pair_namespace(options) as pairing:
                yield pairing

    @staticmethod
    def admin(server: ServerProcess) -> str:
        return server.connection_string.replace(f":{server.amqp_port}", f":{server.http_port}")

    async def run_outage(self) -> None:
        async with NamespaceManager.from_connection_string(self.admin(self.primary)) as manager:
            await manager.create_queue("orders")
            await manager.create_topic("news", TopicDescription())
            for name in ("one", "other"):
                await manager.create_subscription("news", name, SubscriptionDescription())
        async with self.paired() as pairing:
            all_moved = event_when_moved(pairing, 2 * DURING)
            orders, news = pairing.primary.create_queue_client("orders"), pairing.primary.create_topic_client("news")
            for number in range(BEFORE):
                await orders.send(BrokeredMessage(message_id=f"order {number}"))
                await news.send(BrokeredMessage(message_id=f"news {number}"))
            await asyncio.to_thread(self.primary.kill)
            for number in range(BEFORE, BEFORE + DURING):
                await orders.send(BrokeredMessage(message_id=f"order {number}"))
                await news.send(BrokeredMessage(message_id=f"news {number}"))
            await asyncio.to_thread(self.primary.start)
            async with asyncio.timeout(TIMEOUT_S):
                await all_moved.wait()

    async def receive(self, path: str, count: int, *, keeps_journal: bool = True) -> list[object]:
        """Receive and delete `count` messages, with or without a journal, and return their ids."""
        journal = Journal(self.journals) if keeps_journal else None
        async with MessagingFactory.from_connection_string(self.primary.connection_string) as factory:
            if journal is not None:
                journal.attach(factory)
            receiver = factory.create_message_receiver(path, ReceiveMode.RECEIVE_AND_DELETE)
            messages = [await receiver.receive(TIMEOUT_S) for _ in range(count)]
        if journal is not None:
            await journal.close()
        return [message.message_id for message in messages if message is not None]

    async def send_without_journal(self, path: str, name: object) -> None:
        async with MessagingFactory.from_connection_string(self.primary.connection_string) as factory:
            await factory.create_queue_client(path).send(BrokeredMessage(message_id=name))

    def settings(self, report: Path) -> AuditSettings:
        return AuditSettings(
            journals=[self.journals],
            primary=NamespaceAccess(self.primary.connection_string),
            primary_admin=NamespaceAccess(self.admin(self.primary)),
            secondary=NamespaceAccess(self.secondary.connection_string),
            covered_entities=["*"],
            max_clock_skew_s=0.0,
            report_folder=str(report),
        )


def event_when_moved(pairing: Pairing, count: int) -> asyncio.Event:
    """Return an event that is set when the syphon has moved `count` messages back."""
    all_moved, moved = asyncio.Event(), itertools.count(1)

    def count_moved(event: PairingEvent) -> None:
        if event.kind is EventKind.MOVED and next(moved) == count:
            all_moved.set()

    pairing.on_event(count_moved)
    return all_moved


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    pair = Pair(tmp_path_factory.mktemp("pair"))
    servers = (pair.primary, pair.secondary)
    try:
        for server in servers:
            server.start()
        asyncio.run(pair.run_outage())
        yield pair
    finally:
        for server in servers:
            server.kill()


def counts(result: AuditResult, destination: str) -> dict[str, int]:
    return {verdict: count for (location, verdict), count in result.counts.items() if location == destination}


def test_x09_an_outage_loses_nothing_and_a_message_that_vanishes_later_is_named(
    pair: Pair, spark: SparkSession, tmp_path: Path
) -> None:
    everything = BEFORE + DURING
    before = run_audit(spark, pair.settings(tmp_path / "before"))
    assert before.exit_code == 0, before
    assert before.counts == {
        ("orders", "delivered"): everything,
        ("news/subscriptions/one", "delivered"): everything,
        ("news/subscriptions/other", "delivered"): everything,
    }
    assert sum(durations.count for durations in before.parked_durations if durations.destination == "orders") == DURING
    assert all(0 < durations.median_ms <= durations.max_ms < TIMEOUT_S * 1_000 for durations in before.parked_durations)

    asyncio.run(pair.receive("orders", 5))
    (vanished,) = asyncio.run(pair.receive("orders", 1, keeps_journal=False))
    asyncio.run(pair.send_without_journal("orders", "order 3"))
    asyncio.run(pair.receive("orders", everything - 6))
    after = run_audit(spark, pair.settings(tmp_path / "after"))
    assert counts(after, "orders") == {"delivered": everything - 1, "lost": 1}
    assert after.exit_code == EXIT_LOST
    (lost,) = after.lost
    assert (lost.message_id, lost.destination, lost.sent_count, lost.arrived_count) == (vanished, "orders", 1, 0)
    (duplicated,) = after.duplicated
    assert (
        duplicated.message_id,
        duplicated.sent_count,
        duplicated.arrived_count,
        len(duplicated.sequence_numbers),
    ) == (
        "order 3",
        1,
        2,
        2,
    )
    assert after.count(Verdict.UNKNOWN) == 0
