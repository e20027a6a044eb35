"""The command `twinbus pair drain`: move parked messages back to the primary by hand.

Owns the options and the exit codes: 0 if no message is left, 1 if a namespace cannot be reached or refuses a request, 2
if some messages cannot be delivered now (they are printed with the reason). `backlog_drain` does the work.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from functools import partial
from pathlib import Path  # noqa: TC003  # typer reads it
from typing import TYPE_CHECKING, Annotated

import typer

from twinbus.cli import connection
from twinbus.cli.deprecated_arguments import accepting
from twinbus.cli.output import EXIT_INTERRUPTED, JsonOption, Misuse, examples, fail, print_json, run_command
from twinbus.cli.pair import app
from twinbus.model.errors import ServiceBusError

if TYPE_CHECKING:
    from twinbus.cli.backlog_drain import DrainOptions, RemainingMessages


@app.command(
    cls=accepting("--connection-string", "--secondary-connection-string", "--secondary-admin-connection-string"),
    epilog=examples("twinbus pair drain", "twinbus pair drain --profile main --secondary-profile backup"),
)
def drain(  # noqa: PLR0913  # one per option
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
        typer.Option(
            "--primary-name",
            help="Name of the primary in backlog queues (default: from its host name, ready file or profile).",
        ),
    ] = None,
    deduct: Annotated[bool, typer.Option("--deduct", help="Deduct the parked time from the time to live.")] = False,
    wait: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="Stop when no message has moved for this long.")
    ] = 60.0,
    not_found_grace: Annotated[
        float,
        typer.Option(min=0, metavar="SECONDS", help="How long messages wait for a destination that does not exist."),
    ] = 3600.0,
    connection_string: connection.ConnectionStringOption = None,
    ready_file: connection.ReadyFileOption = None,
    profile: connection.ProfileOption = None,
    secondary_connection_string: connection.SecondaryConnectionStringOption = None,
    secondary_admin: connection.SecondaryAdminConnectionStringOption = None,
    secondary_ready_file: connection.SecondaryReadyFileOption = None,
    secondary_profile: connection.SecondaryProfileOption = None,
    ca_file: connection.CaFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Move the parked messages of a pair back to the primary until its backlog queues are empty."""
    from twinbus.cli import backlog_drain  # noqa: PLC0415  # imports the client: `serve` starts faster

    logging.getLogger("twinbus").addHandler(logging.NullHandler())  # warnings would break the progress bar
    if spool is not None and (dead_letters or extra):
        fail("pair drain", Misuse("--spool cannot be combined with --dead-letters or --extra"))
    primary, secondary = run_command(
        "pair drain",
        partial(
            connection.find_pair,
            (connection_string, ready_file, profile),
            (secondary_connection_string, secondary_ready_file, secondary_profile),
            ca_file,
            secondary_admin,
        ),
    )
    options = backlog_drain.DrainOptions(
        connection_strings=(
            primary.connection_string,
            secondary.connection_string,
            secondary.admin_connection_string,
        ),
        primary_name=name or primary.find_name(),
        lowest_index=count if extra else 0,
        backlog_queue_count=count,
        ca_files=primary.ca_files,
        idle_timeout_s=wait,
        deduct=deduct,
        not_found_grace_s=not_found_grace,
    )
    with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
        remaining = _drain(options, spool, dead_letters=dead_letters)
    if as_json:
        details = [{"subject": subject, "reason": reason} for subject, reason in remaining.details]
        is_stalled = remaining.count > 0 and remaining.has_timed_out
        print_json({"left": remaining.count, "has_timed_out": is_stalled, "details": details})
    if remaining.count:
        count_text = "1 message is left" if remaining.count == 1 else f"{remaining.count:,} messages are left"
        reason = f": nothing has moved for {wait:g} s (--wait)" if remaining.has_timed_out else ""
        remaining.print_details(f"twinbus pair drain: {count_text}{reason}. Remove the cause and run again")
        raise typer.Exit(2)


def _drain(options: DrainOptions, spool: Path | None, *, dead_letters: bool) -> RemainingMessages:
    from twinbus.cli import backlog_drain  # noqa: PLC0415  # imports the client: `serve` starts faster

    try:
        if spool is not None:
            _check_folder(spool)
            return asyncio.run(backlog_drain.send_spooled(options, spool))
        if dead_letters:
            return asyncio.run(backlog_drain.resend_dead_letters(options))
        return asyncio.run(backlog_drain.drain_backlog(options))
    except KeyboardInterrupt:
        typer.echo("twinbus pair drain: interrupted", err=True)
        raise typer.Exit(EXIT_INTERRUPTED) from None
    except (ServiceBusError, ValueError, OSError) as error:
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            text = f"{error}. Give the CA certificate of each namespace with --ca-file FILE"
            fail("pair drain", ValueError(text))
        fail("pair drain", error)


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}: give the spool_dir of the application")
