"""`twinbus pair drain`: bring parked messages back by hand.

Owns: the options as they are typed, and the exit codes: 0 when nothing is left, 1 if a namespace is not reached or
refuses, 2 if messages are left that cannot be delivered now: what waits, and why, is printed. The doing is in
`draining`.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path  # noqa: TC003  # typer reads it
from typing import Annotated

import typer

from twinbus.cli.pair import app, exit_with_error
from twinbus.model.errors import ServiceBusError


@app.command()
def drain(  # noqa: PLR0913  # as many as there are options
    primary: Annotated[str, typer.Argument(metavar="PRIMARY", help="Connection string of the primary.")],
    secondary: Annotated[str, typer.Argument(metavar="SECONDARY", help="Connection string of the secondary.")],
    admin: Annotated[
        str, typer.Argument(metavar="SECONDARY_ADMIN", help="Of the secondary, as for its administration.")
    ],
    *,
    dead_letters: Annotated[
        bool,
        typer.Option("--dead-letters", help="Send the dead letters of the backlog queues again, and nothing else."),
    ] = False,
    spool: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Send what an application that has ended left in its spool_dir, and nothing else."
        ),
    ] = None,
    extra: Annotated[
        bool, typer.Option("--extra", help="Only the backlog queues at or above --count, which no syphon drains.")
    ] = False,
    count: Annotated[int, typer.Option(min=1, help="How many backlog queues the application uses.")] = 10,
    name: Annotated[
        str | None,
        typer.Option("--primary-name", help="What backlog queues are named after, where the host does not tell it."),
    ] = None,
    deduct: Annotated[bool, typer.Option("--deduct", help="Take the parked time off the time to live.")] = False,
    wait: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="End when no message has moved for this long.")
    ] = 60.0,
    not_found_grace: Annotated[
        float,
        typer.Option(min=0, metavar="SECONDS", help="How long messages wait for a destination that does not exist."),
    ] = 3600.0,
    ca_file: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="An authority to trust, as in a ready file; repeatable.")
    ] = None,
) -> None:
    """Bring parked messages of a pair back to its primary, until its backlog queues are empty."""
    from twinbus.cli import backlog_drain  # noqa: PLC0415  # brings the client: `serve` starts sooner without

    logging.getLogger("twinbus").addHandler(logging.NullHandler())  # else warnings break into the progress bar
    if spool is not None and (dead_letters or extra):
        exit_with_error(
            "pair drain", ValueError("--spool sends a spool and nothing else: leave out --dead-letters and --extra")
        )
    wanted = backlog_drain.DrainOptions(
        connection_strings=(primary, secondary, admin),
        primary_name=name,
        lowest_index=count if extra else 0,
        backlog_queue_count=count,
        ca_files=ca_file or (),
        idle_timeout_s=wait,
        deduct=deduct,
        not_found_grace_s=not_found_grace,
    )
    try:
        if spool is not None:
            _check_folder(spool)
            left = asyncio.run(backlog_drain.send_spooled(wanted, spool))
        elif dead_letters:
            left = asyncio.run(backlog_drain.resend_dead_letters(wanted))
        else:
            left = asyncio.run(backlog_drain.drain_backlog(wanted))
    except (ServiceBusError, ValueError, OSError) as error:
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            exit_with_error(
                "pair drain", ValueError(f"{error}. Give the authority of each namespace with --ca-file FILE")
            )
        exit_with_error("pair drain", error)
    if left.count:
        are_left = "1 message is left" if left.count == 1 else f"{left.count:,} messages are left"
        why = f": nothing has moved for {wait:g} s (--wait)" if left.has_timed_out else ""
        left.print_details(f"twinbus pair drain: {are_left}{why}. Remove the cause, and run it again")
        raise typer.Exit(2)


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}: say the spool_dir of the application")
