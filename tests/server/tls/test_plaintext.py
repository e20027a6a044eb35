"""Ports can be closed, and serve other machines without TLS only with `--plaintext`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from typer.testing import CliRunner

from tests.server.websocket.raw_websocket import frame, request
from twinbus.amqp.codec.frames import SASL_FRAME, SASL_HEADER
from twinbus.amqp.codec.frames import frame as amqp_frame
from twinbus.amqp.codec.performatives import Open
from twinbus.amqp.sasl import Credentials, SaslCode, SaslInit, SaslMechanisms, SaslOutcome
from twinbus.cli.main import app
from twinbus.client.connection_string import ConnectionString
from twinbus.server.config.settings import InvalidSetting, ServeSettings
from twinbus.server.runtime.data_directory import DataDirectory
from twinbus.server.runtime.single_process import SingleProcessServer
from twinbus.server.tls.plaintext import is_loopback
from twinbus.server.websocket.frames import Opcode
from twinbus.testing import InMemoryNamespace, in_virtual_time

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Sequence

    from twinbus.server.runtime.ready_file import ReadyFile

ANYWHERE = "0.0.0.0"  # noqa: S104  # nothing listens there
UNRECOGNIZED_LOOPBACK = "127.1"
"""Resolves to 127.0.0.1, but the server does not recognize it as a loopback address."""
ADVICE = "add --plaintext http, or set --http-port none"
PORTS = dict.fromkeys(("amqp_port", "amqps_port", "http_port", "https_port"), 0)


def settings(**options: Any) -> ServeSettings:  # noqa: ANN401  # any option
    return ServeSettings(**{"name": "contoso", "data": Path("data"), **options})


@contextlib.asynccontextmanager
async def serving(folder: Path, **options: Any) -> AsyncIterator[ReadyFile]:  # noqa: ANN401  # any option
    chosen = settings(**{"data": folder / "data", "min_free_bytes": 0, "stores": 1, **PORTS, **options})
    with DataDirectory(chosen.data) as data:
        async with contextlib.AsyncExitStack() as stack:
            yield await SingleProcessServer(chosen, data).start(stack)


# --- open ports -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "ways"),
    [
        ({}, ("amqp", "amqps", "http", "https")),
        ({"host": "127.8.9.10"}, ("amqp", "amqps", "http", "https")),
        ({"host": "::1"}, ("amqp", "amqps", "http", "https")),
        ({"host": "localhost"}, ("amqp", "amqps", "http", "https")),
        ({"host": ANYWHERE}, ("amqp", "amqps", "https")),
        ({"host": "::"}, ("amqp", "amqps", "https")),
        ({"host": "192.0.2.1"}, ("amqp", "amqps", "https")),
        ({"host": "bus.example"}, ("amqp", "amqps", "https")),
        ({"host": ANYWHERE, "plaintext": ("http",)}, ("amqp", "amqps", "http", "https")),
        ({"host": ANYWHERE, "plaintext": ("amqp", "http")}, ("amqp", "amqps", "http", "https")),
        ({"host": ANYWHERE, "plaintext": ("amqp",), "amqp_port": None}, ("amqps", "https")),
        ({"amqp_port": None, "https_port": None}, ("amqps", "http")),
    ],
)
def test_the_http_port_is_open_only_on_loopback_or_if_named(options: dict[str, Any], ways: tuple[str, ...]) -> None:
    assert settings(**options).open_protocols == ways


def test_a_server_without_any_port_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="no port would be open"):
        settings(host=ANYWHERE, amqp_port=None, amqps_port=None, https_port=None)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (
            "--http-port 5300",
            f"--http-port 5300: has no TLS, but other machines can reach --host {ANYWHERE}: {ADVICE}",
        ),
        ("--plaintext amqps", "--plaintext 'amqps': it can be amqp, http"),
        ("--https-port nine", "--https-port 'nine': is not a port: give a number, 0 for any free port, or none"),
    ],
)
def test_an_invalid_option_is_reported_in_one_line_with_exit_code_2(options: str, line: str) -> None:
    command = ["serve", "contoso", "--data=d", f"--host={ANYWHERE}", *options.split()]
    result = CliRunner().invoke(app, command)
    assert (result.exit_code, result.stderr) == (2, f"twinbus serve: {line}\n")


# --- served ports -----------------------------------------------------------------------------------------------------


async def test_a_host_beyond_loopback_serves_only_tls(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(tmp_path, host=UNRECOGNIZED_LOOPBACK) as ready:
        assert ready.http_port is None
        messaging = ConnectionString.parse(ready.connection_string or "")
        assert (messaging.port, messaging.is_emulator) == (ready.amqps_port, False)
        administration = ConnectionString.parse(ready.admin_connection_string or "")
        assert administration.port == ready.https_port
        tls = ssl.create_default_context(cafile=ready.ca_file)
        async with httpx.AsyncClient(verify=tls) as client:
            for port in (ready.https_port, ready.amqp_port):
                answer = await client.get(f"https://localhost:{port}/health")
                assert answer.json()["status"] == "ok"
            refused = await client.get(f"http://localhost:{ready.amqp_port}/health")
        assert refused.status_code == 400
        assert (
            f"port {ready.amqp_port} serves HTTP only over TLS, because other machines can reach the server: use HTTP "
            f"over TLS on port {ready.https_port}, or start the server with --plaintext http" in refused.text
        )
    amqp, http = warnings(caplog, "TLS")[:2]
    assert amqp == (
        f"port {ready.amqp_port} serves AMQP only over TLS, because other machines can reach 127.1. Use TLS, or start "
        "the server with --plaintext amqp"
    )
    assert http == (
        "the http port is not opened: it has no TLS, but other machines can reach 127.1. Use https, or open it with "
        "--plaintext http"
    )


async def test_on_the_amqp_port_plaintext_opens_only_what_it_names(tmp_path: Path) -> None:
    async with serving(tmp_path, host=UNRECOGNIZED_LOOPBACK, plaintext=("http",)) as ready:
        assert ConnectionString.parse(ready.connection_string or "").port == ready.amqps_port
        async with httpx.AsyncClient() as client:
            answer = await client.get(f"http://127.0.0.1:{ready.amqp_port}/health")
        assert answer.json()["status"] == "ok"
        reader, writer = await asyncio.open_connection("127.0.0.1", ready.amqp_port)
        writer.write(b"AMQP\x00\x01\x00\x00" + amqp_frame(0, Open(container_id="app").encode()))
        text = await asyncio.wait_for(reader.readuntil(b"--plaintext amqp"), 10)
        writer.close()
        await writer.wait_closed()
        assert b"amqp:not-allowed" in text
        assert f"use AMQP over TLS on port {ready.amqps_port}, or start the server with --plaintext amqp" in str(text)


async def test_without_its_own_tls_ports_a_server_names_the_amqp_port_in_both_connection_strings(
    tmp_path: Path,
) -> None:
    options = {"host": UNRECOGNIZED_LOOPBACK, "amqps_port": None, "https_port": None}
    async with serving(tmp_path, **options) as ready:
        for text in (ready.connection_string, ready.admin_connection_string):
            parsed = ConnectionString.parse(text or "")
            assert (parsed.port, parsed.is_emulator) == (ready.amqp_port, False)


async def test_a_port_named_by_plaintext_is_open_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"host": UNRECOGNIZED_LOOPBACK, "plaintext": ("http",), "amqp_port": None, "amqps_port": None}
    async with serving(tmp_path, **options) as ready:
        assert (ready.amqp_port, ready.amqps_port, ready.connection_string) == (None, None, None)
        async with httpx.AsyncClient() as client:
            answer = await client.get(f"http://127.0.0.1:{ready.http_port}/health")
        assert answer.json()["status"] == "ok"
    assert warnings(caplog, "plaintext") == [
        f"--plaintext http: port {ready.http_port} of 127.1 is open without TLS: the network can read keys and messages"
    ]


def warnings(caplog: pytest.LogCaptureFixture, word: str) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno == logging.WARNING and word in record.getMessage()
    ]


# --- SASL PLAIN -------------------------------------------------------------------------------------------------------


async def exchange(namespace: InMemoryNamespace, sent: Sequence[bytes], *, websocket: bool) -> bytes:
    """Send each item as a client on another machine, and return all received bytes."""
    reader, writer = await asyncio.open_connection(namespace.host, 5300 if websocket else 5672)
    if websocket:
        writer.write(request())
        await reader.readuntil(b"\r\n\r\n")
    received = b""
    for data in sent:
        writer.write(frame(Opcode.BINARY, data) if websocket else data)
        with contextlib.suppress(TimeoutError):
            received += await asyncio.wait_for(reader.read(65_536), 1)
    writer.close()
    return received


def plain_init(namespace: InMemoryNamespace) -> bytes:
    parsed = ConnectionString.parse(namespace.connection_string)
    credentials = Credentials.plain(parsed.key_name or "", parsed.key or "")
    init = SaslInit(mechanism=credentials.mechanism, initial_response=credentials.initial_response)
    return amqp_frame(0, init.encode(), SASL_FRAME)


def offer(*mechanisms: str) -> bytes:
    return SASL_HEADER + amqp_frame(0, SaslMechanisms(sasl_server_mechanisms=mechanisms).encode(), SASL_FRAME)


def outcome(code: SaslCode) -> bytes:
    return amqp_frame(0, SaslOutcome(outcome=code).encode(), SASL_FRAME)


@pytest.mark.parametrize("websocket", [False, True])
@pytest.mark.parametrize("plaintext", [(), ("http",)])
@in_virtual_time
async def test_sasl_plain_is_not_offered_to_another_machine_without_tls(
    plaintext: Collection[str], *, websocket: bool
) -> None:
    async with InMemoryNamespace(host="127.0.0.1", plaintext=plaintext) as namespace:
        received = await exchange(namespace, [SASL_HEADER], websocket=websocket)
    assert received.endswith(offer("MSSBCBS", "ANONYMOUS"))


@pytest.mark.parametrize("websocket", [False, True])
@pytest.mark.parametrize("plaintext", [(), ("http",)])
@in_virtual_time
async def test_sasl_plain_is_refused_from_another_machine_without_tls(
    caplog: pytest.LogCaptureFixture, plaintext: Collection[str], *, websocket: bool
) -> None:
    async with InMemoryNamespace(host="127.0.0.1", plaintext=plaintext) as namespace:
        received = await exchange(namespace, [SASL_HEADER, plain_init(namespace)], websocket=websocket)
    assert outcome(SaslCode.AUTH) in received
    (warning,) = warnings(caplog, "SASL")
    assert "PLAIN is not offered to other machines without TLS" in warning
    assert "start the server with --plaintext amqp" in warning


@pytest.mark.parametrize("websocket", [False, True])
@in_virtual_time
async def test_sasl_plain_is_accepted_without_tls_if_plaintext_names_amqp(*, websocket: bool) -> None:
    async with InMemoryNamespace(host="127.0.0.1", plaintext=("amqp", "http")) as namespace:
        received = await exchange(namespace, [SASL_HEADER, plain_init(namespace)], websocket=websocket)
    assert offer("MSSBCBS", "PLAIN", "ANONYMOUS") in received
    assert outcome(SaslCode.OK) in received


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.99.1.2", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("192.0.2.1", False),
        ("::ffff:192.0.2.1", False),
        ("fe80::1%lo", False),
        ("localhost", False),
    ],
)
def test_only_loopback_addresses_count_as_loopback(host: str, *, expected: bool) -> None:
    assert is_loopback(host) is expected
