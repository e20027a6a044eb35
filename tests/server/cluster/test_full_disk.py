"""A full disk under one of two stores: `/health` names the store and the reason, and every client gets the same text.

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

from tests.support.multi_process_server import run_multi_process_server
from tests.support.server_process import wait_until
from tests.support.small_disk import fill_disk, small_disk
from twinbus.client import NO_RETRY, BrokeredMessage, MessagingFactory
from twinbus.client.sync import MessagingFactory as SyncMessagingFactory
from twinbus.model.errors import DiskFull, FragmentUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.multi_process_server import MultiProcessServer

JAVASCRIPT_SDK = Path(__file__).parents[2] / "sdk_js"
REASON = (
    "its disk is full (less than 16 MiB free, the limit of --min-free): free space on that disk, or restart the server "
    "with a lower --min-free. Stored messages can be received and settled"
)
TEXT = f"store 1 takes no messages: {REASON}"
HEALTHY = {"is_available": True, "takes_messages": True}


class FullDiskServer(NamedTuple):
    """A server of two workers: queue `full` is on the full disk, `other` on the other disk, `both` on both disks."""

    server: MultiProcessServer
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
def full_disk_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FullDiskServer]:
    folder = tmp_path_factory.mktemp("disks")
    (folder / "roomy").mkdir()
    with (
        small_disk(folder / "small", 48) as small,
        run_multi_process_server(
            folder,
            "--stores=2",
            f"--store-dir={folder / 'roomy'}",
            f"--store-dir={small}",
            "--min-free=16MiB",
        ) as server,
    ):
        queues = server.create_queue(), server.create_queue(), server.create_queue(EnablePartitioning="true")
        server.send(queues[1], "stored before")
        full = FullDiskServer(server, fill_disk(small, leave_mebibytes=8), *queues)
        with server.connect_to_each() as connections:
            for connection in connections.values():
                wait_until(partial(_reports_full_disk, server, connection))
        yield full


def _reports_full_disk(server: MultiProcessServer, connection: http.client.HTTPConnection) -> bool:
    return "its disk is full" in server.request_on(connection, "GET", "health", expected=200)


def test_health_names_the_store_whose_disk_is_full(full_disk_server: FullDiskServer) -> None:
    expected = {
        "status": "degraded",
        "reason": f"store 1: {REASON}",
        "stores": [
            {"name": "0", **HEALTHY},
            {"name": "1", "is_available": True, "takes_messages": False, "reason": REASON},
        ],
    }
    with full_disk_server.server.connect_to_each() as connections:
        for connection in connections.values():
            connection.request("GET", "/health")
            answer = connection.getresponse()
            assert (answer.status, json.loads(answer.read())) == (200, expected)
    assert full_disk_server.health("health?for=send") == (200, expected)  # the other store takes messages


def test_an_http_send_gets_the_reason(full_disk_server: FullDiskServer) -> None:
    with full_disk_server.server.connect_to_each() as connections:
        for connection in connections.values():
            answer = full_disk_server.server.request_on(
                connection, "POST", f"{full_disk_server.full}/messages", "x", expected=503
            )
            assert f"<Detail>{TEXT}" in answer
            full_disk_server.server.send(full_disk_server.other, "x", connection)


def test_the_sdk_for_python_gets_the_reason(full_disk_server: FullDiskServer) -> None:
    with (
        ServiceBusClient.from_connection_string(full_disk_server.server.connection_string, retry_total=0) as client,
        client.get_queue_sender(full_disk_server.full) as sender,
        pytest.raises(ServiceBusError) as caught,
    ):
        sender.send_messages(ServiceBusMessage("x"))
    assert TEXT in str(caught.value)


async def test_the_async_sdk_for_python_gets_the_reason(full_disk_server: FullDiskServer) -> None:
    client = AsyncServiceBusClient.from_connection_string(full_disk_server.server.connection_string, retry_total=0)
    async with client, client.get_queue_sender(full_disk_server.full) as sender:
        with pytest.raises(ServiceBusError) as caught:
            await sender.send_messages(ServiceBusMessage("x"))
    assert TEXT in str(caught.value)


def test_the_sdk_for_javascript_gets_the_reason(full_disk_server: FullDiskServer) -> None:
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
        env=os.environ | {"BUS": full_disk_server.server.connection_string, "QUEUE": full_disk_server.full},
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=True,
    )
    name, code, message = json.loads(run.stdout)
    assert (name, code) == ("ServiceBusError", "GeneralError")
    assert TEXT in message


async def test_our_client_raises_disk_full(full_disk_server: FullDiskServer) -> None:
    address = full_disk_server.server.connection_string
    async with MessagingFactory.from_connection_string(address, retry_policy=NO_RETRY) as factory:
        sender = factory.create_message_sender(full_disk_server.full)
        with pytest.raises(DiskFull) as caught:
            await sender.send(BrokeredMessage("x"))
        with pytest.raises(DiskFull):
            await sender.schedule(BrokeredMessage("x"), dt.datetime.now(dt.UTC) + dt.timedelta(hours=1))
    assert str(caught.value) == TEXT


def test_our_blocking_client_raises_disk_full(full_disk_server: FullDiskServer) -> None:
    address = full_disk_server.server.connection_string
    with (
        SyncMessagingFactory.from_connection_string(address, retry_policy=NO_RETRY) as factory,
        pytest.raises(DiskFull) as caught,
    ):
        factory.create_message_sender(full_disk_server.full).send(BrokeredMessage("x"))
    assert str(caught.value) == TEXT


async def test_a_partitioned_queue_accepts_messages_in_its_other_fragments(full_disk_server: FullDiskServer) -> None:
    address = full_disk_server.server.connection_string
    async with MessagingFactory.from_connection_string(address, retry_policy=NO_RETRY) as factory:
        sender = factory.create_message_sender(full_disk_server.both)
        for _ in range(16):
            await sender.send(BrokeredMessage("without a key"))
        with pytest.raises(FragmentUnavailable) as caught:  # noqa: PT012  # some keys lead to the other disk
            for number in range(100):
                await sender.send(BrokeredMessage("with a key", partition_key=f"key {number}"))
    assert caught.value.fragment is not None
    assert str(caught.value) == f"fragment {caught.value.fragment}: {TEXT}"


def test_stored_messages_are_received_and_sends_work_again_once_space_is_free(full_disk_server: FullDiskServer) -> None:
    assert full_disk_server.server.receive_and_delete(full_disk_server.full) == "stored before"
    full_disk_server.filler.unlink()
    full_disk_server.server.wait_until_healthy()
    assert full_disk_server.health() == (
        200,
        {"status": "ok", "stores": [{"name": "0", **HEALTHY}, {"name": "1", **HEALTHY}]},
    )
    full_disk_server.server.send(full_disk_server.full, "stored after")
    assert full_disk_server.server.receive_and_delete(full_disk_server.full) == "stored after"
