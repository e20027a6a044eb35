"""A server in its own process, started as a user starts it, for tests with real clients.

    with run_server(folder) as server:
        queue = server.create_queue(LockDuration="PT5S")

Every server has its own loopback address, because the Azure SDKs use TLS on port 5671 only, and several pytest workers
run in parallel. Owns: the process, its log, and its queues over HTTP. `run_server` checks that the process has ended
with exit code 0, and that the log contains neither a traceback nor a secret.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.parse
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

START_TIMEOUT_S: Final = 40.0
"""Generous, because other tests may keep the machine busy."""
STOP_TIMEOUT_S: Final = 30.0
TIMEOUT_S: Final = 20.0
POLL_INTERVAL_S: Final = 0.01
AMQPS_PORT: Final = 5671
QUEUE_ENTRY: Final = (
    '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">'
    '<QueueDescription xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect">'
    "{}</QueueDescription></content></entry>"
)
AUTHORIZATION_RULE: Final = (
    '<AuthorizationRules><AuthorizationRule i:type="SharedAccessAuthorizationRule" '
    'xmlns:i="http://www.w3.org/2001/XMLSchema-instance"><ClaimType>SharedAccessKey</ClaimType>'
    "<ClaimValue>None</ClaimValue><Rights><AccessRights>Send</AccessRights></Rights>"
    "<KeyName>{name}</KeyName><PrimaryKey>{key}</PrimaryKey><SecondaryKey>{key}</SecondaryKey>"
    "</AuthorizationRule></AuthorizationRules>"
)
"""Authorization rule with one key, as an element of an entity's description."""
_SIGNATURE: Final = re.compile(r"sig(?:=|%3D)(?!\*\*\*)", re.IGNORECASE)
_numbers: Final = itertools.count(1)
_addresses: Final = itertools.cycle(range(20, 220))


class ServerFailed(Exception):
    """The server did not start or stop; the message contains its log."""


WORKER_OPTIONS: Final = [f"--workers={number}" for number in os.environ.get("TWINBUS_TEST_WORKERS", "").split()]
"""Number of workers of every server in a test run: all tests must also pass with several workers."""


class ServerProcess:
    """A namespace that keeps its data and ports when it is restarted."""

    log_options: Sequence[str] = ("--log-level=debug",)

    def __init__(
        self,
        folder: Path,
        *,
        options: Sequence[str] = (),
        name: str | None = "contoso",
        environment: Mapping[str, str] | None = None,
        launcher: Sequence[str] = (),
        host: str | None = None,
    ) -> None:
        """`folder` gets the data directory, the ready file and the log. If `name` is None, `options` contain the name.

        `launcher` is a command that runs the server, such as `prlimit --nofile=700`. On a shared `host` (default: an
        address of its own) the server uses free ports at every start, and is killed as a process group.
        """
        self.host = host or _next_loopback_address()
        self._has_own_address = host is None
        self.ready_file = folder / "ready.json"
        self._log = folder / "server.log"
        self._data = folder / "data"
        self.options = options if name is None else (name, *options)
        """Arguments of the next start."""
        self.environment = environment
        """Environment of the next start."""
        self._launcher = launcher
        self._ports = {"amqp": 0, "amqps": AMQPS_PORT if self._has_own_address else 0, "http": 0, "https": 0}
        self._process: subprocess.Popen[bytes] | None = None
        self._log_read_offset = 0
        self._ready: dict[str, Any] = {}

    # --- addresses and keys ------------------------------------------------------------------------------------------

    @property
    def amqp_port(self) -> int:
        return int(self._ready["amqp_port"])

    @property
    def amqps_port(self) -> int:
        return int(self._ready["amqps_port"])

    @property
    def pid(self) -> int:
        """Pid of the started process: with several workers, of the supervisor."""
        assert self._process is not None, "the server is not running"
        return self._process.pid

    @property
    def http_port(self) -> int:
        return int(self._ready["http_port"])

    @property
    def https_port(self) -> int:
        return int(self._ready["https_port"])

    @property
    def ca_file(self) -> str:
        return str(self._ready["ca_file"])

    @property
    def connection_string(self) -> str:
        """Connection string for SDKs, without TLS."""
        return str(self._ready["connection_string"])

    @property
    def admin_connection_string(self) -> str:
        """Connection string for the SDKs' administration clients, which always use HTTPS."""
        return str(self._ready["admin_connection_string"])

    @property
    def tls_connection_string(self) -> str:
        """Connection string like one of Azure Service Bus: the SDKs use TLS on port 5671."""
        return f"Endpoint=sb://{self.host}/;SharedAccessKeyName={self.key_name};SharedAccessKey={self.key}"

    @property
    def key_name(self) -> str:
        return self._secrets["SharedAccessKeyName"]

    @property
    def key(self) -> str:
        return self._secrets["SharedAccessKey"]

    @property
    def _secrets(self) -> dict[str, str]:
        return dict(pair.split("=", 1) for pair in self.connection_string.split(";"))

    def token(self, path: str, *, lifetime_s: float = 3600, key: str | None = None, key_name: str | None = None) -> str:
        """Return a shared access signature for an entity, or for the whole namespace if `path` is empty."""
        expiry = int(time.time() + lifetime_s)
        resource = urllib.parse.quote_plus(f"sb://{self.host}/{path}")
        digest = hmac.digest((key or self.key).encode(), f"{resource}\n{expiry}".encode(), hashlib.sha256)
        signature = urllib.parse.quote_plus(base64.b64encode(digest))
        return f"SharedAccessSignature sr={resource}&sig={signature}&se={expiry}&skn={key_name or self.key_name}"

    # --- entities ----------------------------------------------------------------------------------------------------

    def create_queue(self, **elements: str) -> str:
        """Create a queue described by ATOM elements, and return its unique name."""
        name = f"queue-{os.getpid()}-{next(_numbers)}"
        content = "".join(f"<{element}>{text}</{element}>" for element, text in elements.items())
        self.request("PUT", name, QUEUE_ENTRY.format(content), expected=201)
        return name

    def create_entity(self, path: str, description: str) -> None:
        """Create an entity with default settings; `description` is the ATOM element, such as `TopicDescription`."""
        self.request("PUT", path, QUEUE_ENTRY.format("").replace("QueueDescription", description), expected=201)

    def update_queue(self, name: str, **elements: str) -> None:
        """Replace the description of a queue; elements that are not given get their defaults."""
        content = "".join(f"<{element}>{text}</{element}>" for element, text in elements.items())
        self.request("PUT", name, QUEUE_ENTRY.format(content), expected=200, headers={"If-Match": "*"})

    def create_queue_with_key(self, name: str, key_name: str) -> None:
        """Create a queue with its own key, which has the right Send."""
        key = base64.b64encode(os.urandom(32)).decode()
        self.request("PUT", name, QUEUE_ENTRY.format(AUTHORIZATION_RULE.format(name=key_name, key=key)), expected=201)

    def delete_queue(self, name: str) -> None:
        self.request("DELETE", name, expected=200)

    def message_counts(self, name: str) -> tuple[int, int]:
        """Return the number of active messages of a queue, and of messages in its dead-letter queue."""
        text = self.request("GET", name, expected=200)
        counts = {kind: int(count) for kind, count in re.findall(r"(\w+)MessageCount>(\d+)</", text)}
        return counts["Active"], counts["DeadLetter"]

    def request(
        self,
        method: str,
        path: str,
        body: str | None = None,
        *,
        expected: int,
        headers: dict[str, str] | None = None,
    ) -> str:
        connection = http.client.HTTPConnection(self.host, self.http_port, timeout=TIMEOUT_S)
        all_headers = {"Authorization": self.token(path), "Content-Type": "application/atom+xml"} | (headers or {})
        try:
            connection.request(method, f"/{path}?api-version=2021-05", body, all_headers)
            response = connection.getresponse()
            text = response.read().decode()
        finally:
            connection.close()
        assert response.status == expected, f"{method} {path}: {response.status} {text}"
        return text

    # --- process -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the server, and wait until it serves."""
        assert self._process is None, "the server is running already"
        self.ready_file.unlink(missing_ok=True)  # a killed server leaves its ready file behind
        ports = [f"--{name}-port={port}" for name, port in self._ports.items()]
        command = ["-m", "twinbus", "serve", f"--data={self._data}", f"--host={self.host}", *ports]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *self._launcher,
                    sys.executable,
                    *command,
                    f"--ready-file={self.ready_file}",
                    "--min-free=0",
                    *self.log_options,
                    *(WORKER_OPTIONS if self._has_own_address else ()),
                    *self.options,
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment(),
                start_new_session=not self._has_own_address,  # `kill` kills the whole process group
            )
        self._wait_until_ready(self._process)
        self._ready = json.loads(self.ready_file.read_text())
        if self._has_own_address:
            self._ports = {name: int(self._ready[f"{name}_port"]) for name in self._ports}

    def _environment(self) -> dict[str, str]:
        """Return the environment of the next start. Campaigns, which run without pytest, keep the user's home clean."""
        configuration = self._log.with_name("config")
        return {"XDG_CONFIG_HOME": str(configuration)} | dict(
            os.environ if self.environment is None else self.environment
        )

    def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self.ready_file.exists():
            if process.poll() is not None:
                raise ServerFailed(f"the server ended with {process.returncode} instead of serving\n{self.log}")
            if time.monotonic() > deadline:
                raise ServerFailed(f"the server does not serve after {START_TIMEOUT_S:.0f} s\n{self.log}")
            time.sleep(POLL_INTERVAL_S)

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Stop the server with SIGTERM, and check that it exits with code 0 and removes its ready file."""
        assert self._process is not None, "the server is not running"
        self._process.send_signal(signal.SIGTERM)
        try:
            status = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise ServerFailed(f"the server has not stopped {timeout_s:.0f} s after SIGTERM\n{self.log}") from None
        self._process = None
        if status != 0:
            raise ServerFailed(f"the server's clean stop ended with {status}\n{self.log}")
        assert not self.ready_file.exists()

    def kill(self) -> None:
        """Kill the server in whatever state it is; do nothing if it is not running."""
        if self._process is not None:
            if self._has_own_address:
                self._process.kill()
            else:
                with suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(STOP_TIMEOUT_S)
            self._process = None

    def pause(self) -> None:
        """Send SIGSTOP: the server's sockets stay open, but it does not respond."""
        assert self._process is not None, "the server is not running"
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Send SIGCONT."""
        assert self._process is not None, "the server is not running"
        self._process.send_signal(signal.SIGCONT)

    @property
    def is_running(self) -> bool:
        return self._process is not None

    # --- log ---------------------------------------------------------------------------------------------------------

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def check_log(self) -> str:
        """Return the log lines since the last call, after checking them for tracebacks and secrets."""
        text = self.log
        new_text, self._log_read_offset = text[self._log_read_offset :], len(text)
        assert "Traceback" not in new_text, new_text
        assert self.key not in new_text, "the log contains the key"
        assert not _SIGNATURE.search(new_text), "the log contains a signature"
        return new_text


@contextmanager
def run_server(
    folder: Path, *options: str, name: str | None = "contoso", launcher: Sequence[str] = ()
) -> Iterator[ServerProcess]:
    """Start a server, stop it cleanly at the end, and check its log."""
    server = ServerProcess(folder, options=options, name=name, launcher=launcher)
    try:
        server.start()
        yield server
        server.stop()
        server.check_log()
    finally:
        server.kill()


def wait_until(condition: Callable[[], object], *, timeout_s: float = TIMEOUT_S) -> None:
    """Poll a condition until it holds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"the condition was not met within {timeout_s:g} s"
        time.sleep(POLL_INTERVAL_S)


def _next_loopback_address() -> str:
    """Return a loopback address that no other server uses, including servers that earlier test runs left behind."""
    process_number = os.getpid() % 65_536
    candidates = (f"127.{number}.{process_number >> 8}.{process_number & 255 or 1}" for number in _addresses)
    return next(address for address in candidates if _is_free(address))


def _is_free(address: str) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((address, AMQPS_PORT)) != 0
