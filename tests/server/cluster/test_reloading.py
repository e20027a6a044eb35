"""SIGHUP and `twinbus key` take effect in every worker before they return; connections stay open."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest

from tests.server.auth.key_commands import run_key_command_ok, secret
from tests.server.cluster.test_revoked_keys import worker_of
from tests.server.runtime.reloadable_server import FIRST_SECRET, ReloadableMultiProcessServer, run_reloadable
from tests.support.raw_client import connect_raw
from twinbus.amqp.sasl import Credentials

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.raw_client import RawClient

WITHIN_S = 1.0
UNAUTHORIZED = "amqp:unauthorized-access"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReloadableMultiProcessServer]:
    reloadable = ReloadableMultiProcessServer(tmp_path_factory.mktemp("reloading"))
    with run_reloadable(reloadable):
        yield reloadable


async def connected(
    server: ReloadableMultiProcessServer, stack: AsyncExitStack, name: str, password: str
) -> dict[int, RawClient]:
    """Return a client connected to each worker."""
    clients: dict[int, RawClient] = {}
    while len(clients) < 2:
        client = await stack.enter_async_context(connect_raw(server, Credentials.plain(name, password)))
        clients.setdefault(worker_of(server, client), client)
    return clients


async def test_a_key_is_revoked_at_every_worker_when_the_command_returns(server: ReloadableMultiProcessServer) -> None:
    async with AsyncExitStack() as stack:
        await asyncio.to_thread(run_key_command_ok, server.data, "add", "worker-key", "--rights", "Send")
        key = await asyncio.to_thread(secret, server.data, "worker-key")
        clients = await connected(server, stack, "worker-key", key)
        links = {number: await client.attach_sender("orders") for number, client in clients.items()}
        await asyncio.to_thread(run_key_command_ok, server.data, "rotate", "worker-key")
        assert all(link.is_attached for link in links.values())
        output = await asyncio.to_thread(run_key_command_ok, server.data, "revoke", "worker-key")
        assert f"(process {server.pid})" in output
        async with asyncio.timeout(WITHIN_S):
            for number, client in clients.items():
                assert await client.detach_condition(links[number]) == UNAUTHORIZED
    token = server.token("", key=key, key_name="worker-key")
    with server.connect_to_each() as connections:
        for connection in connections.values():
            connection.request("POST", "/orders/messages", "x", {"Authorization": token})
            answer = connection.getresponse()
            answer.read()
            assert answer.status == 401


def test_a_restarted_worker_has_the_current_keys(server: ReloadableMultiProcessServer) -> None:
    run_key_command_ok(server.data, "add", "late", "--rights", "Send")
    key = secret(server.data, "late")
    pid = server.signal_worker(0, signal.SIGKILL)
    server.wait_for_replacement(0, pid)
    server.wait_until_healthy()
    token = server.token("", key=key, key_name="late")
    with server.connect_to_each() as connections:
        for connection in connections.values():
            connection.request("POST", "/orders/messages", "x", {"Authorization": token})
            answer = connection.getresponse()
            answer.read()
            assert answer.status == 201
    run_key_command_ok(server.data, "revoke", "late")


async def test_a_reload_changes_the_certificate_and_log_level_of_every_worker(
    server: ReloadableMultiProcessServer,
) -> None:
    pids = server.workers()
    for pid in pids.values():
        os.kill(pid, signal.SIGHUP)  # as a terminal does to all of its processes
    server.configure(log_level="debug")
    server.install_certificate("two")
    assert " debug " not in server.log
    await asyncio.to_thread(server.reload)
    async with AsyncExitStack() as stack:
        await connected(server, stack, "app", FIRST_SECRET)
    for number in pids:
        assert any(f"worker={number}" in line for line in server.log.splitlines() if " debug " in line)
    assert served_certificates(server) == {"two"}
    server.install_certificate("three")
    (server.folder / "server.key").write_text("nothing of the kind")
    assert "server.key" in await asyncio.to_thread(server.reload_expecting_failure)
    assert served_certificates(server) == {"two"}
    assert server.workers() == pids


def served_certificates(server: ReloadableMultiProcessServer) -> set[str]:
    """The certificates that new connections get, from any worker."""
    ports = server.https_port, server.amqps_port, server.amqp_port
    return {server.served_certificate(port) for port in ports for _ in range(10)}
