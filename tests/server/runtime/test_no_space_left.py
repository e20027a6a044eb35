"""A write without space left closes its store; clients and `/health` get the reason until there is space again."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
from contextlib import closing
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.server_process import run_server, wait_until
from tests.support.small_disk import fill_disk, small_disk
from twinbus.broker.namespace import Namespace
from twinbus.client import NO_RETRY, BrokeredMessage, MessagingFactory
from twinbus.client.management import NamespaceManager
from twinbus.model.errors import DiskFull
from twinbus.server.runtime.disk_space import OUT_OF_SPACE_REASON, low_space_reason
from twinbus.server.runtime.stores import StoreManager
from twinbus.testing import in_virtual_time
from twinbus.testing.clock import LoopClock
from twinbus.testing.disks import LoopDisks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.support.server_process import ServerProcess
    from twinbus.broker.commit_log import CommitLog

BODY = bytes(200_000)
"""Ten of these bodies exceed the space that is left."""


def health(server: ServerProcess) -> tuple[int, dict[str, Any]]:
    with closing(http.client.HTTPConnection(server.host, server.http_port, timeout=20)) as connection:
        connection.request("GET", "/health")
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())


async def test_a_store_without_space_left_is_closed_and_opens_again_with_free_space(tmp_path: Path) -> None:
    with (
        small_disk(tmp_path / "small", 24) as disk,
        run_server(tmp_path, "--stores=1", f"--store-dir={disk}", "--min-free=0") as server,
    ):
        queue = server.create_queue()
        async with MessagingFactory.from_connection_string(server.connection_string, retry_policy=NO_RETRY) as factory:
            sender = factory.create_message_sender(queue)
            await sender.send(BrokeredMessage("accepted"))
            filler = fill_disk(disk, leave_mebibytes=1)
            with pytest.raises(DiskFull) as caught:
                await asyncio.gather(*[sender.send(BrokeredMessage(BODY)) for _ in range(10)])
            assert str(caught.value) == f"store 0 is unavailable: {OUT_OF_SPACE_REASON}"
            assert health(server) == (
                503,
                {
                    "status": "degraded",
                    "reason": f"store 0: {OUT_OF_SPACE_REASON}",
                    "stores": [
                        {"name": "0", "is_available": False, "takes_messages": False, "reason": OUT_OF_SPACE_REASON}
                    ],
                },
            )
            filler.unlink()
            wait_until(lambda: health(server)[1]["status"] == "ok")
        async with MessagingFactory.from_connection_string(server.connection_string) as patient:
            await patient.create_message_sender(queue).send(BrokeredMessage("after"))
            message = await patient.create_message_receiver(queue).receive()
            assert message is not None
            assert message.body == b"accepted"


class FailingDisks(LoopDisks):
    """Disks whose probe result a test chooses."""

    problem: str | None = "its disk does not work: No space left on device"

    async def find_disk_problem(self, store_number: int) -> str | None:
        assert store_number == 0
        return self.problem


@contextlib.asynccontextmanager
async def store_on_failing_disks(min_free_bytes: int) -> AsyncIterator[tuple[FailingDisks, CommitLog]]:
    """A store on failing disks."""
    loop = asyncio.get_running_loop()
    disks = FailingDisks(1, loop)
    namespace = Namespace(
        clock=LoopClock(),
        random=Random(0),
        call_at_turn_end=loop.call_soon,
        on_failed=lambda commit_log: stores.reopen(commit_log),  # noqa: PLW0108  # assigned below
    )
    stores = StoreManager(namespace, disks, min_free_bytes=min_free_bytes)
    await stores.open()
    yield disks, namespace.commit_log(0)
    await stores.close()


def state(commit_log: CommitLog) -> tuple[bool, str | None]:
    """Whether the store is available, and why it takes no messages."""
    return commit_log.unavailable_reason is None, commit_log.disk_full_reason


@in_virtual_time
async def test_a_store_that_stays_closed_for_another_reason_does_not_report_a_full_disk() -> None:
    async with store_on_failing_disks(min_free_bytes=0) as (disks, commit_log):
        commit_log.fail("IO error: No space left on device: while appending to 000005.log")
        assert state(commit_log) == (False, OUT_OF_SPACE_REASON)
        await asyncio.sleep(60)
        assert state(commit_log) == (False, OUT_OF_SPACE_REASON)
        disks.problem = "its disk does not work: Input/output error"
        await asyncio.sleep(60)
        assert state(commit_log) == (False, None)
        disks.problem = None
        await asyncio.sleep(60)
        assert state(commit_log) == (True, None)


@in_virtual_time
async def test_a_store_that_fails_with_little_space_does_not_report_a_full_disk() -> None:
    async with store_on_failing_disks(min_free_bytes=2**30) as (disks, commit_log):
        disks.fill()
        await asyncio.sleep(60)
        assert state(commit_log) == (True, low_space_reason(2**30))
        disks.problem = "its disk does not work: Input/output error"
        commit_log.fail("IO error: Input/output error: while appending to 000005.log")
        await asyncio.sleep(60)
        assert state(commit_log) == (False, None)
        disks.problem = None
        await asyncio.sleep(60)
        assert state(commit_log) == (True, low_space_reason(2**30))


async def test_creating_a_queue_without_space_left_raises_disk_full_and_changes_nothing(tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", 24) as disk, run_server(disk, "--stores=1", "--min-free=0") as server:
        connection_string = server.admin_connection_string
        async with NamespaceManager.from_connection_string(connection_string, ca_file=server.ca_file) as manager:
            filler = fill_disk(disk, leave_mebibytes=0)
            with pytest.raises(DiskFull, match=r"catalogue\.db cannot be written: .*Free space on that disk"):
                await manager.create_queue("invoices")
            assert not await manager.queue_exists("invoices")
            filler.unlink()
            await manager.create_queue("invoices")
