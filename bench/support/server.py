"""A twinbus server to be measured, and the load client that measures it.

    with Server.started(folder, "--stores", "1") as server:
        server.create_queue("orders")
        run = Load(build(folder), server).send("orders", 100_000)

Owns: the server's process (started, stopped, killed, started again on what it left behind), what the kernel knows of it
(/proc), its queues over HTTP, and one run of peer/load.c. What is measured, and whether it is enough, is each bench's.
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
"""Longer than any bar: a start that takes too long is to be measured, not cut off."""
STOP_TIMEOUT_S: Final = 60.0
POLL_INTERVAL_S: Final = 0.005
LOG_LINES: Final = 20
"""As much of the server's log is shown where it fails."""
LINGER_S: Final = 0.5
"""How long load.c waits after its last message before it closes."""
RUN_TIMEOUT_S: Final = 600.0
ORDINARY_OPEN_FILES: Final = 1_024
"""The soft limit that a login shell gives. The server is started with it, whatever this machine allows."""
MIB: Final = 1_048_576
_QUEUE: Final = (
    '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">'
    '<QueueDescription xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect">'
    "<MaxSizeInMegabytes>{}</MaxSizeInMegabytes></QueueDescription></content></entry>"
)


def run(main: Callable[[], int]) -> NoReturn:
    """Run a bench as a program. Told to stop (SIGTERM, Ctrl-C), it stops what it started and removes what it wrote."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("stopped")


def build(folder: Path) -> Path:
    """The load client, made in that folder."""
    load = folder / "load"
    subprocess.run([HERE / "peer" / "build", load], check=True)
    return load


# --- the server -------------------------------------------------------------------------------------------------------


class Server:
    """One namespace, in life after life."""

    def __init__(self, folder: Path, *options: str, python: str = sys.executable) -> None:
        """`folder` gets the data directory, the ready file and the log; `options` are those of `twinbus serve`.

        `python` is the interpreter of the installation to be measured (default: this one).
        """
        self.data = folder / "data"
        self.ready_file = folder / "ready.json"
        self.amqp_port = 0
        self.key_name = ""
        self.key = ""
        self.connection_string = ""
        """For messages; `management_string` is for entities."""
        self._http_port = 0
        self._log = folder / "server.log"
        self._options = options
        self._python = python
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    @contextlib.contextmanager
    def started(cls, folder: Path, *options: str, python: str = sys.executable) -> Iterator[Server]:
        """A server from its start until the block ends, whatever happens in it."""
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
        """What the kernel knows of it."""
        assert self._process is not None, "the server does not run"
        return ProcessStats(self._process.pid)

    def start(self) -> float:
        """Start it; the seconds until it serves. Exits where it does not."""
        assert self._process is None, "the server runs already"
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
                sys.exit(f"twinbus does not serve:\n{self.log_tail()}")
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
    def management_string(self) -> str:
        """The connection string of its HTTP port."""
        return self.connection_string.replace(f":{self.amqp_port}", f":{self._http_port}", 1)

    def stop(self) -> float:
        """SIGTERM; the seconds until it is gone. Exits where it does not end well."""
        started = time.monotonic()
        status = self._end(signal.SIGTERM)
        if status != 0:
            sys.exit(f"twinbus was asked to stop and ended with {status}:\n{self.log_tail()}")
        return time.monotonic() - started

    def kill(self) -> None:
        """SIGKILL: it has no time for anything."""
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
        """The end of what it said."""
        lines = self._log.read_text(errors="replace").splitlines() if self._log.exists() else []
        return "\n".join(lines[-LOG_LINES:])

    def log_errors(self) -> list[str]:
        """What it said that was more than information: a bench that has seen such lines did not measure peace."""
        lines = self._log.read_text(errors="replace").splitlines()
        return [line for line in lines if re.search(r"^\S+ (warning|error|critical) ", line)]

    # --- its queues ---------------------------------------------------------------------------------------------------

    def create_queue(self, name: str, max_size_mb: int = 1024) -> None:
        """A queue that was not there before."""
        self._request("PUT", name, _QUEUE.format(max_size_mb), expected=201)

    def message_count(self, name: str) -> int:
        """Messages that wait in a queue."""
        found = re.search(r"ActiveMessageCount>(\d+)<", self._request("GET", name, None, expected=200))
        assert found is not None
        return int(found[1])

    def _request(
        self, method: str, name: str, body: str | None, *, expected: int, headers: Mapping[str, str] | None = None
    ) -> str:
        connection = http.client.HTTPConnection("127.0.0.1", self._http_port, timeout=30)
        headers = {"Authorization": self._token(name), "Content-Type": "application/atom+xml", **(headers or {})}
        with contextlib.closing(connection):
            connection.request(method, f"/{name}?api-version=2021-05", body, headers)
            answer = connection.getresponse()
            text = answer.read().decode()
        if answer.status != expected:
            sys.exit(f"{method} {name}: {answer.status} {text[:300]}")
        return text

    def _token(self, name: str) -> str:
        uri = urllib.parse.quote_plus(f"http://127.0.0.1:{self._http_port}/{name}")
        expiry = int(time.time()) + 3600
        digest = hmac.new(self.key.encode(), f"{uri}\n{expiry}".encode(), hashlib.sha256).digest()
        signature = urllib.parse.quote_plus(base64.b64encode(digest))
        return f"SharedAccessSignature sr={uri}&sig={signature}&se={expiry}&skn={self.key_name}"


@contextlib.contextmanager
def raise_open_file_limit() -> Iterator[None]:
    """What is started in the block finds the limits that it would find under a login shell."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(ORDINARY_OPEN_FILES, soft), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# --- what the kernel knows --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BackgroundUsage:
    """What RocksDB's own threads have done so far."""

    cpu_s: float
    bytes: int
    """Read and written."""


@dataclass(frozen=True, slots=True)
class ProcessStats:
    """One process, as /proc shows it."""

    pid: int

    @property
    def resident_bytes(self) -> int:
        """Memory it has now."""
        return self._status("VmRSS")

    @property
    def peak_resident_bytes(self) -> int:
        """The most it ever had."""
        return self._status("VmHWM")

    @property
    def max_open_files(self) -> int:
        """Its soft limit."""
        return resource.prlimit(self.pid, resource.RLIMIT_NOFILE)[0]

    @property
    def open_files(self) -> int:
        """Files and sockets it has open."""
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    @property
    def cpu_s(self) -> float:
        """Processor time of all its threads."""
        return _cpu_s(Path(f"/proc/{self.pid}/stat"))

    @property
    def foreground_cpu_s(self) -> float:
        """Processor time of its threads, to the nanosecond, without RocksDB's flushes and compactions."""
        spent_ns = 0
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            with contextlib.suppress(OSError):  # a thread that has just ended
                if not (task / "comm").read_text().startswith("rocksdb:"):
                    spent_ns += int((task / "schedstat").read_text().split()[0])
        return spent_ns / 1e9

    @property
    def background(self) -> BackgroundUsage:
        """Flushes and compactions: RocksDB names the threads that do them."""
        cpu_s, size = 0.0, 0
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            with contextlib.suppress(OSError):  # a thread that has just ended
                if (task / "comm").read_text().startswith("rocksdb:"):
                    cpu_s += _cpu_s(task / "stat")
                    counted = dict(line.split(": ") for line in (task / "io").read_text().splitlines())
                    size += int(counted["rchar"]) + int(counted["wchar"])
        return BackgroundUsage(cpu_s, size)

    def wait_for_idle_background(self, still_s: float, timeout_s: float = 900.0) -> float | None:
        """Wait until RocksDB has done nothing for so long; the seconds until it came to rest, None if it never did."""
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
    fields = stat.read_text().rpartition(")")[2].split()  # a name may have spaces and brackets in it
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# --- the load client --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LoadRun:
    """One run of the load client."""

    rate: float
    """Messages a second, from the first credit or delivery to the last answer."""
    wait_s: float
    """From its start to the first credit or delivery: an empty-looking queue that has to be searched shows here."""
    whole_rate: float
    """Messages a second with that wait in it."""
    p99_ms: float
    """Of the accepts; 0 for a run that receives."""


@dataclass(frozen=True, slots=True)
class LoadClient:
    """The load client, pointed at a server."""

    binary: Path
    server: Server
    size: int = 1024

    def send(self, queue: str, count: int) -> LoadRun:
        """Send so many messages; all were accepted."""
        return self._run("send", queue, count)

    def receive(self, queue: str, count: int) -> LoadRun:
        """Receive and accept so many: those that one such `send` sent, none missing, none twice, no others."""
        return self._run("recv", queue, count)

    def receive_second(self, queue: str, count: int) -> LoadRun:
        """Receive so many as the Azure SDKs do: done when the server has confirmed each settlement."""
        return self._run("recv", queue, count, SECOND="1")

    def _run(self, mode: str, queue: str, count: int, **environment: str) -> LoadRun:
        server = self.server
        where = ["127.0.0.1", str(server.amqp_port), queue, str(count), str(self.size)]
        try:
            return run_load([str(self.binary), mode, *where, server.key_name, server.key], **environment)
        except LoadClientFailed as error:
            sys.exit(f"{mode} {queue} {count}: {error}\n{server.log_tail()}")


class LoadClientFailed(Exception):
    """The load client did not come to its end, or found a message missing, twice, or foreign."""


def run_load(words: list[str], **environment: str) -> LoadRun:
    """Run the load client; it must have missed nothing."""
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
        raise LoadClientFailed(f"not done after {RUN_TIMEOUT_S:.0f} s") from None
    whole_s = time.monotonic() - started - LINGER_S
    found = re.search(r"(\d+) messages .* in ([\d.]+) s = (\d+) msg/s", done.stdout)
    if done.returncode or found is None or re.search(r"(missing|duplicates|foreign) [1-9]", done.stdout):
        raise LoadClientFailed(f"{done.stdout}{done.stderr}")
    count, rate = int(found[1]), float(found[3])
    p99 = re.search(r"p99 ([\d.]+) ms", done.stdout)
    wait_s = max(0.0, whole_s - count / rate)
    return LoadRun(rate, wait_s, count / max(whole_s, 1e-9), float(p99[1]) if p99 else 0.0)
