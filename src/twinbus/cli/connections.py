"""The commands `twinbus connections ...`: the clients of a namespace, with the locks and sessions that they hold.

Owns the options, the tables and the confirmation. The data come from the JSON API of the namespace.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from twinbus.cli import connection
from twinbus.cli.output import (
    CommandGroup,
    JsonOption,
    SequenceNumber,
    YesOption,
    confirm,
    examples,
    format_time,
    plural,
    print_json,
    print_table,
    printable,
    run_command,
)
from twinbus.cli.units import format_size
from twinbus.model.errors import ServiceBusError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from twinbus.cli.connection import Target
    from twinbus.client import NamespaceMonitor
    from twinbus.model.status import ConnectionDetails, LockStatus

MAX_SHOWN_LOCKS: Final = 100
"""Maximum number of locks to list for a connection."""
MAX_READ_LOCKS: Final = 10_000
"""Maximum number of an entity's locks to read when searching for the locks of a connection."""

app = typer.Typer(cls=CommandGroup, no_args_is_help=True)

IdArgument = Annotated[str, typer.Argument(metavar="ID", help="Id of the connection, from twinbus connections list.")]


@app.callback()
def connections() -> None:
    """List, show and close the connections of clients."""


def open_monitor(target: Target) -> NamespaceMonitor:
    """Return a monitor of the namespace, which the caller closes. Raise OSError for an unreadable CA file."""
    from twinbus.client import NamespaceMonitor  # noqa: PLC0415  # `--help` starts faster
    from twinbus.client.retry import RECONNECT_ONCE  # noqa: PLC0415  # the user sees a failure soon, and may repeat

    options: dict[str, Any] = {"operation_timeout": 20.0, "retry_policy": RECONNECT_ONCE}
    tls = target.tls_context()
    if tls is not None:
        options["tls"] = tls
    return NamespaceMonitor.from_connection_string(target.admin_connection_string, **options)


def _with_monitor(command: str, find: Callable[[], Target], use: Callable[[NamespaceMonitor], Awaitable[None]]) -> None:
    async def run() -> None:
        async with open_monitor(find()) as monitor:
            await use(monitor)

    run_command(f"connections {command}", run)


@app.command("list", epilog=examples("twinbus connections list", "twinbus connections list --json"))
def list_connections(
    *,
    connection_string: connection.ConnectionStringOption = None,
    ready_file: connection.ReadyFileOption = None,
    profile: connection.ProfileOption = None,
    ca_file: connection.CaFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the connections of all clients, with the number of locks and sessions that each holds."""

    async def use(monitor: NamespaceMonitor) -> None:
        found = [one async for one in monitor.connections()]
        if as_json:
            print_json(found)
        elif not found:
            typer.echo("No client is connected.")
        else:
            columns = ("id", "client", "container", "key", "links", "locks", "sessions")
            print_table(columns, [
                (one.id, one.client, one.container_id, ", ".join(one.keys), one.link_count, one.lock_count,
                 one.session_count)
                for one in found
            ])  # fmt: skip

    _with_monitor("list", partial(connection.find_target, connection_string, ready_file, profile, ca_file), use)


@app.command(epilog=examples("twinbus connections show 0-17"))
def show(
    connection_id: IdArgument,
    *,
    connection_string: connection.ConnectionStringOption = None,
    ready_file: connection.ReadyFileOption = None,
    profile: connection.ProfileOption = None,
    ca_file: connection.CaFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a connection with its links, and the messages and sessions that it has locked."""

    async def use(monitor: NamespaceMonitor) -> None:
        details = await monitor.connection(connection_id)
        locks = await _read_locks(monitor, details)
        if as_json:
            print_json({"connection": details, "locks": [{"entity": path, "lock": lock} for path, lock in locks]})
        else:
            _print_details(details, locks)

    _with_monitor("show", partial(connection.find_target, connection_string, ready_file, profile, ca_file), use)


@app.command(epilog=examples("twinbus connections close 0-17 --yes"))
def close(
    connection_id: IdArgument,
    *,
    yes: YesOption = False,
    connection_string: connection.ConnectionStringOption = None,
    ready_file: connection.ReadyFileOption = None,
    profile: connection.ProfileOption = None,
    ca_file: connection.CaFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Close a connection: its sessions become free, its other locks expire. Clients connect again by themselves."""

    async def use(monitor: NamespaceMonitor) -> None:
        details = await monitor.connection(connection_id)
        held = f"{plural(details.lock_count, 'lock')} and {plural(details.session_count, 'session')}"
        confirm(f"Close the connection of {printable(details.client)} with {held}?", is_confirmed=yes)
        await monitor.close_connection(connection_id)
        if as_json:
            print_json({"id": connection_id, "closed": True})
        else:
            typer.echo(f"Closed the connection of {printable(details.client)} with {held}.")

    _with_monitor("close", partial(connection.find_target, connection_string, ready_file, profile, ca_file), use)


async def _read_locks(monitor: NamespaceMonitor, details: ConnectionDetails) -> list[tuple[str, LockStatus]]:
    """Return the first locks that the receivers of a connection hold, with the path of their entity."""
    found: list[tuple[str, LockStatus]] = []
    for path in dict.fromkeys(link.address for link in details.links if link.receive_mode == "peek-lock"):
        count = 0
        try:
            async for lock in monitor.locks(path):
                count += 1
                if lock.holder is not None and lock.holder.connection_id == details.id:
                    found.append((path, lock))
                if len(found) >= MAX_SHOWN_LOCKS or count >= MAX_READ_LOCKS:
                    break
        except ServiceBusError:  # the entity was deleted meanwhile, or the key has no right on it
            continue
    return found[:MAX_SHOWN_LOCKS]


def _print_details(details: ConnectionDetails, locks: list[tuple[str, LockStatus]]) -> None:
    rows = [
        ("client", details.client),
        ("container", details.container_id),
        ("product", details.product),
        ("protocol", f"{details.protocol}, {details.tls or 'without TLS'}"),
        ("keys", ", ".join(details.keys)),
        ("since", format_time(details.since)),
        (
            "sent by the client",
            f"{plural(details.received_messages, 'message')}, {format_size(details.received_bytes)}",
        ),
        ("received by the client", f"{plural(details.sent_messages, 'message')}, {format_size(details.sent_bytes)}"),
        ("locks", f"{details.lock_count:,}"),
        ("sessions", f"{details.session_count:,}"),
    ]
    typer.echo(f"Connection {printable(details.id)}\n")
    print_table(("property", "value"), rows)
    if details.links:
        typer.echo("")
        columns = ("link", "role", "entity", "session", "credit", "unsettled", "messages")
        print_table(columns, [
            (link.name, link.role, link.address, link.session_id, link.credit, link.unsettled, link.messages)
            for link in details.links
        ])  # fmt: skip
    if locks:
        typer.echo("")
        print_table(("locked message", "entity", "session", "until"), [
            (SequenceNumber(lock.sequence_number), path, lock.session_id, lock.locked_until) for path, lock in locks
        ])  # fmt: skip
    if len(locks) < details.lock_count and len(locks) >= MAX_SHOWN_LOCKS:
        typer.echo(f"and {details.lock_count - len(locks):,} more locks")
