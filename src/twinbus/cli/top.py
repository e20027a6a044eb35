"""The command `twinbus top`: the figures of a namespace, live.

Owns the options, the polling, and the keys. The lines are in `top_view`. While the namespace does not answer, the last
figures stay on the screen with the reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import sys
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import typer

from twinbus.cli import connection
from twinbus.cli.connections import open_monitor
from twinbus.cli.output import JsonOption, describe_error, examples, print_json, print_json_line, run_command
from twinbus.model.errors import ServiceBusError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from twinbus.cli.top_view import Snapshot
    from twinbus.client import NamespaceMonitor

    Read: TypeAlias = Callable[[], Coroutine[Any, Any, Snapshot]]

MAX_ENTITIES: Final = 1_000
"""Maximum number of entities to read at each refresh."""
MIN_INTERVAL_S: Final = 0.2
EXAMPLES: Final = examples("twinbus top", "twinbus top --once --json")
_START: Final = "\x1b[?1049h\x1b[?25l"
_END: Final = "\x1b[?25h\x1b[?1049l"
_HOME: Final = "\x1b[H"
_END_OF_LINE: Final = "\x1b[K"
_END_OF_SCREEN: Final = "\x1b[J"
_QUIT_KEYS: Final = ("q", "Q", "\x03", "\x04")


def top(  # one per option
    *,
    interval: Annotated[
        float, typer.Option(min=MIN_INTERVAL_S, metavar="SECONDS", help="Time between two refreshes.")
    ] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print the figures once and exit.")] = False,
    prefix: Annotated[str, typer.Option(metavar="TEXT", help="Only entities whose path starts so.")] = "",
    connection_string: connection.ConnectionStringOption = None,
    ready_file: connection.ReadyFileOption = None,
    profile: connection.ProfileOption = None,
    ca_file: connection.CaFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show rates, messages, the age of the oldest message, pairs and alerts, live. Press q to quit.

    With --json, each refresh is one line. Without a terminal, the figures are printed once.
    """

    async def run() -> None:
        target = connection.find_target(connection_string, ready_file, profile, ca_file)
        async with open_monitor(target) as monitor:
            read = partial(_read, monitor, prefix)
            if once or not (as_json or sys.stdout.isatty()):
                _print_once(await read(), as_json=as_json)
                return
            stop = asyncio.Event()
            loop = asyncio.get_running_loop()
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, stop.set)
            await (_stream(read, interval, stop) if as_json else _show(read, interval, stop))

    run_command("top", run)


async def _read(monitor: NamespaceMonitor, prefix: str) -> Snapshot:
    from twinbus.cli.top_view import Snapshot  # noqa: PLC0415  # `--help` starts faster

    overview, pairings = await monitor.overview(), await monitor.pairings()
    entities = []
    async for entity in monitor.entities(prefix):
        entities.append(entity)
        if len(entities) >= MAX_ENTITIES:
            break
    return Snapshot(overview, entities, pairings)


def _print_once(snapshot: Snapshot, *, as_json: bool) -> None:
    from twinbus.cli.top_view import lines_of  # noqa: PLC0415

    if as_json:
        print_json(snapshot)
        return
    width = shutil.get_terminal_size((80, 24)).columns
    for line in lines_of(snapshot, None, width, None):
        typer.echo(line)


async def _stream(read: Read, interval_s: float, stop: asyncio.Event) -> None:
    """Print a line of JSON at each refresh until stopped; failures are also printed as lines."""
    while not stop.is_set():
        try:
            print_json_line(await _unless_stopped(read, stop))
        except (ServiceBusError, OSError) as error:
            print_json_line({"error": describe_error(error)})
        except _Stopped:
            return
        await _pause(stop, interval_s)


async def _show(read: Read, interval_s: float, stop: asyncio.Event) -> None:
    """Redraw the screen until a key or a signal stops the command."""
    from twinbus.cli.top_view import lines_of  # noqa: PLC0415

    snapshot: Snapshot | None = None
    failure: str | None = None
    with _screen(stop):
        while not stop.is_set():
            try:
                snapshot, failure = await _unless_stopped(read, stop), None
            except (ServiceBusError, OSError) as error:
                failure = describe_error(error)
            except _Stopped:
                return
            size = shutil.get_terminal_size((80, 24))
            lines = lines_of(snapshot, failure, size.columns, size.lines)
            sys.stdout.write(_HOME + "\r\n".join(line + _END_OF_LINE for line in lines) + _END_OF_SCREEN)
            sys.stdout.flush()
            await _pause(stop, interval_s)


class _Stopped(Exception):
    """The user has stopped the command during a request."""


async def _unless_stopped(read: Read, stop: asyncio.Event) -> Snapshot:
    """Return the result of a request. If the user stops the command first, cancel the request and raise _Stopped."""
    request, stopped = asyncio.ensure_future(read()), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((request, stopped), return_when=asyncio.FIRST_COMPLETED)
        if not request.done():
            raise _Stopped
        return request.result()
    finally:
        stopped.cancel()
        if not request.done():
            request.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await request


async def _pause(stop: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), seconds)


@contextlib.contextmanager
def _screen(stop: asyncio.Event) -> Iterator[None]:
    """Use the terminal's second screen, and read keys without Enter; restore both at the end."""
    import termios  # noqa: PLC0415  # not on every platform
    import tty  # noqa: PLC0415

    loop = asyncio.get_running_loop()
    has_keys = sys.stdin.isatty()
    previous = termios.tcgetattr(sys.stdin) if has_keys else None

    def on_key() -> None:
        if sys.stdin.read(1) in _QUIT_KEYS:
            stop.set()

    sys.stdout.write(_START)
    try:
        if has_keys:
            tty.setcbreak(sys.stdin)
            loop.add_reader(sys.stdin, on_key)
        yield
    finally:
        if previous is not None:
            loop.remove_reader(sys.stdin)
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, previous)
        sys.stdout.write(_END)
        sys.stdout.flush()
