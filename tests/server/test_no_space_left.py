"""A write that finds no space left closes its store; clients and `/health` are told why until there is space again."""

from __future__ import annotations

import asyncio
import http.client
import json
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from tests.served import started, wait_until
from tests.small_disk import fill, small_disk
from twinbus.client import NO_RETRY, BrokeredMessage, MessagingFactory
from twinbus.client.management import NamespaceManager
from twinbus.model.errors import DiskFull
from twinbus.server.disk import OUT_OF_SPACE

if TYPE_CHECKING:
    from pathlib import Path

    from tests.served import Served

BODY = bytes(200_000)
"""Ten of them are more than the space that is left."""


def health(server: Served) -> tuple[int, dict[str, Any]]:
    with closing(http.client.HTTPConnection(server.host, server.http_port, timeout=20)) as connection:
        connection.request("GET", "/health")
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())


async def test_a_store_that_finds_no_space_left_says_so_and_opens_again_when_there_is_some(tmp_path: Path) -> None:
    with (
        small_disk(tmp_path / "small", 24) as disk,
        started(tmp_path, "--stores=1", f"--store-dir={disk}", "--min-free=0") as server,
    ):
        queue = server.make_queue()
        async with MessagingFactory.from_connection_string(server.connection_string, retry_policy=NO_RETRY) as factory:
            sender = factory.create_message_sender(queue)
            await sender.send(BrokeredMessage("accepted"))
            filler = fill(disk, leave_mebibytes=1)
            with pytest.raises(DiskFull) as caught:
                await asyncio.gather(*[sender.send(BrokeredMessage(BODY)) for _ in range(10)])
            assert str(caught.value) == f"store 0 is unavailable: {OUT_OF_SPACE}"
            assert health(server) == (
                503,
                {
                    "status": "degraded",
                    "reason": f"store 0: {OUT_OF_SPACE}",
                    "stores": [{"name": "0", "is_available": False, "takes_messages": False, "reason": OUT_OF_SPACE}],
                },
            )
            filler.unlink()
            wait_until(lambda: health(server)[1]["status"] == "ok")
        async with MessagingFactory.from_connection_string(server.connection_string) as patient:
            await patient.create_message_sender(queue).send(BrokeredMessage("after"))
            message = await patient.create_message_receiver(queue).receive()
            assert message is not None
            assert message.body == b"accepted"


async def test_creating_a_queue_without_space_left_raises_disk_full_and_changes_nothing(tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", 24) as disk, started(disk, "--stores=1", "--min-free=0") as server:
        string = server.admin_connection_string
        async with NamespaceManager.from_connection_string(string, ca_file=server.ca_file) as manager:
            filler = fill(disk, leave_mebibytes=0)
            with pytest.raises(DiskFull, match=r"catalogue\.db cannot be written: .*Free space on that disk"):
                await manager.create_queue("invoices")
            assert not await manager.queue_exists("invoices")
            filler.unlink()
            await manager.create_queue("invoices")
