"""The journal of a factory without pairing records its sends and settlements, here with a real server."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.in_process_server import run_server_in_process
from twinbus.client import BrokeredMessage, MessagingFactory, ReceiveMode
from twinbus.client.errors import EntityNotFound
from twinbus.client.journal import Journal
from twinbus.client.journal_file import SUFFIX, read

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from tests.support.in_process_server import InProcessServer
    from twinbus.client.receiver import MessageReceiver

LATER = dt.datetime(2100, 1, 1, tzinfo=dt.UTC)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessServer]:
    with run_server_in_process(tmp_path_factory.mktemp("server")) as running_server:
        yield running_server


@contextlib.asynccontextmanager
async def journaled_factory(server: InProcessServer, folder: Path) -> AsyncIterator[MessagingFactory]:
    """A factory with a journal."""
    journal = Journal(folder)
    async with MessagingFactory.from_connection_string(server.connection_string) as factory:
        journal.attach(factory)
        yield factory
    await journal.close()


def rows_in(folder: Path, kind: str) -> list[dict[str, Any]]:
    rows = [record for path in sorted(folder.glob(f"*{SUFFIX}")) for record in read(path).to_pylist()]
    return [row for row in rows if row["kind"] == kind]


def outcomes_in(folder: Path, kind: str) -> list[tuple[object, str]]:
    return [(row["message_id"], row["outcome"]) for row in rows_in(folder, kind)]


async def receive_next(receiver: MessageReceiver) -> BrokeredMessage:
    message = await receiver.receive(20)
    assert message is not None
    return message


def test_each_settlement_is_written_with_its_sequence_number(server: InProcessServer, tmp_path: Path) -> None:
    queue = server.create_queue()

    async def scenario() -> None:
        async with journaled_factory(server, tmp_path) as factory:
            client = factory.create_queue_client(queue)
            for name in ("a", "b", "c", "d", "e"):
                await client.send(BrokeredMessage(message_id=name))
            receiver = factory.create_message_receiver(queue, prefetch=10)
            a, b, c, d, e = [await receive_next(receiver) for _ in range(5)]
            await receiver.complete(a)
            await receiver.defer(b)
            await receiver.dead_letter(c, "broken")
            await receiver.abandon(d)
            await receiver.release(e)
            await receiver.close()
            deleting_receiver = factory.create_message_receiver(queue, ReceiveMode.RECEIVE_AND_DELETE)
            for _ in range(2):
                await receive_next(deleting_receiver)
            await deleting_receiver.receive_deferred(b.sequence_number)

    asyncio.run(scenario())
    settled = outcomes_in(tmp_path, "settlement")
    assert settled[:5] == [
        ("a", "completed"),
        ("b", "deferred"),
        ("c", "dead-lettered"),
        ("d", "abandoned"),
        ("e", "released"),
    ]
    assert sorted(settled[5:], key=str) == [(name, "received and deleted") for name in ("b", "d", "e")]
    assert [row["sequence_number"] for row in rows_in(tmp_path, "settlement")][:5] == [1, 2, 3, 4, 5]
    assert [outcome for _, outcome in outcomes_in(tmp_path, "send")] == ["sent"] * 5


def test_a_failed_settlement_is_written_with_its_reason(server: InProcessServer, tmp_path: Path) -> None:
    queue = server.create_queue()

    async def scenario() -> None:
        async with journaled_factory(server, tmp_path) as factory:
            client = factory.create_queue_client(queue)
            await client.send(BrokeredMessage(message_id="a"))
            message = await receive_next(client.receiver)
            await client.complete(message)
            with pytest.raises(Exception, match="has no lock"):
                await client.complete(message)

    asyncio.run(scenario())
    assert outcomes_in(tmp_path, "settlement") == [("a", "completed"), ("a", "not completed")]
    assert rows_in(tmp_path, "settlement")[1]["reason"].startswith("MessageNotHeld: ")


def test_browsing_writes_no_settlements(server: InProcessServer, tmp_path: Path) -> None:
    queue = server.create_queue()

    async def scenario() -> None:
        async with journaled_factory(server, tmp_path) as factory:
            await factory.create_queue_client(queue).send(BrokeredMessage(message_id="a"))
            async with factory.create_message_browser(queue) as browser:
                assert (await receive_next(browser)).message_id == "a"

    asyncio.run(scenario())
    assert rows_in(tmp_path, "settlement") == []


def test_a_scheduled_message_and_its_cancellation_have_the_same_sequence_number(
    server: InProcessServer, tmp_path: Path
) -> None:
    queue = server.create_queue()

    async def scenario() -> None:
        async with journaled_factory(server, tmp_path) as factory:
            client = factory.create_queue_client(queue)
            await client.cancel_scheduled(await client.schedule(BrokeredMessage(message_id="a"), LATER))

    asyncio.run(scenario())
    (scheduled,), (cancelled,) = rows_in(tmp_path, "send"), rows_in(tmp_path, "settlement")
    assert (scheduled["message_id"], scheduled["outcome"]) == ("a", "scheduled")
    assert cancelled["outcome"] == "cancelled"
    assert scheduled["sequence_number"] == cancelled["sequence_number"]


def test_sends_in_a_transaction_name_it_and_its_outcome_is_written(server: InProcessServer, tmp_path: Path) -> None:
    queue = server.create_queue()

    async def scenario() -> None:
        async with journaled_factory(server, tmp_path) as factory:
            client = factory.create_queue_client(queue)
            async with factory.transaction() as transaction:
                await client.send(BrokeredMessage(message_id="a"), transaction=transaction)
            with contextlib.suppress(ZeroDivisionError):
                async with factory.transaction() as transaction:
                    await client.send(BrokeredMessage(message_id="b"), transaction=transaction)
                    raise ZeroDivisionError

    asyncio.run(scenario())
    outcomes = {row["reason"]: row["outcome"] for row in rows_in(tmp_path, "transaction")}
    assert [(row["message_id"], outcomes[row["reason"]]) for row in rows_in(tmp_path, "send")] == [
        ("a", "committed"),
        ("b", "rolled back"),
    ]


def test_a_refused_send_is_written_as_failed(server: InProcessServer, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with journaled_factory(server, tmp_path) as factory:
            with pytest.raises(EntityNotFound):
                await factory.create_queue_client("nowhere").send(BrokeredMessage(message_id="a"))

    asyncio.run(scenario())
    (row,) = rows_in(tmp_path, "send")
    assert (row["message_id"], row["entity"], row["outcome"]) == ("a", "nowhere", "failed")
    assert row["reason"].startswith("EntityNotFound: ")


def test_the_opening_of_a_receiver_is_written_before_its_settlements(server: InProcessServer, tmp_path: Path) -> None:
    queue = server.create_queue()

    async def scenario() -> None:
        async with journaled_factory(server, tmp_path) as factory:
            client = factory.create_queue_client(queue)
            await client.send(BrokeredMessage(message_id="a"))
            await client.receiver.peek()
            await client.complete(await receive_next(client.receiver))
            browser = factory.create_message_browser(queue)
            await browser.open()
            await browser.close()

    asyncio.run(scenario())
    rows = [record for path in sorted(tmp_path.glob(f"*{SUFFIX}")) for record in read(path).to_pylist()]
    written = [
        (row["kind"], row["entity"], row["outcome"]) for row in rows if row["kind"] in ("receiver", "settlement")
    ]
    assert written == [("receiver", queue, "opened"), ("settlement", queue, "completed")]


def test_sends_are_written_with_the_time_to_live_and_settlements_with_the_enqueued_time(
    server: InProcessServer, tmp_path: Path
) -> None:
    queue = server.create_queue()

    async def scenario() -> None:
        async with journaled_factory(server, tmp_path) as factory:
            client = factory.create_queue_client(queue)
            await client.send(BrokeredMessage(message_id="a", time_to_live=dt.timedelta(hours=1)))
            message = await receive_next(client.receiver)
            await client.complete(message)

    asyncio.run(scenario())
    (sent,), (settled,) = rows_in(tmp_path, "send"), rows_in(tmp_path, "settlement")
    assert (sent["time_to_live"], sent["enqueued"]) == (3_600_000, None)
    assert settled["time_to_live"] is None
    assert abs(settled["enqueued"] - sent["time"]) < dt.timedelta(minutes=1)


def test_bulk_settlements_are_written_with_their_count(server: InProcessServer, tmp_path: Path) -> None:
    queue = server.create_queue()

    async def scenario() -> None:
        async with journaled_factory(server, tmp_path) as factory:
            client = factory.create_queue_client(queue)
            for _ in range(3):
                await client.send(BrokeredMessage())
            assert await client.receiver.delete_batch(2) == 2
            async with factory.create_message_browser(queue, to_sequence_number=3) as browser:
                assert await browser.complete_up_to(3) == (1, 0)

    asyncio.run(scenario())
    written = [(row["outcome"], row["count"], row["message_id"]) for row in rows_in(tmp_path, "settlement")]
    assert written == [("deleted in bulk", 2, None), ("completed in bulk", 1, None)]
