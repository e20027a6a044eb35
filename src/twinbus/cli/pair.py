"""`twinbus pair`: look at a pair of namespaces.

Owns: the options as they are typed, and the exit codes: 1 if the namespace is not reached or refuses. What is printed
is in `pair_view`.
"""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  # typer reads it
from typing import Annotated, NoReturn

import msgspec
import typer

from twinbus.cli.admin_client import AdminClient, AdminRequestFailed
from twinbus.cli.pair_status import read_pair_reports, to_pair_statuses

app = typer.Typer(help="About a pair of namespaces.", no_args_is_help=True)


@app.callback()
def pair() -> None:
    """About a pair of namespaces."""


@app.command()
def status(
    secondary: Annotated[
        str, typer.Argument(metavar="CONNECTION_STRING", help="Of the secondary, as for its administration.")
    ],
    *,
    primary: Annotated[str | None, typer.Option(metavar="NAME", help="Only this primary.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the reports of the senders and the backlog queues as JSON.")
    ] = False,
    ca_file: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="An authority to trust, as in a ready file; repeatable.")
    ] = None,
) -> None:
    """Show every live sender: which entities it has failed over, why, since when; and all parked messages."""
    try:
        service = AdminClient(secondary, ca_file or ())
        answers = read_pair_reports(service, primary)
    except AdminRequestFailed as error:
        exit_with_error("pair status", error)
    if as_json:
        content = {"now": answers.now, "senders": answers.sender_reports, "backlog_queues": answers.queue_reports}
        typer.echo(msgspec.json.encode(content))
        return
    from rich.console import Console  # noqa: PLC0415  # `serve` starts sooner without

    from twinbus.cli.pair_view import show  # noqa: PLC0415

    show(Console(highlight=False), to_pair_statuses(answers), service.address, primary)


def exit_with_error(command: str, error: Exception) -> NoReturn:
    """One line, and no traceback."""
    typer.echo(f"twinbus {command}: {error}", err=True)
    raise typer.Exit(1)
