"""A twinbus server under measurement, and the load client.

    with Server.started(folder, "--stores", "1") as server:
        server.create_queue("orders")
        run = LoadClient(build(folder), server).send("orders", 100_000)

Owns the server's process (start, stop, kill, and restart on the same data), its statistics in /proc, its queues over
HTTP, and runs of peer/load.c. Each benchmark decides what is measured and which results are sufficient.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import http.client
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
import urllib.parse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

HERE: Final = Path(__file__).parents[1]
ROOT: Final = HERE.parent
START_TIMEOUT_S: Final = 120.0
"""Longer than any threshold, so that a slow start is measured and not cut off."""
STOP_TIMEOUT_S: Final = 60.0
POLL_INTERVAL_S: Final = 0.005
LOG_LINES: Final = 20
"""Number of lines of the server's log that are shown if it fails."""
LINGER_S: Final = 0.5
"""Time between the last message of load.c and the close of its connection."""
RUN_TIMEOUT_S: Final = 600.0
ORDINARY_OPEN_FILES: Final = 1_024
"""Soft limit of a login shell. The server is started with this limit, whatever this machine allows."""
MIB: Final = 1_048_576
_QUEUE: Final = (
    '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">'
    '<QueueDescription xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect">'
    "<MaxSizeInMegabytes>{}</MaxSizeInMegabytes></QueueDescription></content></entry>"
)


def run(main: Callable[[], int]) -> NoReturn:
    """Run a benchmark as a program. On SIGTERM and Ctrl-C, it stops its processes and removes its temporary files."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("stopped")


def build(folder: Path) -> Path:
    """Build the load client in a folder, and return its path."""
    load = folder / "load"
    subprocess.run([HERE / "peer" / "build", load], check=True)
    return load


# --- the server -------------------------------------------------------------------------------------------------------


class Server:
    """A server, which can be started and stopped repeatedly on the same data."""

    def __init__(self, folder: Path, *options: str, python: str = sys.executable) -> None:
        """Create a server that is not started. `options` are options of `twinbus serve`.

        `folder` gets the data directory, the ready file and the log. `python` is the interpreter of the installation
        to be measured (default: this one).
        """
        self.data = folder / "data"
        self.ready_file = folder / "ready.json"
        self.amqp_port = 0
        self.key_name = ""
        self.key = ""
        self.connection_string = ""
        """Connection string for messages; `management_string` is for entities."""
        self._http_port = 0
        self._log = folder / "server.log"
        self._options = options
        self._python = python
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    @contextlib.contextmanager
    def started(cls, folder: Path, *options: str, python: str = sys.executable) -> Iterator[Server]:
        """Start a server, and end it with the block."""
        folder.mkdir(parents=True, exist_ok=True)
        server = cls(folder, *options, python=python)
        try:
            server.start()
            yield server
        finally:
            if server._process is not None:
                server.kill()

    @property
    def process(self) -> ProcessStats:
        """Statistics of the server's process."""
        assert self._process is not None, "the server does not run"
        return ProcessStats(self._process.pid)

    def start(self) -> float:
        """Start the server, and return the seconds until it serves. Exit if it does not start."""
        assert self._process is None, "the server is already running"
        self.ready_file.unlink(missing_ok=True)
        ports = [f"--{name}-port=0" for name in ("amqp", "amqps", "http", "https")]
        words = [self._python, "-m", "twinbus", "serve", "bench", "--data", str(self.data), *ports]
        started = time.monotonic()
        with self._log.open("ab") as log, raise_open_file_limit():
            self._process = subprocess.Popen(
                [*words, "--ready-file", str(self.ready_file), *self._options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=ROOT,
            )
        while not self.ready_file.exists():
            if self._process.poll() is not None or time.monotonic() > started + START_TIMEOUT_S:
                sys.exit(f"twinbus did not start:\n{self.log_tail()}")
            time.sleep(POLL_INTERVAL_S)
        took_s = time.monotonic() - started
        self._read_ready_file()
        return took_s

    def _read_ready_file(self) -> None:
        ready = json.loads(self.ready_file.read_text())
        pairs = dict(pair.split("=", 1) for pair in ready["connection_string"].split(";"))
        self.connection_string = ready["connection_string"]
        self.amqp_port, self._http_port = ready["amqp_port"], ready["http_port"]
        self.key_name, self.key = pairs["SharedAccessKeyName"], pairs["SharedAccessKey"]

    @property
    def http_port(self) -> int:
        """Port of HTTP without TLS."""
        return self._http_port

    @property
    def management_string(self) -> str:
        """Connection string of the HTTP port."""
        return self.connection_string.replace(f":{self.amqp_port}", f":{self._http_port}", 1)

    def stop(self) -> float:
        """Stop the server with SIGTERM, and return the seconds until it has ended. Exit if it ends with an error."""
        started = time.monotonic()
        status = self._end(signal.SIGTERM)
        if status != 0:
            sys.exit(f"twinbus ended with exit code {status} after SIGTERM:\n{self.log_tail()}")
        return time.monotonic() - started

    def kill(self) -> None:
        """Kill the server with SIGKILL."""
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> int | None:
        assert self._process is not None, "the server does not run"
        process, self._process = self._process, None
        process.send_signal(number)
        try:
            return process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return None

    def log_tail(self) -> str:
        """Return the last lines of the server's log."""
        lines = self._log.read_text(errors="replace").splitlines() if self._log.exists() else []
        return "\n".join(lines[-LOG_LINES:])

    def log_errors(self) -> list[str]:
        """Return warnings and errors of the server's log, which mean that the measurement was disturbed."""
        lines = self._log.read_text(errors="replace").splitlines()
        return [line for line in lines if re.search(r"^\S+ (warning|error|critical) ", line)]

    # --- queues -------------------------------------------------------------------------------------------------------

    def create_queue(self, name: str, max_size_mb: int = 1024) -> None:
        """Create a queue that does not exist yet."""
        self._request("PUT", name, _QUEUE.format(max_size_mb), expected=201)

    def message_count(self, name: str) -> int:
        """Return the number of messages in a queue."""
        found = re.search(r"ActiveMessageCount>(\d+)<", self._request("GET", name, None, expected=200))
        assert found is not None
        return int(found[1])

    def _request(
        self, method: str, name: str, body: str | None, *, expected: int, headers: Mapping[str, str] | None = None
    ) -> str:
        connection = http.client.HTTPConnection("127.0.0.1", self._http_port, timeout=30)
        headers = {"Authorization": self.token(name), "Content-Type": "application/atom+xml", **(headers or {})}
        with contextlib.closing(connection):
            connection.request(method, f"/{name}?api-version=2021-05", body, headers)
            answer = connection.getresponse()
            text = answer.read().decode()
        if answer.status != expected:
            sys.exit(f"{method} {name}: {answer.status} {text[:300]}")
        return text

    def token(self, name: str) -> str:
        """Return a token for an entity; for the namespace, if the name is empty."""
        uri = urllib.parse.quote_plus(f"http://127.0.0.1:{self._http_port}/{name}")
        expiry = int(time.time()) + 3600
        digest = hmac.new(self.key.encode(), f"{uri}\n{expiry}".encode(), hashlib.sha256).digest()
        signature = urllib.parse.quote_plus(base64.b64encode(digest))
        return f"SharedAccessSignature sr={uri}&sig={signature}&se={expiry}&skn={self.key_name}"


@contextlib.contextmanager
def raise_open_file_limit() -> Iterator[None]:
    """Start processes in the block with the open-file limits of a login shell."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(ORDINARY_OPEN_FILES, soft), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# --- process statistics -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BackgroundUsage:
    """Work of RocksDB's background threads so far."""

    cpu_s: float
    bytes: int
    """Bytes read and written."""


@dataclass(frozen=True, slots=True)
class ProcessStats:
    """Statistics of a process from /proc."""

    pid: int

    @property
    def resident_bytes(self) -> int:
        """Current resident memory."""
        return self._status("VmRSS")

    @property
    def peak_resident_bytes(self) -> int:
        """Peak resident memory."""
        return self._status("VmHWM")

    @property
    def max_open_files(self) -> int:
        """Soft limit of open files."""
        return resource.prlimit(self.pid, resource.RLIMIT_NOFILE)[0]

    @property
    def open_files(self) -> int:
        """Number of open files and sockets."""
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    @property
    def cpu_s(self) -> float:
        """CPU time of all threads."""
        return _cpu_s(Path(f"/proc/{self.pid}/stat"))

    @property
    def foreground_cpu_s(self) -> float:
        """CPU time of all threads, in nanosecond resolution, without RocksDB's flushes and compactions."""
        spent_ns = 0
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            with contextlib.suppress(OSError):  # the thread has just ended
                if not (task / "comm").read_text().startswith("rocksdb:"):
                    spent_ns += int((task / "schedstat").read_text().split()[0])
        return spent_ns / 1e9

    @property
    def background(self) -> BackgroundUsage:
        """Work of flushes and compactions, whose threads RocksDB gives a name."""
        cpu_s, size = 0.0, 0
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            with contextlib.suppress(OSError):  # the thread has just ended
                if (task / "comm").read_text().startswith("rocksdb:"):
                    cpu_s += _cpu_s(task / "stat")
                    counted = dict(line.split(": ") for line in (task / "io").read_text().splitlines())
                    size += int(counted["rchar"]) + int(counted["wchar"])
        return BackgroundUsage(cpu_s, size)

    def wait_for_idle_background(self, still_s: float, timeout_s: float = 900.0) -> float | None:
        """Wait until RocksDB has been idle for `still_s`. Return the seconds until it became idle, None on time-out."""
        started = moved = time.monotonic()
        last = self.background
        while time.monotonic() < started + timeout_s:
            time.sleep(0.25)
            now = self.background
            if now != last:
                last, moved = now, time.monotonic()
            elif time.monotonic() - moved >= still_s:
                return moved - started
        return None

    def _status(self, field: str) -> int:
        found = re.search(rf"^{field}:\s+(\d+) kB$", Path(f"/proc/{self.pid}/status").read_text(), re.MULTILINE)
        assert found is not None
        return int(found[1]) * 1024


def _cpu_s(stat: Path) -> float:
    fields = stat.read_text().rpartition(")")[2].split()  # a name may contain spaces and parentheses
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# --- the load client --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LoadRun:
    """The result of a run of the load client."""

    rate: float
    """Messages per second, from the first credit or delivery to the last response."""
    wait_s: float
    """Time from the start to the first credit or delivery; long if the server must search for the first message."""
    whole_rate: float
    """Messages per second, including that wait."""
    p99_ms: float
    """99th percentile of the time until a send is accepted; 0 for a run that receives."""


@dataclass(frozen=True, slots=True)
class LoadClient:
    """The load client for one server."""

    binary: Path
    server: Server
    size: int = 1024

    def send(self, queue: str, count: int) -> LoadRun:
        """Send `count` messages, all accepted."""
        return self._run("send", queue, count)

    def receive(self, queue: str, count: int) -> LoadRun:
        """Receive and accept the messages of one `send` of the same count: each exactly once, and no others."""
        return self._run("recv", queue, count)

    def receive_second(self, queue: str, count: int) -> LoadRun:
        """Receive `count` messages like the Azure SDKs, which wait until the server confirms each settlement."""
        return self._run("recv", queue, count, SECOND="1")

    def _run(self, mode: str, queue: str, count: int, **environment: str) -> LoadRun:
        server = self.server
        where = ["127.0.0.1", str(server.amqp_port), queue, str(count), str(self.size)]
        try:
            return run_load([str(self.binary), mode, *where, server.key_name, server.key], **environment)
        except LoadClientFailed as error:
            sys.exit(f"{mode} {queue} {count}: {error}\n{server.log_tail()}")


class LoadClientFailed(Exception):
    """The load client failed, or messages were missing, duplicated, or from another run."""


def run_load(words: list[str], **environment: str) -> LoadRun:
    """Run the load client. Raise LoadClientFailed if it fails or messages are missing."""
    started = time.monotonic()
    try:
        done = subprocess.run(
            words,
            capture_output=True,
            text=True,
            timeout=RUN_TIMEOUT_S,
            env={**os.environ, **environment},
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise LoadClientFailed(f"not finished after {RUN_TIMEOUT_S:.0f} s") from None
    whole_s = time.monotonic() - started - LINGER_S
    found = re.search(r"(\d+) messages .* in ([\d.]+) s = (\d+) msg/s", done.stdout)
    if done.returncode or found is None or re.search(r"(missing|duplicates|foreign) [1-9]", done.stdout):
        raise LoadClientFailed(f"{done.stdout}{done.stderr}")
    count, rate = int(found[1]), float(found[3])
    p99 = re.search(r"p99 ([\d.]+) ms", done.stdout)
    wait_s = max(0.0, whole_s - count / rate)
    return LoadRun(rate, wait_s, count / max(whole_s, 1e-9), float(p99[1]) if p99 else 0.0)
