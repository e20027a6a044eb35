"""`twinbus pair`: look at a pair of namespaces.

Owns: the options as they are typed, what is printed, and the exit codes: 1 if the namespace is not reached or refuses.
"""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  # typer reads it
from typing import TYPE_CHECKING, Annotated, NoReturn

import msgspec
import typer

from twinbus.cli.pairing import read_reports, read_senders
from twinbus.cli.service import Service, ServiceFailed

if TYPE_CHECKING:
    from twinbus.cli.pairing import Sender

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
    primary: Annotated[str | None, typer.Option(metavar="NAME", help="Only what is paired with this one.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the reports as they came.")] = False,
    ca_file: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="An authority to trust, as in a ready file; repeatable.")
    ] = None,
) -> None:
    """Show every sender of the application: which entities it holds for down, why, since when, and what is parked."""
    try:
        service = Service(secondary, ca_file or ())
        if as_json:
            typer.echo(msgspec.json.encode(read_reports(service, primary)))
        else:
            _show(read_senders(service, primary))
    except ServiceFailed as error:
        stop("pair status", error)


def _show(senders: list[Sender]) -> None:
    from rich.console import Console  # noqa: PLC0415  # `serve` starts sooner without
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    console = Console(soft_wrap=False)
    if not senders:
        console.print("No sender has reported lately.")
        return
    table = Table("sender", "primary", "entity", "state", "why", "since", "next ping", "backlog")
    for sender in senders:
        backlog = "\n".join(sender.backlog)
        rows = [(one.path, one.state, one.why, one.since, one.next_ping) for one in sender.unhealthy]
        for number, row in enumerate(rows or [("", "all healthy", "", "", "")]):
            first = (sender.client, sender.primary) if number == 0 else ("", "")
            table.add_row(*map(Text, (*first, *row, backlog if number == 0 else "")))
    console.print(table)
    for sender in senders:
        for alarm in sender.alarms:
            console.print(Text(f"{sender.client}: {alarm}", style="bold red"))


def stop(command: str, error: Exception) -> NoReturn:
    """One line, and no traceback."""
    typer.echo(f"twinbus {command}: {error}", err=True)
    raise typer.Exit(1)
