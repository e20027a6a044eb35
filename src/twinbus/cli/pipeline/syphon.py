"""The command `twinbus pipeline syphon`: move parked messages back to the primary, with Spark.

Owns the options, the output and the exit codes: 0 if the syphon was stopped or the backlog queues are empty, 1 on
errors that the user can fix, 2 if messages are left that cannot be delivered now.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from typing import TYPE_CHECKING, Annotated, Final

import typer

from twinbus.cli import connection
from twinbus.cli.deprecated_arguments import accepting
from twinbus.cli.output import JsonOption, examples, print_json
from twinbus.cli.pipeline.app import MasterOption, app, reported_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from twinbus.pipeline.syphon import Progress, Report, SparkSyphon, Wanted
    from twinbus.pipeline.syphon.report import ReportRow

MAX_SHOWN_ROWS: Final = 40
"""Maximum number of report rows to print."""


@app.command(
    cls=accepting("--connection-string", "--secondary-connection-string", "--secondary-admin-connection-string"),
    epilog=examples("twinbus pipeline syphon --secondary-profile backup --available-now"),
)
def syphon(  # noqa: PLR0913  # one per option
    *,
    available_now: Annotated[
        bool,
        typer.Option(
            "--available-now", help="Exit when the backlog queues are empty, instead of running until stopped."
        ),
    ] = False,
    wait: Annotated[
        float, typer.Option(min=0, help="With --available-now: seconds without progress after which to stop.")
    ] = 60.0,
    name: Annotated[
        str | None,
        typer.Option(
            "--primary-name",
            help="Name of the primary in backlog queues (default: from its host name, ready file or profile).",
        ),
    ] = None,
    deduct: Annotated[bool, typer.Option("--deduct", help="Deduct the parked time from the time to live.")] = False,
    not_found_grace: Annotated[
        float,
        typer.Option(min=0, metavar="SECONDS", help="How long messages wait for a destination that does not exist."),
    ] = 3600.0,
    report: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Append the report as Parquet to this folder or Spark path."),
    ] = None,
    journal_dir: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Folder for the journals of the tasks, on the machines on which they run."),
    ] = None,
    connection_string: connection.ConnectionStringOption = None,
    ready_file: connection.ReadyFileOption = None,
    profile: connection.ProfileOption = None,
    secondary_connection_string: connection.SecondaryConnectionStringOption = None,
    secondary_admin: connection.SecondaryAdminConnectionStringOption = None,
    secondary_ready_file: connection.SecondaryReadyFileOption = None,
    secondary_profile: connection.SecondaryProfileOption = None,
    ca_file: connection.CaFileOption = None,
    as_json: JsonOption = False,
    master: MasterOption = None,
) -> None:
    """Move the parked messages of a pair back to its primary, with Spark tasks."""
    with reported_errors("syphon"):
        from twinbus.pipeline.syphon import Pair, Wanted  # noqa: PLC0415  # `serve` starts faster

        primary, secondary = connection.find_pair(
            (connection_string, ready_file, profile),
            (secondary_connection_string, secondary_ready_file, secondary_profile),
            ca_file,
            secondary_admin,
        )
        pair = Pair.of(
            primary.connection_string,
            secondary.connection_string,
            secondary.admin_connection_string,
            name=name or primary.find_name(),
            ca_files=primary.ca_files,
        )
        settings = Wanted(
            pair=pair,
            available_now=available_now,
            wait_s=wait,
            deduct=deduct,
            not_found_grace_s=not_found_grace,
            journal_dir=journal_dir,
            report_place=report,
        )
        with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
            result = _run(settings, master)
    if as_json:
        print_json(_report_json(result))
    else:
        _print_report(result)
    if result.write_error is not None:
        typer.echo(f"twinbus pipeline syphon: the report was not written to {result.write_error}", err=True)
        raise typer.Exit(1)
    if available_now and not result.is_finished:
        left = "an unknown number of" if result.left is None else f"{result.left:,}"
        typer.echo(f"twinbus pipeline syphon: {left} messages are left: {result.reason}", err=True)
        raise typer.Exit(2)


def _run(settings: Wanted, master: str | None) -> Report:
    from twinbus.pipeline.spark import session  # noqa: PLC0415
    from twinbus.pipeline.syphon import MASTER, SETTINGS, Report, SparkSyphon  # noqa: PLC0415

    counts = asyncio.run(_count_parked(settings))
    if not counts and settings.available_now:
        typer.echo("There are no such backlog queues.")
        return Report(is_finished=True)
    typer.echo(
        f"{sum(counts.values()):,} messages are parked in {len(counts):,} backlog queues; starting Spark", err=True
    )
    with (
        session("twinbus syphon", master=master or MASTER, settings=SETTINGS) as spark,
        _progress(settings) as on_progress,
    ):
        return asyncio.run(_drain(SparkSyphon(spark, settings, on_progress)))


async def _count_parked(settings: Wanted) -> dict[str, int]:
    """Return the number of messages in each backlog queue; a wrong key or address fails here, before Spark starts."""
    from twinbus.pipeline.syphon.assignment import count_parked  # noqa: PLC0415

    async with settings.pair.manager() as manager:
        return await count_parked(manager, settings.pair.primary_name)


async def _drain(spark_syphon: SparkSyphon) -> Report:
    """Run the syphon until it finishes. The first signal stops the syphon cleanly, the second signal at once."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, spark_syphon.stop)
    return await spark_syphon.run()


@contextlib.contextmanager
def _progress(settings: Wanted) -> Iterator[Callable[[Progress], None]]:
    """Show the progress; yield a function that updates it."""
    from rich import progress as rich  # noqa: PLC0415
    from rich.console import Console  # noqa: PLC0415
    from rich.markup import escape  # noqa: PLC0415

    counts = (
        [rich.BarColumn(), rich.MofNCompleteColumn()]
        if settings.available_now
        else [rich.TextColumn("{task.completed:,}")]
    )
    columns = (
        rich.SpinnerColumn(),
        rich.TextColumn("moved"),
        *counts,
        rich.TimeElapsedColumn(),
        rich.TextColumn("{task.description}"),
    )
    with rich.Progress(*columns, console=Console(stderr=True), transient=True) as display:
        task = display.add_task("", total=None)

        def on_progress(progress: Progress) -> None:
            done = progress.moved + progress.dead_lettered
            text = f"{progress.tasks} tasks, {progress.left:,} left. {progress.problem}"
            display.update(task, completed=done, total=done + progress.left, description=escape(text))

        yield on_progress


def _print_report(report: Report) -> None:
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Column, Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    numbers = [Column(name, justify="right", no_wrap=True) for name in ("moved", "dead", "left", "took", "tasks")]
    table = Table("from", Column("to", overflow="fold"), *numbers, "ended")
    ordered = sorted(report.rows, key=lambda row: (len(row.backlog_queue), row.backlog_queue, row.destination or ""))
    for row in ordered[:MAX_SHOWN_ROWS]:
        table.add_row(*map(Text, _cells(row)))
    console = Console(soft_wrap=False)
    if report.rows:
        prefix, _, _ = report.rows[0].backlog_queue.rpartition("/")
        console.print(Text(f"From backlog queues {prefix}/... (dead: dead-lettered in the backlog queue)"))
        console.print(table)
    if len(report.rows) > MAX_SHOWN_ROWS:
        console.print(f"and {len(report.rows) - MAX_SHOWN_ROWS:,} more rows")
    console.print(f"{report.moved:,} messages were moved, {report.dead_lettered:,} dead-lettered.")


def _report_json(report: Report) -> dict[str, object]:
    return {
        "is_finished": report.is_finished,
        "moved": report.moved,
        "dead_lettered": report.dead_lettered,
        "left": report.left,
        "reason": report.reason,
        "rows": report.rows,
    }


def _cells(row: ReportRow) -> list[str]:
    took = (
        f"{(row.last_moved - row.first_moved).total_seconds():,.1f} s"
        if row.first_moved is not None and row.last_moved is not None
        else ""
    )
    moved = f"{row.moved:,}" if row.is_exact else f">={row.moved:,}"
    left = "?" if row.left is None else f"{row.left:,}"
    destination = row.destination or ("(unknown)" if row.dead_lettered else "")
    _, _, number = row.backlog_queue.rpartition("/")
    return [number, destination, moved, f"{row.dead_lettered:,}", left, took, str(row.attempts), row.end_reason]
