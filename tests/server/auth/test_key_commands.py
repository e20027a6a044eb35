"""`twinbus key` takes effect at once on a running server, and changes the data directory of a stopped one."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import socket
import stat
from typing import TYPE_CHECKING

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusAuthorizationError
from typer.testing import CliRunner

from tests.server.auth.key_commands import (
    list_keys,
    run_key_command,
    run_key_command_ok,
    run_key_command_refused,
    secret,
)
from tests.support.in_process_server import run_server_in_process
from tests.support.raw_client import connect_raw
from tests.support.server_process import TIMEOUT_S, ServerProcess, run_server
from twinbus.amqp.sasl import Credentials
from twinbus.cli import key as key_command
from twinbus.cli.main import app
from twinbus.server.auth import key_file
from twinbus.server.auth.keys import KeyRing
from twinbus.server.runtime.data_directory import DataDirectory

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ROOT = "RootManageSharedAccessKey"
WITHIN_S = 1.0
UNAUTHORIZED = "amqp:unauthorized-access"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder whose path is too long for the address of a Unix socket."""
    return tmp_path_factory.mktemp("x" * 100)


@pytest.fixture(scope="module")
def running_server(folder: Path) -> Iterator[ServerProcess]:
    file = folder / "twinbus.toml"
    file.write_text(
        '[[keys]]\nname = "configured"\nrights = ["Listen"]\nsecret_env = "CONFIGURED"\n[[queues]]\nname = "orders"'
    )
    os.environ["CONFIGURED"] = "configured-secret-of-a-file"
    with run_server(folder, f"--config={file}") as server:
        yield server


@pytest.fixture
def server(running_server: ServerProcess) -> Iterator[ServerProcess]:
    yield running_server
    log = running_server.check_log()
    assert not any(text in log for text in (secret(running_server._data, ROOT), "configured-secret"))  # noqa: SLF001


@pytest.fixture
def data(server: ServerProcess) -> Path:
    return server._data  # noqa: SLF001


def send(server: ServerProcess, name: str, key_secret: str, queue: str = "orders", *, scope: str = "") -> int:
    connection = http.client.HTTPConnection(server.host, server.http_port, timeout=TIMEOUT_S)
    headers = {"Authorization": server.token(scope, key=key_secret, key_name=name)}
    try:
        connection.request("POST", f"/{queue}/messages", "x", headers)
        return connection.getresponse().status
    finally:
        connection.close()


def test_without_data_the_keys_are_those_of_serve_without_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["key", "list"])
    assert result.exit_code == 1
    assert "there is no data directory twinbus-data/contoso" in result.output


def test_a_new_key_works_when_the_command_returns_and_a_revoked_one_does_not(server: ServerProcess, data: Path) -> None:
    output = run_key_command_ok(data, "add", "app", "--rights", "send", "--show")
    added = list_keys(data, "--show")["app"]
    assert f"  primary: {added['primary']}\n" in output
    assert send(server, "app", added["primary"]) == 201
    assert added["rights"] == ["Send"]
    with ServiceBusClient.from_connection_string(added["connection_string"], retry_total=0) as client:
        with client.get_queue_sender("orders") as sender:
            sender.send_messages(ServiceBusMessage("x"))
        with pytest.raises(ServiceBusAuthorizationError), client.get_queue_receiver("orders") as receiver:
            receiver.peek_messages()
    assert f"Effective now (process {server.pid})" in run_key_command_ok(data, "revoke", "app")
    assert send(server, "app", added["primary"]) == 401
    assert "app" not in list_keys(data)


def test_secrets_are_printed_only_when_asked_for(server: ServerProcess, data: Path) -> None:
    outputs = [run_key_command_ok(data, *arguments) for arguments in (
        ("add", "quiet", "--rights", "Listen"), ("rotate", "quiet"), ("rotate", "quiet", "--secondary"),
        ("list",), ("list", "--json"))]  # fmt: skip
    key = list_keys(data, "--show")["quiet"]
    for output in [*outputs, run_key_command_ok(data, "revoke", "quiet")]:
        assert not any(key[which] in output for which in ("primary", "secondary"))
    file = json.loads((data / "keys.json").read_text())
    assert server.key not in "".join(outputs)
    assert [rule["name"] for rule in file["rules"]] == [ROOT]
    for name in ("keys.json", "keys.sock"):
        assert stat.S_IMODE((data / name).lstat().st_mode) == 0o600


async def test_rotating_keeps_clients_of_the_old_primary_and_detaches_those_of_the_old_secondary(
    server: ServerProcess, data: Path
) -> None:
    run_key_command_ok(data, "add", "rotated", "--rights", "Send,Listen")
    first = secret(data, "rotated")
    async with (
        connect_raw(server, Credentials.plain("rotated", first)) as client,
        connect_raw(server, Credentials.anonymous()) as other,
    ):
        properties = {"operation": "put-token", "name": f"sb://{server.host}/orders", "type": "jwt"}
        token = server.token("orders", key=first, key_name="rotated")
        assert (await other.request_status("$cbs", properties, token))["status-code"] == 202
        links = [await client.attach_sender("orders"), await other.attach_receiver("orders")]
        await asyncio.to_thread(run_key_command_ok, data, "rotate", "rotated")
        second = await asyncio.to_thread(secret, data, "rotated")
        assert second != first == await asyncio.to_thread(secret, data, "rotated", "secondary")
        await client.attach_sender("orders")  # with the former primary, which is now the secondary
        assert all(link.is_attached for link in links)
        assert [await asyncio.to_thread(send, server, "rotated", tried) for tried in (first, second)] == [201, 201]
        waiting = asyncio.create_task(asyncio.to_thread(long_poll, server, first))
        await asyncio.to_thread(run_key_command_ok, data, "rotate", "rotated", "--secondary")
        assert [await asyncio.to_thread(send, server, "rotated", tried) for tried in (first, second)] == [401, 201]
        async with asyncio.timeout(WITHIN_S):
            assert await client.detach_condition(links[0]) == UNAUTHORIZED
            assert await other.detach_condition(links[1]) == UNAUTHORIZED
        await asyncio.to_thread(server.request, "POST", "orders/messages", "x", expected=201)
        assert await waiting == 401
    await asyncio.to_thread(run_key_command_ok, data, "revoke", "rotated")


def long_poll(server: ServerProcess, key_secret: str) -> int:
    """Receive with long polls until one fails; return its status."""
    connection = http.client.HTTPConnection(server.host, server.http_port, timeout=TIMEOUT_S)
    headers = {"Authorization": server.token("", key=key_secret, key_name="rotated")}
    try:
        while True:
            connection.request("DELETE", "/orders/messages/head?timeout=20", headers=headers)
            answer = connection.getresponse()
            answer.read()
            if answer.status != 200:
                return answer.status
    finally:
        connection.close()


def test_the_ready_file_has_the_new_root_key(server: ServerProcess, data: Path) -> None:
    before = server.key
    run_key_command_ok(data, "rotate", ROOT)
    ready = json.loads(server.ready_file.read_text())
    assert ready["connection_string"] == server.connection_string.replace(before, secret(data, ROOT))
    assert ready["admin_connection_string"] == server.admin_connection_string.replace(before, secret(data, ROOT))
    assert stat.S_IMODE(server.ready_file.stat().st_mode) == 0o600
    server.request("GET", "orders", expected=200)  # with the former key
    run_key_command_ok(data, "revoke", ROOT, "--secondary")
    with pytest.raises(AssertionError, match="401"):
        server.request("GET", "orders", expected=200)
    server._ready = ready  # noqa: SLF001
    server.request("GET", "orders", expected=200)


def test_an_invalid_command_is_refused_in_one_line(server: ServerProcess, data: Path, tmp_path: Path) -> None:
    unknown = f"twinbus key rotate: there is no key 'nobody'; the keys are: {ROOT}"
    assert run_key_command_refused(data, "rotate", "nobody") == unknown
    assert "is the last one with Manage" in run_key_command_refused(data, "revoke", ROOT)
    assert (
        f"is in the configuration file: change it there, and send SIGHUP to process {server.pid}"
        in run_key_command_refused(data, "rotate", "configured")
    )
    assert "is in the configuration file" in run_key_command_refused(data, "add", "configured", "--rights", "Send")
    assert list_keys(data)["configured"] == {
        "name": "configured", "rights": ["Listen"], "source": "configuration file", "has_secondary": False
    }  # fmt: skip
    assert "there is no data directory" in run_key_command_refused(tmp_path / "none", "list")
    assert "is not a data directory with keys" in run_key_command_refused(tmp_path, "list")
    assert run_key_command(data, "add", "app").exit_code == 2  # without rights
    assert set(list_keys(data)) == {ROOT, "configured"}


async def test_keys_of_a_queue_are_changed_in_the_same_way(server: ServerProcess, data: Path) -> None:
    queue = await asyncio.to_thread(server.create_queue)
    entity = ("--entity", queue)
    await asyncio.to_thread(run_key_command_ok, data, "add", "own", "--rights", "Send", *entity)
    key = (await asyncio.to_thread(list_keys, data, "--show", *entity))["own"]
    assert key["connection_string"].endswith(f";EntityPath={queue}")
    assert [send(server, "own", key["primary"], path, scope=queue) for path in (queue, "orders")] == [201, 401]
    async with connect_raw(server, Credentials.plain("own", key["primary"])) as client:
        link = await client.attach_sender(queue)
        await asyncio.to_thread(run_key_command_ok, data, "rotate", "own", *entity)
        assert link.is_attached
        await asyncio.to_thread(run_key_command_ok, data, "revoke", "own", "--secondary", *entity)
        assert send(server, "own", key["primary"], queue, scope=queue) == 401
        async with asyncio.timeout(WITHIN_S):
            assert await client.detach_condition(link) == UNAUTHORIZED
    await asyncio.to_thread(run_key_command_ok, data, "revoke", "own", *entity)
    assert list_keys(data, *entity) == {}
    assert "there is no key 'own'" in run_key_command_refused(data, "rotate", "own", *entity)
    assert "'nowhere' could not be found" in run_key_command_refused(data, "list", "--entity", "nowhere")
    assert list(list_keys(data)) == [ROOT, "configured"]


def test_invalid_commands_at_the_socket_are_refused(server: ServerProcess, data: Path) -> None:
    for line in (b"\n", b"{}\n", b'{"do": "steal"}\n', b"x" * 70_000):
        with socket.socket(socket.AF_UNIX) as sock:
            directory = os.open(data, os.O_RDONLY)
            sock.connect(f"/proc/self/fd/{directory}/keys.sock")
            os.close(directory)
            sock.settimeout(TIMEOUT_S)
            sock.sendall(line)
            sock.shutdown(socket.SHUT_WR)
            answer = b"".join(iter(lambda: sock.recv(65_536), b""))
            assert not answer or b"does not understand the command" in answer
    server.request("GET", "orders", expected=200)


def test_the_keys_of_a_stopped_server_are_changed_in_its_data_directory(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with DataDirectory(data) as directory:
        root = KeyRing.load(directory.keys_file).root_key
    assert root is not None
    output = run_key_command_ok(data, "add", "later", "--rights", "Manage")
    assert "The server is not running: effective at its next start." in output
    run_key_command_ok(data, "revoke", ROOT)
    assert (data / "lock").read_text() == ""
    assert "is not running: start it to list or change keys of queues" in run_key_command_refused(
        data, "list", "--entity", "orders"
    )
    with run_server_in_process(tmp_path) as server:
        assert (server.key_name, server.key) == ("later", secret_in(data, "later"))
        queue = server.create_queue()
        assert send(server, ROOT, root.primary, queue) == 401
        assert send(server, "later", server.key, queue) == 201


def secret_in(data: Path, name: str) -> str:
    return next(rule.primary for rule in key_file.read_rules(data / "keys.json") if rule.name == name)


def test_the_command_names_a_server_process_that_does_not_listen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_command, "SERVER_START_TIMEOUT_S", 0.2)
    with DataDirectory(tmp_path / "data") as directory:
        KeyRing.load(directory.keys_file)
        line = run_key_command_refused(directory.path, "rotate", ROOT)
        assert f"is in use by process {os.getpid()}, which does not listen at" in line
    run_key_command_ok(tmp_path / "data", "rotate", ROOT)


def test_an_invalid_key_file_is_left_unchanged(server: ServerProcess, data: Path) -> None:
    content = (data / "keys.json").read_bytes()
    (data / "keys.json").write_bytes(b"{")
    try:
        assert "is not a key file" in run_key_command_refused(data, "rotate", ROOT)
        assert (data / "keys.json").read_bytes() == b"{"
        server.request("GET", "orders", expected=200)
    finally:
        (data / "keys.json").write_bytes(content)
