"""`twinbus serve` passes its options to the server, and reports errors in one line without a traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from twinbus import __version__, version_and_build
from twinbus.cli.main import app
from twinbus.server.config.settings import ServeSettings, StartError

if TYPE_CHECKING:
    from collections.abc import Callable

    from typer.testing import Result


class FakeServer(ModuleType):
    """A stand-in for the server module that records the settings and returns a configured result."""

    def __init__(self) -> None:
        super().__init__("twinbus.server.runtime.process")
        self.settings: ServeSettings | None = None
        self.answer: int | Exception = 0

    def run(self, settings: ServeSettings, announce: object, reread: Callable[[], ServeSettings]) -> int:
        self.announce = announce
        assert reread() == settings
        self.settings = settings
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> FakeServer:
    fake_server = FakeServer()
    monkeypatch.setitem(sys.modules, "twinbus.server.runtime.process", fake_server)
    return fake_server


def twinbus(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments, prog_name="twinbus")


def test_a_name_and_a_directory_are_enough(server: FakeServer) -> None:
    assert twinbus("serve", "contoso", "--data", "d").exit_code == 0
    assert server.settings == ServeSettings(name="contoso", data=Path("d"))
    assert server.announce is None


@pytest.mark.parametrize(
    ("arguments", "name", "data", "ready_file"),
    [
        ("", "contoso", "twinbus-data/contoso", "twinbus-data/contoso.json"),
        ("fabrikam", "fabrikam", "twinbus-data/fabrikam", "twinbus-data/fabrikam.json"),
        ("--ready-file r", "contoso", "twinbus-data/contoso", "r"),
        ("--data d", "contoso", "d", None),
    ],
)
def test_without_arguments_contoso_is_served_from_this_folder(
    server: FakeServer, arguments: str, name: str, data: str, ready_file: str | None
) -> None:
    assert twinbus("serve", *arguments.split()).exit_code == 0
    expected = ServeSettings(name=name, data=Path(data), ready_file=Path(ready_file) if ready_file else None)
    assert server.settings == expected


def test_every_option_reaches_the_server(server: FakeServer) -> None:
    options = (
        "--host ::1 --amqp-port 1 --amqps-port none --http-port 3 --https-port 0 --plaintext http "
        "--workers 3 --worker-timeout 7.5 --stores 8 --store-dir a --store-dir b --ready-file r --min-free 500MB "
        "--store-timeout 2.5 --max-connections 7 --max-unauthenticated 6 --tls-cert c --tls-key k --log-level debug "
        "--log-format json --measure-pauses --no-metering --usage-days 30 --unsafe-no-sync"
    )
    assert twinbus("serve", "contoso", "--data", "d", *options.split()).exit_code == 0
    assert server.settings == ServeSettings(
        name="contoso",
        data=Path("d"),
        host="::1",
        amqp_port=1,
        amqps_port=None,
        http_port=3,
        https_port=0,
        plaintext=("http",),
        workers=3,
        worker_timeout_s=7.5,
        stores=8,
        store_dirs=(Path("a"), Path("b")),
        ready_file=Path("r"),
        min_free_bytes=500_000_000,
        store_timeout_s=2.5,
        max_connections=7,
        max_unauthenticated=6,
        tls_cert=Path("c"),
        tls_key=Path("k"),
        log_level="debug",
        log_format="json",
        measure_pauses=True,
        metering=False,
        usage_days=30,
        sync=False,
    )


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ("--workers 65", "twinbus serve: --workers 65: it can be 1 to 64\n"),
        ("--stores 0", "twinbus serve: --stores 0: it can be 1 to 64\n"),
        ("--min-free lots", "twinbus serve: --min-free 'lots': is not a size: write it as 1GiB, 500MB or 0\n"),
        ("--tls-key k", "twinbus serve: --tls-key k: needs --tls-cert too\n"),
    ],
)
def test_an_invalid_option_prints_one_line_and_exits_with_2(server: FakeServer, options: str, line: str) -> None:
    result = twinbus("serve", "contoso", "--data", "d", *options.split())
    assert (result.exit_code, result.stderr, result.stdout) == (2, line, "")
    assert server.settings is None


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("contoso --data d --amqp-port abc", "--amqp-port"),
        ("contoso --data d --colour", "--colour"),
    ],
)
def test_an_invalid_or_unknown_option_is_named(arguments: str, named: str) -> None:
    result = twinbus("serve", *arguments.split())
    assert result.exit_code == 2
    assert named in result.stderr.splitlines()[-1]


def test_a_server_that_cannot_start_prints_the_reason_and_exits_with_1(server: FakeServer) -> None:
    server.answer = StartError("/data is in use by process 123: stop that process first, or give another --data")
    result = twinbus("serve", "contoso", "--data", "d")
    assert (result.exit_code, result.stderr) == (1, f"twinbus serve: {server.answer}\n")


def test_a_failing_server_prints_no_traceback(server: FakeServer) -> None:
    server.answer = ZeroDivisionError("by zero")
    result = twinbus("serve", "contoso", "--data", "d")
    assert (result.exit_code, result.stderr) == (1, "twinbus serve: the server failed: ZeroDivisionError: by zero\n")


def test_the_command_exits_with_the_exit_code_of_the_server(server: FakeServer) -> None:
    server.answer = 3
    assert twinbus("serve", "contoso", "--data", "d").exit_code == 3


def test_the_help_lists_options_except_the_unsafe_one() -> None:
    text = twinbus("serve", "--help").stdout
    for option in ("--data", "--host", "--store-dir", "--ready-file", "--min-free", "--tls-cert", "--log-format"):
        assert option in text
    assert "--unsafe-no-sync" not in text


def test_the_module_prints_the_version() -> None:
    completed = subprocess.run(
        [sys.executable, "-m", "twinbus", "--version"], capture_output=True, text=True, check=True
    )
    assert completed.stdout in {f"twinbus {__version__} ({kind})\n" for kind in ("compiled", "pure Python")}
    assert twinbus("--version").stdout == f"twinbus {version_and_build()}\n"


@pytest.mark.parametrize(
    ("module", "unneeded"),
    [
        ("twinbus.cli.main", {"twinbus.client", "twinbus.server.runtime.process", "httpx", "rich"}),
        ("twinbus.server.runtime.single_process", {"lark", "twinbus.server.cluster.supervisor"}),
        ("twinbus.server.cluster.supervisor", {"lark", "rocksdict", "twinbus.server.runtime.listeners", "uvicorn"}),
        ("twinbus.server.cluster.worker", {"lark", "cryptography", "twinbus.server.cluster.supervisor"}),
    ],
)
def test_a_process_does_not_import_modules_it_does_not_need(module: str, unneeded: set[str]) -> None:
    listing = f"import sys, {module}; print(*sys.modules)"
    completed = subprocess.run([sys.executable, "-c", listing], capture_output=True, text=True, timeout=60, check=True)
    assert unneeded & set(completed.stdout.split()) == set()
