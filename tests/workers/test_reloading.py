"""SIGHUP and `twinbus key` reach every worker before they are done; connections stay up."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest

from tests.keys.commands import done, secret
from tests.keys.reloadable import FIRST_SECRET, ReloadableCrew, reloadable
from tests.plain.raw import raw
from tests.workers.test_revoked_keys import worker_of
from twinbus.amqp.sasl import Credentials

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.plain.raw import Raw

WITHIN_S = 1.0
UNAUTHORIZED = "amqp:unauthorized-access"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReloadableCrew]:
    crew = ReloadableCrew(tmp_path_factory.mktemp("reloading"))
    with reloadable(crew):
        yield crew


async def connected(server: ReloadableCrew, stack: AsyncExitStack, name: str, shown: str) -> dict[int, Raw]:
    """A client at each worker."""
    found: dict[int, Raw] = {}
    while len(found) < 2:
        client = await stack.enter_async_context(raw(server, Credentials.plain(name, shown)))
        found.setdefault(worker_of(server, client), client)
    return found


async def test_a_key_is_revoked_at_every_worker_when_the_command_returns(server: ReloadableCrew) -> None:
    async with AsyncExitStack() as stack:
        await asyncio.to_thread(done, server.data, "add", "worker-key", "--rights", "Send")
        shown = await asyncio.to_thread(secret, server.data, "worker-key")
        clients = await connected(server, stack, "worker-key", shown)
        links = {number: await client.attach_sender("orders") for number, client in clients.items()}
        await asyncio.to_thread(done, server.data, "rotate", "worker-key")
        assert all(link.is_attached for link in links.values())
        told = await asyncio.to_thread(done, server.data, "revoke", "worker-key")
        assert f"(process {server.pid})" in told
        async with asyncio.timeout(WITHIN_S):
            for number, client in clients.items():
                assert await client.detached(links[number]) == UNAUTHORIZED
    token = server.token("", key=shown, key_name="worker-key")
    with server.connected_to_each() as connections:
        for connection in connections.values():
            connection.request("POST", "/orders/messages", "x", {"Authorization": token})
            answer = connection.getresponse()
            answer.read()
            assert answer.status == 401


def test_a_worker_that_is_started_later_has_the_keys_of_now(server: ReloadableCrew) -> None:
    done(server.data, "add", "late", "--rights", "Send")
    shown = secret(server.data, "late")
    pid = server.strike(0, signal.SIGKILL)
    server.wait_for_another(0, pid)
    server.wait_until_well()
    token = server.token("", key=shown, key_name="late")
    with server.connected_to_each() as connections:
        for connection in connections.values():
            connection.request("POST", "/orders/messages", "x", {"Authorization": token})
            answer = connection.getresponse()
            answer.read()
            assert answer.status == 201
    done(server.data, "revoke", "late")


async def test_the_supervisor_passes_certificate_and_log_level_on(server: ReloadableCrew) -> None:
    pids = server.workers()
    for pid in pids.values():
        os.kill(pid, signal.SIGHUP)  # as a terminal does to all of its processes
    server.configure(log_level="debug")
    server.show_certificate("two")
    assert " debug " not in server.log
    await asyncio.to_thread(server.reload)
    async with AsyncExitStack() as stack:
        await connected(server, stack, "app", FIRST_SECRET)
    for number in pids:
        assert any(f"worker={number}" in line for line in server.log.splitlines() if " debug " in line)
    assert shown(server) == {"two"}
    server.show_certificate("three")
    (server.folder / "server.key").write_text("nothing of the kind")
    assert "server.key" in await asyncio.to_thread(server.fail_to_reload)
    assert shown(server) == {"two"}
    assert server.workers() == pids


def shown(server: ReloadableCrew) -> set[str]:
    """The certificates that new connections get, at whichever worker."""
    return {server.shown(port) for port in (server.https_port, server.amqps_port) for _ in range(10)}
