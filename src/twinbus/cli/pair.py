"""The command group `twinbus pair`, and `twinbus pair status`.

Owns the options and the exit codes: 1 if the namespace cannot be reached or refuses. The output is in `pair_view`.
"""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  # typer reads it
from typing import Annotated, NoReturn

import msgspec
import typer

from twinbus.cli.admin_client import AdminClient, AdminRequestFailed
from twinbus.cli.pair_status import read_pair_reports, to_pair_statuses

app = typer.Typer(help="Inspect and drain a pair of namespaces.", no_args_is_help=True)


@app.callback()
def pair() -> None:
    """Inspect and drain a pair of namespaces."""


@app.command()
def status(
    secondary: Annotated[
        str, typer.Argument(metavar="CONNECTION_STRING", help="Connection string for administration of the secondary.")
    ],
    *,
    primary: Annotated[str | None, typer.Option(metavar="NAME", help="Show only this primary.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the reports of the senders and the backlog queues as JSON.")
    ] = False,
    ca_file: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="CA certificate to trust, such as ca_file of a ready file; repeatable."),
    ] = None,
) -> None:
    """Show the live senders, the entities they have failed over (with reason and time), and the parked messages."""
    try:
        client = AdminClient(secondary, ca_file or ())
        reports = read_pair_reports(client, primary)
    except AdminRequestFailed as error:
        exit_with_error("pair status", error)
    if as_json:
        content = {"now": reports.now, "senders": reports.sender_reports, "backlog_queues": reports.queue_reports}
        typer.echo(msgspec.json.encode(content))
        return
    from rich.console import Console  # noqa: PLC0415  # imported late, so that `serve` starts faster

    from twinbus.cli.pair_view import show  # noqa: PLC0415

    show(Console(highlight=False), to_pair_statuses(reports), client.address, primary)


def exit_with_error(command: str, error: Exception) -> NoReturn:
    """Print the error in one line, without a traceback, and exit with code 1."""
    typer.echo(f"twinbus {command}: {error}", err=True)
    raise typer.Exit(1)
