"""SIGHUP reloads keys, certificate and log level; connections stay open, and an invalid file changes nothing."""

from __future__ import annotations

import asyncio
import http.client
import json
from typing import TYPE_CHECKING

import pytest

from tests.server.auth.key_commands import run_key_command_ok
from tests.server.runtime.reloadable_server import FIRST_SECRET, ReloadableServer, run_reloadable
from tests.support.raw_client import connect_raw
from tests.support.server_process import TIMEOUT_S, wait_until
from twinbus.amqp.message import data
from twinbus.amqp.sasl import Credentials
from twinbus.client import BrokeredMessage, MessagingFactory
from twinbus.model.errors import Unauthorized

if TYPE_CHECKING:
    from collections.abc import Iterator

WITHIN_S = 1.0
UNAUTHORIZED = "amqp:unauthorized-access"


@pytest.fixture(scope="module")
def running_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReloadableServer]:
    with run_reloadable(ReloadableServer(tmp_path_factory.mktemp("reloading"))) as server:
        yield server


@pytest.fixture
def server(running_server: ReloadableServer) -> Iterator[ReloadableServer]:
    yield running_server
    running_server.install_certificate("one")
    running_server.configure()
    running_server.reload()
    running_server.check_log()


async def test_the_log_level_is_reloaded_and_connections_stay_open(server: ReloadableServer) -> None:
    async with connect_raw(server, Credentials.plain("app", FIRST_SECRET)) as client:
        link = await client.attach_sender("orders")
        assert " debug " not in server.log
        server.configure(log_level="debug")
        await asyncio.to_thread(server.reload)
        async with connect_raw(server, Credentials.plain("app", FIRST_SECRET)):
            await asyncio.to_thread(wait_until, lambda: " debug " in server.log)
        assert await client.send(link, data(b"x")) is None
    assert server.message_counts("orders") == (1, 0)


def test_new_connections_get_the_new_certificate_and_old_ones_stay_open(server: ReloadableServer) -> None:
    old = http.client.HTTPSConnection(server.host, server.https_port, timeout=TIMEOUT_S, context=server.trusting("one"))
    old.request("GET", "/health")
    assert old.getresponse().read()
    server.install_certificate("two")
    assert server.served_certificate(server.https_port) == "one"
    server.reload()
    ports = server.https_port, server.amqps_port, server.amqp_port
    assert [server.served_certificate(port) for port in ports] == ["two", "two", "two"]
    new = http.client.HTTPSConnection(server.host, server.https_port, timeout=TIMEOUT_S, context=server.trusting("two"))
    for connection in (old, new):
        connection.request("GET", "/health")
        assert connection.getresponse().read()
        connection.close()


async def test_keys_of_the_configuration_file_are_reloaded_and_links_of_the_old_key_end(
    server: ReloadableServer,
) -> None:
    async with connect_raw(server, Credentials.plain("app", FIRST_SECRET)) as client:
        link = await client.attach_sender("orders")
        server.secret_file.write_text("another-secret-of-the-configuration-file")
        try:
            await asyncio.to_thread(server.reload)
            async with asyncio.timeout(WITHIN_S):
                assert await client.detach_condition(link) == UNAUTHORIZED
            async with connect_raw(
                server, Credentials.plain("app", "another-secret-of-the-configuration-file")
            ) as other:
                await other.attach_sender("orders")
        finally:
            server.secret_file.write_text(FIRST_SECRET)


async def test_a_client_keeps_its_connection_when_its_key_is_valid_again(server: ReloadableServer) -> None:
    endpoint = f"Endpoint=sb://{server.host}:{server.amqp_port};UseDevelopmentEmulator=true"
    connection_string = f"{endpoint};SharedAccessKeyName=app;SharedAccessKey={FIRST_SECRET}"
    async with MessagingFactory.from_connection_string(connection_string) as factory:
        orders = factory.create_queue_client("orders")
        await orders.send(BrokeredMessage("before"))
        connection = await factory.authorized_connection("orders")
        server.secret_file.write_text("another-secret-of-the-configuration-file")
        try:
            await asyncio.to_thread(server.reload)
            for _ in range(2):
                with pytest.raises(Unauthorized):
                    await orders.send(BrokeredMessage("meanwhile"))
        finally:
            server.secret_file.write_text(FIRST_SECRET)
        await asyncio.to_thread(server.reload)
        await orders.send(BrokeredMessage("after"))
        assert await factory.authorized_connection("orders") is connection


def test_a_key_file_edited_by_hand_is_reloaded(server: ReloadableServer) -> None:
    file = server.data / "keys.json"
    written = {"name": server.key_name, "primary": "by-hand-by-hand-by-hand", "secondary": server.key}
    file.write_text(json.dumps(written))
    server.reload()
    ready = json.loads((server.folder / "ready.json").read_text())
    assert "SharedAccessKey=by-hand-by-hand-by-hand;" in ready["connection_string"]
    server.request("GET", "orders", expected=200)  # with the former key, which is now the secondary


@pytest.mark.parametrize("wrong", ["configuration", "certificate", "key of the certificate", "keys", "no keys"])
def test_a_bad_file_changes_nothing_and_is_named_in_the_log(server: ReloadableServer, wrong: str) -> None:
    keys = server.data / "keys.json"
    before = keys.read_bytes()
    server.configure(log_level="error")
    server.install_certificate("three")
    if wrong == "configuration":
        (server.folder / "twinbus.toml").write_text("log_level = 'error'\nx = [")
    elif wrong == "certificate":
        (server.folder / "server.pem").write_text("nothing of the kind")
    elif wrong == "key of the certificate":
        (server.folder / "server.key").write_bytes((server.folder / "one" / "server.key").read_bytes())
    else:
        keys.unlink() if wrong == "no keys" else keys.write_bytes(b"{")
    try:
        reason = server.reload_expecting_failure()
    finally:
        keys.write_bytes(before)
        keys.chmod(0o600)
    files = {"configuration": "twinbus.toml", "certificate": "server.pem", "key of the certificate": "server.key"}
    assert files.get(wrong, "keys.json") in reason
    assert server.served_certificate(server.amqps_port) == "one"
    server.request("GET", "orders", expected=200)
    if wrong == "certificate":  # keys can still be changed
        (server.folder / "server.pem").write_text("nothing of the kind")
        run_key_command_ok(server.data, "add", "urgent", "--rights", "Listen")
        run_key_command_ok(server.data, "revoke", "urgent")
        assert server.served_certificate(server.amqps_port) == "one"


def test_settings_that_need_a_restart_are_logged_and_not_changed(server: ReloadableServer) -> None:
    server.configure(more="stores = 3\nlink_idle = 30.0", queues="orders others")
    server.reload()
    assert "changed settings have no effect before a restart: stores, link_idle, queues and topics" in server.log
    count = server.log.count("before a restart")
    server.configure()
    server.reload()
    assert server.log.count("before a restart") == count
    server.request("GET", "others", expected=404)
