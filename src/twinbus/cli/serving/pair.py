"""The two servers of `twinbus serve --pair`, each in its own process, so that one can fail while the other serves.

    servers = [PairedServer("contoso", folder, options), PairedServer("contoso-backup", folder, options)]
    exit_code = asyncio.run(ServerPair(servers, on_ready).run())

Owns: the processes, their signals, and the exit code. SIGINT and SIGTERM stop both servers; SIGHUP reloads both. If one
server ends, the other continues, and a printed line says how to restart the ended server. The servers are in process
groups of their own, so that Ctrl-C in a terminal reaches them only through this process, also while they start.
"""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import signal
import sys
from typing import TYPE_CHECKING, Final

import msgspec
import typer

from twinbus.cli.serving.guide import program
from twinbus.server.config.settings import PROTOCOLS, InvalidSetting, parse_port
from twinbus.server.runtime.ready_file import ReadyFile

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

POLL_INTERVAL_S: Final = 0.05
"""How often the ready files are checked while the servers start."""
STOP_TIMEOUT_S: Final = 60.0
"""How long a server may take to stop before it is killed. All accepted messages are on disk at any time."""
_OWN_PARAMETERS: Final = frozenset(
    {"name", "data", "ready_file", "pair", "secondary_ports", "show_connection_string"}
    | {f"{name}_port" for name in PROTOCOLS}
)
"""Parameters of `twinbus serve` that the pair's process handles itself."""
_FAILED: Final = 1
_STOPPED: Final = frozenset({0, -signal.SIGTERM})
"""Exit codes of a server that was stopped, by its signal handler or before the handler was set."""


class PairedServer:
    """One server of a pair, and its process."""

    def __init__(self, name: str, folder: Path, ports: Mapping[str, int | None], options: Sequence[str]) -> None:
        """Create a server that is not started; `ports` have the names of protocols, and `options` are other options."""
        self.name = name
        self.data = folder / name
        self.ready_file = folder / f"{name}.json"
        self._ports = ports
        self._options = options
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start the process. Its log goes to stderr; this process prints the connection strings."""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "twinbus",
            *self._arguments(self._ports),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            process_group=0,
        )

    def read_ready_file(self) -> ReadyFile | None:
        """Return the ready file that this server's process has written, or None if it has not done so yet."""
        with contextlib.suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError):
            ready = msgspec.json.decode(self.ready_file.read_bytes(), type=ReadyFile)
            if self._process is not None and ready.pid == self._process.pid:  # else left by a server that was killed
                return ready
        return None

    def restart_command(self, ready: ReadyFile) -> str:
        """Return the command that starts this server again on the ports that it had."""
        ports = {name: getattr(ready, f"{name}_port") for name in self._ports}
        return f"{program()} {shlex.join(self._arguments(ports))}"

    @property
    def exit_code(self) -> int | None:
        """The exit code of the process, negative after a signal; None while it runs, or if it was not started."""
        return None if self._process is None else self._process.returncode

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal, unless the process has ended."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)

    async def wait(self) -> object:
        """Wait until the process has ended; return at once if it was not started."""
        return None if self._process is None else await self._process.wait()

    def _arguments(self, ports: Mapping[str, int | None]) -> list[str]:
        return [
            "serve",
            self.name,
            f"--data={self.data}",
            f"--ready-file={self.ready_file}",
            *(f"--{name}-port={'none' if port is None else port}" for name, port in ports.items()),
            *self._options,
        ]


class ServerPair:
    """The servers of a pair of namespaces, while this process runs."""

    def __init__(self, servers: Sequence[PairedServer], on_ready: Callable[[Sequence[ReadyFile]], None]) -> None:
        """Create a pair; `on_ready` is called with both ready files when both servers accept clients."""
        self._servers = servers
        self._on_ready = on_ready
        self._ready_files: list[ReadyFile] = []

    async def run(self) -> int:
        """Serve until a signal or until both servers have ended, and return the exit code."""
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        loop.add_signal_handler(signal.SIGHUP, self._send_signal, signal.SIGHUP)
        try:
            for server in self._servers:
                await server.start()
            return await self._serve(stop)
        finally:
            await self._stop_all()

    async def _serve(self, stop: asyncio.Event) -> int:
        async with asyncio.TaskGroup() as tasks:
            stopping: asyncio.Task[object] = tasks.create_task(stop.wait())
            starting: asyncio.Task[object] = tasks.create_task(self._wait_until_ready())
            running: dict[asyncio.Task[object], PairedServer] = {
                tasks.create_task(server.wait()): server for server in self._servers
            }
            try:
                await asyncio.wait({stopping, starting, *running}, return_when=asyncio.FIRST_COMPLETED)
                if not stop.is_set() and self._has_ended():
                    return self._startup_exit_code()
                while not stop.is_set() and running:
                    done, _ = await asyncio.wait({stopping, *running}, return_when=asyncio.FIRST_COMPLETED)
                    ended = [running.pop(task) for task in done if task in running]
                    if len(running) == 1 and ended:
                        self._report_end(ended[0], next(iter(running.values())))
                survivors = list(running.values()) or self._servers
                await self._stop_all()
                return 0 if all(server.exit_code in _STOPPED for server in survivors) else _FAILED
            finally:
                for task in (stopping, starting, *running):
                    task.cancel()

    async def _wait_until_ready(self) -> None:
        """Wait for both ready files, and report them."""
        while not self._check_ready():  # noqa: ASYNC110  # files
            await asyncio.sleep(POLL_INTERVAL_S)

    def _check_ready(self) -> bool:
        """Return whether both servers have been ready; report their ready files the first time."""
        if not self._ready_files:
            ready = [server.read_ready_file() for server in self._servers]
            if None in ready:
                return False
            self._ready_files = [file for file in ready if file is not None]
            self._on_ready(self._ready_files)
        return True

    def _has_ended(self) -> bool:
        """Return whether a server ended before both were ready."""
        # A server that was killed since the last look at the files was ready: killed servers leave their files behind.
        return not self._check_ready() and any(server.exit_code is not None for server in self._servers)

    def _startup_exit_code(self) -> int:
        return next((server.exit_code for server in self._servers if (server.exit_code or 0) > 0), None) or _FAILED

    def _report_end(self, ended: PairedServer, running: PairedServer) -> None:
        code = ended.exit_code or 0
        reason = f" (signal {-code})" if code < 0 else f" (exit code {code})" if code else ""
        ready = self._ready_files[self._servers.index(ended)]
        typer.echo(
            f"\n{ended.name} has stopped{reason}; {running.name} still runs. To start it again, run here:\n\n"
            f"    {ended.restart_command(ready)}\n"
        )

    def _send_signal(self, number: signal.Signals) -> None:
        for server in self._servers:
            server.send_signal(number)

    async def _stop_all(self) -> None:
        """Stop the servers that run, and wait until they have ended."""
        self._send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await self._wait_all()
        except TimeoutError:
            self._send_signal(signal.SIGKILL)
            await self._wait_all()

    async def _wait_all(self) -> None:
        await asyncio.gather(*(server.wait() for server in self._servers))


def parse_ports(text: str) -> dict[str, int | None]:
    """Return the settings for the ports of the secondary, given as four ports or as 0 for four free ports."""
    parts = ["0"] * len(PROTOCOLS) if text.strip() == "0" else text.split(",")
    if len(parts) != len(PROTOCOLS):
        raise InvalidSetting("--secondary-ports", repr(text), "give four ports, as 5673,5674,5301,5444, or 0")
    ports = [parse_port("--secondary-ports", part) for part in parts]
    return {f"{name}_port": port for name, port in zip(PROTOCOLS, ports, strict=True)}


def passed_options(context: typer.Context) -> list[str]:
    """Return the options of this command that each server of a pair gets unchanged."""
    options: list[str] = []
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name in _OWN_PARAMETERS or source is None or source.name == "DEFAULT":
            continue
        value = context.params[parameter.name or ""]
        if isinstance(value, bool):
            options.append(parameter.opts[0])
        else:
            options += [f"{parameter.opts[0]}={item}" for item in (value if isinstance(value, list) else [value])]
    return options
