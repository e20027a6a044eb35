"""`twinbus pair drain`: bring parked messages back by hand.

Owns: the options as they are typed, and the exit codes: 0 when the backlog queues that are meant are empty, 1 if a
namespace is not reached or refuses, 2 if messages are left that nobody can deliver now. The doing is in `draining`.
"""

from __future__ import annotations

import asyncio
from pathlib import Path  # noqa: TC003  # typer reads it
from typing import Annotated

import typer

from twinbus.cli.pair import app, stop
from twinbus.model.errors import ServiceBusError


@app.command()
def drain(  # noqa: PLR0913  # as many as there are options
    primary: Annotated[str, typer.Argument(metavar="PRIMARY", help="Connection string of the primary.")],
    secondary: Annotated[str, typer.Argument(metavar="SECONDARY", help="Connection string of the secondary.")],
    admin: Annotated[
        str, typer.Argument(metavar="SECONDARY_ADMIN", help="Of the secondary, as for its administration.")
    ],
    *,
    extra: Annotated[
        bool, typer.Option("--extra", help="Only the backlog queues at or above --count, which no syphon drains.")
    ] = False,
    count: Annotated[int, typer.Option(min=1, help="How many backlog queues the application has.")] = 10,
    name: Annotated[
        str | None,
        typer.Option("--primary-name", help="What backlog queues are named after, where the host does not tell it."),
    ] = None,
    deduct: Annotated[bool, typer.Option("--deduct", help="Take the parked time off the time to live.")] = False,
    wait: Annotated[float, typer.Option(help="End when no message has moved for so many seconds.")] = 60.0,
    ca_file: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="An authority to trust, as in a ready file; repeatable.")
    ] = None,
) -> None:
    """Bring parked messages of a pair back to its primary, until its backlog queues are empty."""
    from twinbus.cli.draining import bring_back  # noqa: PLC0415  # brings the client: `serve` starts sooner without

    try:
        left = asyncio.run(
            bring_back(
                (primary, secondary, admin), name, count if extra else 0, ca_file or (), wait_s=wait, deduct=deduct
            )
        )
    except (ServiceBusError, ValueError, OSError) as error:
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            stop("pair drain", ValueError(f"{error}. Give the authority of each namespace with --ca-file FILE"))
        stop("pair drain", error)
    if left:
        are_left = "1 message is left" if left == 1 else f"{left:,} messages are left"
        text = f"{are_left}: nothing has moved for {wait:g} s (--wait). Run it again when the primary takes messages"
        typer.echo(f"twinbus pair drain: {text}", err=True)
        raise typer.Exit(2)
