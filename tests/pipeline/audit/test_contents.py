"""Reading a location returns its active, locked, deferred, scheduled, dead-lettered and parked messages."""

from __future__ import annotations

import asyncio
import datetime as dt
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.in_process_server import run_server_in_process
from twinbus.client import BrokeredMessage, MessagingFactory
from twinbus.client.pairing.backlog import rewriting
from twinbus.pipeline.audit import contents
from twinbus.pipeline.audit.contents import NamespaceAccess, read_location

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.in_process_server import InProcessServer

LATER = dt.datetime(2100, 1, 1, tzinfo=dt.UTC)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessServer]:
    with run_server_in_process(tmp_path_factory.mktemp("server")) as served:
        yield served


def rows_of(server: InProcessServer, location: str) -> list[dict[str, Any]]:
    return [
        row for page in read_location(NamespaceAccess(server.connection_string), location) for row in page.to_pylist()
    ]


def test_messages_of_every_state_are_read(server: InProcessServer) -> None:
    queue, names = server.create_queue(), ("active", "locked", "deferred", "dead")

    async def scenario() -> list[dict[str, Any]]:
        async with MessagingFactory.from_connection_string(server.connection_string) as factory:
            client = factory.create_queue_client(queue)
            for name in names:
                await client.send(BrokeredMessage(b"x" * 1_000, message_id=name, session_id="s"))
            await client.sender.schedule(BrokeredMessage(message_id="scheduled"), LATER)
            locked: dict[str, BrokeredMessage] = {}
            while len(locked) < len(names):
                locked |= {
                    str(message.message_id): message for message in await client.receiver.receive_batch(len(names))
                }
            await client.receiver.abandon(locked["active"])
            await client.receiver.defer(locked["deferred"])
            await client.receiver.dead_letter(locked["dead"], "broken")
            return await asyncio.to_thread(rows_of, server, queue)

    rows = asyncio.run(scenario())
    states = {(row["message_id"], row["state"]) for row in rows}
    assert states == {("active", "active"), ("locked", "active"), ("deferred", "deferred"), ("scheduled", "scheduled")}
    assert {row["session_id"] for row in rows if row["message_id"] != "scheduled"} == {"s"}
    assert all(row["place"] == queue and row["number"] and row["enqueued"] for row in rows)
    (dead,) = rows_of(server, f"{queue}/$deadletterqueue")
    assert (dead["message_id"], dead["error"]) == ("dead", None)


def test_a_parked_message_is_read_with_its_original_entity_and_session(server: InProcessServer) -> None:
    queue = server.create_queue()

    async def scenario() -> None:
        async with MessagingFactory.from_connection_string(server.connection_string) as factory:
            message = BrokeredMessage(message_id="one", session_id="s")
            parked = rewriting.park(message.encode(0), 0, "Orders", is_possible_duplicate=False)
            await factory.create_message_sender(queue).deliver(parked)

    asyncio.run(scenario())
    (row,) = rows_of(server, queue)
    assert (row["entity"], row["message_id"], row["session_id"]) == ("orders", "one", "s")


@pytest.mark.parametrize("is_partitioned", [False, True])
def test_several_pages_are_read_without_duplicates(
    server: InProcessServer, monkeypatch: pytest.MonkeyPatch, *, is_partitioned: bool
) -> None:
    monkeypatch.setattr(contents, "PAGE_SIZE", 10)
    queue = server.create_queue(EnablePartitioning=f"{is_partitioned}".lower())
    names = [f"{number}" for number in range(95)]

    async def scenario() -> None:
        async with MessagingFactory.from_connection_string(server.connection_string) as factory:
            client = factory.create_queue_client(queue)
            await asyncio.gather(*[client.send(BrokeredMessage(message_id=name)) for name in names])

    asyncio.run(scenario())
    assert sorted(row["message_id"] for row in rows_of(server, queue)) == sorted(names)


def test_an_empty_location_has_no_rows(server: InProcessServer) -> None:
    assert rows_of(server, server.create_queue()) == []


def test_a_missing_location_has_an_error_row(server: InProcessServer) -> None:
    (row,) = rows_of(server, "nowhere")
    assert row["place"] == "nowhere"
    assert row["message_id"] is None
    assert "nowhere" in row["error"]


def test_a_key_is_not_shown(server: InProcessServer, tmp_path: Path) -> None:
    assert server.key not in repr(NamespaceAccess(server.connection_string, (str(tmp_path),)))
