"""The command group `twinbus pair`, and `twinbus pair status`.

Owns the options and the exit codes: 1 if the namespace cannot be reached or refuses a request. The output is in
`pair_view`.
"""

from __future__ import annotations

from typing import Annotated

import typer

from twinbus.cli import connection
from twinbus.cli.admin_client import AdminClient
from twinbus.cli.deprecated_arguments import accepting
from twinbus.cli.output import CommandGroup, examples, print_json, run_command
from twinbus.cli.pair_status import PairReports, read_pair_reports, to_pair_statuses

app = typer.Typer(cls=CommandGroup, help="Inspect and drain a pair of namespaces.", no_args_is_help=True)


@app.callback()
def pair() -> None:
    """Inspect and drain a pair of namespaces."""


@app.command(
    cls=accepting("--secondary-admin-connection-string"),
    epilog=examples("twinbus pair status", "twinbus pair status --secondary-profile backup --primary contoso"),
)
def status(  # one per option
    *,
    primary: Annotated[str | None, typer.Option(metavar="NAME", help="Show only this primary.")] = None,
    secondary_connection_string: connection.SecondaryConnectionStringOption = None,
    secondary_admin: connection.SecondaryAdminConnectionStringOption = None,
    secondary_ready_file: connection.SecondaryReadyFileOption = None,
    secondary_profile: connection.SecondaryProfileOption = None,
    ca_file: connection.CaFileOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the reports of the senders and the backlog queues as JSON.")
    ] = False,
) -> None:
    """Show the live senders, the entities they have failed over (with reason and time), and the parked messages."""

    def read() -> tuple[AdminClient, PairReports]:
        target = connection.find_target(
            secondary_connection_string,
            secondary_ready_file,
            secondary_profile,
            ca_file,
            role=connection.Role.SECONDARY,
            admin=secondary_admin,
        )
        client = AdminClient(target.admin_connection_string, target.ca_files)
        return client, read_pair_reports(client, primary)

    client, reports = run_command("pair status", read)
    if as_json:
        print_json({"now": reports.now, "senders": reports.sender_reports, "backlog_queues": reports.queue_reports})
        return
    from rich.console import Console  # noqa: PLC0415  # imported late, so that `serve` starts faster

    from twinbus.cli.pair_view import show  # noqa: PLC0415

    show(Console(highlight=False), to_pair_statuses(reports), client.address, primary)
