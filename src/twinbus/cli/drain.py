"""The command `twinbus pair drain`: move parked messages back to the primary by hand.

Owns the options and the exit codes: 0 if no message is left, 1 if a namespace cannot be reached or refuses, 2 if some
messages cannot be delivered now (they are printed with the reason). The work is done in `backlog_drain`.
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
def drain(  # noqa: PLR0913  # one per option
    primary: Annotated[str, typer.Argument(metavar="PRIMARY", help="Connection string of the primary.")],
    secondary: Annotated[str, typer.Argument(metavar="SECONDARY", help="Connection string of the secondary.")],
    admin: Annotated[
        str, typer.Argument(metavar="SECONDARY_ADMIN", help="Connection string for administration of the secondary.")
    ],
    *,
    dead_letters: Annotated[
        bool,
        typer.Option("--dead-letters", help="Only resend the dead-lettered messages of the backlog queues."),
    ] = False,
    spool: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Only send the messages in the spool_dir of an application that has stopped."),
    ] = None,
    extra: Annotated[
        bool,
        typer.Option("--extra", help="Only drain the backlog queues from number --count on, which no syphon drains."),
    ] = False,
    count: Annotated[int, typer.Option(min=1, help="Number of backlog queues that the application uses.")] = 10,
    name: Annotated[
        str | None,
        typer.Option("--primary-name", help="Name of the primary in backlog queues (default: from its host name)."),
    ] = None,
    deduct: Annotated[bool, typer.Option("--deduct", help="Deduct the parked time from the time to live.")] = False,
    wait: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="Stop when no message has moved for this long.")
    ] = 60.0,
    not_found_grace: Annotated[
        float,
        typer.Option(min=0, metavar="SECONDS", help="How long messages wait for a destination that does not exist."),
    ] = 3600.0,
    ca_file: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="CA certificate to trust, such as ca_file of a ready file; repeatable."),
    ] = None,
) -> None:
    """Move the parked messages of a pair back to the primary until its backlog queues are empty."""
    from twinbus.cli import backlog_drain  # noqa: PLC0415  # imports the client: `serve` starts faster

    logging.getLogger("twinbus").addHandler(logging.NullHandler())  # warnings would break the progress bar
    if spool is not None and (dead_letters or extra):
        exit_with_error("pair drain", ValueError("--spool cannot be combined with --dead-letters or --extra"))
    options = backlog_drain.DrainOptions(
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
            remaining = asyncio.run(backlog_drain.send_spooled(options, spool))
        elif dead_letters:
            remaining = asyncio.run(backlog_drain.resend_dead_letters(options))
        else:
            remaining = asyncio.run(backlog_drain.drain_backlog(options))
    except (ServiceBusError, ValueError, OSError) as error:
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            exit_with_error(
                "pair drain", ValueError(f"{error}. Give the CA certificate of each namespace with --ca-file FILE")
            )
        exit_with_error("pair drain", error)
    if remaining.count:
        count_text = "1 message is left" if remaining.count == 1 else f"{remaining.count:,} messages are left"
        reason = f": nothing has moved for {wait:g} s (--wait)" if remaining.has_timed_out else ""
        remaining.print_details(f"twinbus pair drain: {count_text}{reason}. Remove the cause and run again")
        raise typer.Exit(2)


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}: give the spool_dir of the application")
