"""One of two disks is full: `/health` names the store and the reason, and every client is told what to do.

Each worker has a store on a disk of its own; the second disk is a real, small file system.
"""

from __future__ import annotations

import datetime as dt
import http.client
import json
import os
import subprocess
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient as AsyncServiceBusClient
from azure.servicebus.exceptions import ServiceBusError

from tests.served import wait_until
from tests.small_disk import fill, small_disk
from tests.workers.crew import crew
from twinbus.client import NO_RETRY, BrokeredMessage, MessagingFactory
from twinbus.client.sync import MessagingFactory as SyncMessagingFactory
from twinbus.model.errors import DiskFull, FragmentUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.workers.crew import Crew

JAVASCRIPT_SDK = Path(__file__).parents[1] / "sdk_js"
REASON = (
    "its disk is full (less than 16 MiB free, the limit of --min-free): free space on that disk, or restart the server "
    "with a lower --min-free. Stored messages can be received and settled"
)
TEXT = f"store 1 takes no messages: {REASON}"
WELL = {"is_available": True, "takes_messages": True}


class Struck(NamedTuple):
    """A server of two workers: `full` is a queue on the full disk, `other` is on the other one, `both` on both."""

    server: Crew
    filler: Path
    other: str
    full: str
    both: str

    def health(self, path: str = "health") -> tuple[int, dict[str, object]]:
        with closing(http.client.HTTPConnection(self.server.host, self.server.http_port, timeout=20)) as connection:
            connection.request("GET", f"/{path}")
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())


@pytest.fixture(scope="module")
def struck(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Struck]:
    folder = tmp_path_factory.mktemp("disks")
    (folder / "roomy").mkdir()
    with (
        small_disk(folder / "small", 48) as small,
        crew(
            folder,
            "--stores=2",
            f"--store-dir={folder / 'roomy'}",
            f"--store-dir={small}",
            "--min-free=16MiB",
        ) as server,
    ):
        queues = server.make_queue(), server.make_queue(), server.make_queue(EnablePartitioning="true")
        server.send(queues[1], "stored before")
        found = Struck(server, fill(small, leave_mebibytes=8), *queues)
        with server.connected_to_each() as connections:
            for connection in connections.values():
                wait_until(partial(_knows, server, connection))
        yield found


def _knows(server: Crew, connection: http.client.HTTPConnection) -> bool:
    return "its disk is full" in server.ask_on(connection, "GET", "health", expected=200)


def test_health_names_the_store_whose_disk_is_full(struck: Struck) -> None:
    expected = {
        "status": "degraded",
        "reason": f"store 1: {REASON}",
        "stores": [
            {"name": "0", **WELL},
            {"name": "1", "is_available": True, "takes_messages": False, "reason": REASON},
        ],
    }
    with struck.server.connected_to_each() as connections:
        for connection in connections.values():
            connection.request("GET", "/health")
            answer = connection.getresponse()
            assert (answer.status, json.loads(answer.read())) == (200, expected)
    assert struck.health("health?for=send") == (200, expected)  # the other store takes messages


def test_plain_http_is_told(struck: Struck) -> None:
    with struck.server.connected_to_each() as connections:
        for connection in connections.values():
            answer = struck.server.ask_on(connection, "POST", f"{struck.full}/messages", "x", expected=503)
            assert f"<Detail>{TEXT}" in answer
            struck.server.send(struck.other, "x", connection)


def test_the_sdk_for_python_is_told(struck: Struck) -> None:
    with (
        ServiceBusClient.from_connection_string(struck.server.connection_string, retry_total=0) as client,
        client.get_queue_sender(struck.full) as sender,
        pytest.raises(ServiceBusError) as caught,
    ):
        sender.send_messages(ServiceBusMessage("x"))
    assert TEXT in str(caught.value)


async def test_the_aio_sdk_for_python_is_told(struck: Struck) -> None:
    client = AsyncServiceBusClient.from_connection_string(struck.server.connection_string, retry_total=0)
    async with client, client.get_queue_sender(struck.full) as sender:
        with pytest.raises(ServiceBusError) as caught:
            await sender.send_messages(ServiceBusMessage("x"))
    assert TEXT in str(caught.value)


def test_the_sdk_for_javascript_is_told(struck: Struck) -> None:
    program = """
        import { webcrypto } from "node:crypto";
        globalThis.crypto ??= webcrypto;
        const { ServiceBusClient } = await import("@azure/service-bus");
        const client = new ServiceBusClient(process.env.BUS, { retryOptions: { maxRetries: 0 } });
        await client.createSender(process.env.QUEUE).sendMessages({ body: "x" }).catch((error) =>
            console.log(JSON.stringify([error.name, error.code, error.message])));
        await client.close();
    """
    run = subprocess.run(
        ["node", "--input-type=module", "--eval", program],
        cwd=JAVASCRIPT_SDK,
        env=os.environ | {"BUS": struck.server.connection_string, "QUEUE": struck.full},
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=True,
    )
    name, code, message = json.loads(run.stdout)
    assert (name, code) == ("ServiceBusError", "GeneralError")
    assert TEXT in message


async def test_our_client_is_told_with_an_error_of_its_own(struck: Struck) -> None:
    given = struck.server.connection_string
    async with MessagingFactory.from_connection_string(given, retry_policy=NO_RETRY) as factory:
        sender = factory.create_message_sender(struck.full)
        with pytest.raises(DiskFull) as caught:
            await sender.send(BrokeredMessage("x"))
        with pytest.raises(DiskFull):
            await sender.schedule(BrokeredMessage("x"), dt.datetime.now(dt.UTC) + dt.timedelta(hours=1))
    assert str(caught.value) == TEXT


def test_our_blocking_client_is_told_with_an_error_of_its_own(struck: Struck) -> None:
    given = struck.server.connection_string
    with (
        SyncMessagingFactory.from_connection_string(given, retry_policy=NO_RETRY) as factory,
        pytest.raises(DiskFull) as caught,
    ):
        factory.create_message_sender(struck.full).send(BrokeredMessage("x"))
    assert str(caught.value) == TEXT


async def test_a_partitioned_queue_takes_messages_in_its_other_fragments(struck: Struck) -> None:
    given = struck.server.connection_string
    async with MessagingFactory.from_connection_string(given, retry_policy=NO_RETRY) as factory:
        sender = factory.create_message_sender(struck.both)
        for _ in range(16):
            await sender.send(BrokeredMessage("without a key"))
        with pytest.raises(FragmentUnavailable) as caught:  # noqa: PT012  # some keys lead to the other disk
            for number in range(100):
                await sender.send(BrokeredMessage("with a key", partition_key=f"key {number}"))
    assert caught.value.fragment is not None
    assert str(caught.value) == f"fragment {caught.value.fragment}: {TEXT}"


def test_stored_messages_are_received_and_with_space_again_all_is_well(struck: Struck) -> None:
    assert struck.server.take(struck.full) == "stored before"
    struck.filler.unlink()
    struck.server.wait_until_well()
    assert struck.health() == (200, {"status": "ok", "stores": [{"name": "0", **WELL}, {"name": "1", **WELL}]})
    struck.server.send(struck.full, "stored after")
    assert struck.server.take(struck.full) == "stored after"
