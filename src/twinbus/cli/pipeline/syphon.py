"""`twinbus pipeline syphon`: bring parked messages back to the primary, on Spark.

Owns: the options as they are typed, what is shown, and the exit codes: 0 when it was stopped, or the backlog queues are
empty; 1 where something has to be mended; 2 if messages are left that nobody can deliver now.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from pathlib import Path  # noqa: TC003  # typer reads it
from typing import TYPE_CHECKING, Annotated, Final

import typer

from twinbus.cli.pipeline.app import MasterOption, app, reported_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from twinbus.pipeline.syphon import Progress, Report, SparkSyphon, Wanted
    from twinbus.pipeline.syphon.report import ReportRow

MAX_SHOWN_ROWS: Final = 40
"""Rows of the report on the screen."""


@app.command()
def syphon(  # noqa: PLR0913  # as many as there are options
    primary: Annotated[str, typer.Argument(metavar="PRIMARY", help="Connection string of the primary.")],
    secondary: Annotated[str, typer.Argument(metavar="SECONDARY", help="Connection string of the secondary.")],
    admin: Annotated[
        str, typer.Argument(metavar="SECONDARY_ADMIN", help="Of the secondary, as for its administration.")
    ],
    *,
    available_now: Annotated[
        bool, typer.Option("--available-now", help="End when the backlog queues are empty; else go on until stopped.")
    ] = False,
    wait: Annotated[float, typer.Option(min=0, help="Seconds after which what has not moved is left.")] = 60.0,
    name: Annotated[
        str | None,
        typer.Option("--primary-name", help="What backlog queues are named after, where the host does not tell it."),
    ] = None,
    deduct: Annotated[bool, typer.Option("--deduct", help="Take the parked time off the time to live.")] = False,
    not_found_grace: Annotated[
        float,
        typer.Option(min=0, metavar="SECONDS", help="How long messages wait for a destination that does not exist."),
    ] = 3600.0,
    report: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Add the report there as Parquet: a folder, or a place Spark knows."),
    ] = None,
    journal_dir: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Where tasks write down what became of each message, on their machines."),
    ] = None,
    ca_file: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="An authority to trust, as in a ready file; repeatable.")
    ] = None,
    master: MasterOption = None,
) -> None:
    """Bring parked messages of a pair back to its primary, by tasks of Spark."""
    with reported_errors("syphon"):
        from twinbus.pipeline.syphon import Pair, Wanted  # noqa: PLC0415  # `serve` starts sooner without

        pair = Pair.of(primary, secondary, admin, name=name, ca_files=ca_file or ())
        wanted = Wanted(
            pair=pair,
            available_now=available_now,
            wait_s=wait,
            deduct=deduct,
            not_found_grace_s=not_found_grace,
            journal_dir=journal_dir,
            report_place=report,
        )
        done = _run(wanted, master)
    _print_report(done)
    if done.write_error is not None:
        typer.echo(f"twinbus pipeline syphon: the report was not written to {done.write_error}", err=True)
        raise typer.Exit(1)
    if available_now and not done.is_finished:
        left = "an unknown number of" if done.left is None else f"{done.left:,}"
        typer.echo(f"twinbus pipeline syphon: {left} messages are left: {done.reason}", err=True)
        raise typer.Exit(2)


def _run(settings: Wanted, master: str | None) -> Report:
    from twinbus.pipeline.spark import session  # noqa: PLC0415
    from twinbus.pipeline.syphon import MASTER, SETTINGS, Report, SparkSyphon  # noqa: PLC0415

    found = asyncio.run(_count_parked(settings))
    if not found and settings.available_now:
        typer.echo("There is no such backlog queue.")
        return Report(is_finished=True)
    typer.echo(f"{sum(found.values()):,} messages are parked in {len(found):,} backlog queues; Spark starts", err=True)
    with session("twinbus syphon", master=master or MASTER, settings=SETTINGS) as spark, _progress(settings) as told:
        return asyncio.run(_drain(SparkSyphon(spark, settings, told)))


async def _count_parked(settings: Wanted) -> dict[str, int]:
    """What a wrong key or address makes fail does so before Spark is started."""
    from twinbus.pipeline.syphon.assignment import count_parked  # noqa: PLC0415

    async with settings.pair.manager() as manager:
        return await count_parked(manager, settings.pair.primary_name)


async def _drain(spark_syphon: SparkSyphon) -> Report:
    """Until it ends, or is told to: asked again, at once."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, spark_syphon.stop)
    return await spark_syphon.run()


@contextlib.contextmanager
def _progress(settings: Wanted) -> Iterator[Callable[[Progress], None]]:
    """Show how far it is."""
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
    with rich.Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task("", total=None)

        def told(progress: Progress) -> None:
            done = progress.moved + progress.dead_lettered
            text = f"{progress.tasks} tasks, {progress.left:,} left. {progress.problem}"
            shown.update(task, completed=done, total=done + progress.left, description=escape(text))

        yield told


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
        console.print(Text(f"From backlog queues {prefix}/... (dead: dead-lettered there)"))
        console.print(table)
    if len(report.rows) > MAX_SHOWN_ROWS:
        console.print(f"and {len(report.rows) - MAX_SHOWN_ROWS:,} rows more")
    console.print(f"{report.moved:,} messages were moved, {report.dead_lettered:,} dead-lettered.")


def _cells(row: ReportRow) -> list[str]:
    took = (
        f"{(row.last_moved - row.first_moved).total_seconds():,.1f} s"
        if row.first_moved is not None and row.last_moved is not None
        else ""
    )
    moved = f"{row.moved:,}" if row.is_exact else f">={row.moved:,}"
    left = "?" if row.left is None else f"{row.left:,}"
    place = row.destination or ("(nobody can tell)" if row.dead_lettered else "")
    _, _, number = row.backlog_queue.rpartition("/")
    return [number, place, moved, f"{row.dead_lettered:,}", left, took, str(row.attempts), row.end_reason]
