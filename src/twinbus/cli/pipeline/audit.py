"""`twinbus pipeline audit`: what became of every message that was reported sent.

Owns: the options as they are typed, what is shown, and the exit codes: 0 nothing is lost, 3 something is, 4 nothing is
known to be, but not of every message it is known what became of it; 1 where something has to be mended.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import threading
from pathlib import Path  # noqa: TC003  # typer reads it
from typing import TYPE_CHECKING, Annotated, Final

import typer

from twinbus.cli.pipeline.app import MasterOption, app, reported_errors

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import SparkSession
    from rich.progress import Progress

    from twinbus.pipeline.audit.contents import NamespaceAccess
    from twinbus.pipeline.audit.job import AuditSettings

_POLL_INTERVAL_S: Final = 0.5
_TIME_FORMATS: Final = ["%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S"]


@app.command()
def audit(  # noqa: PLR0913  # as many as there are options
    journals: Annotated[
        list[Path], typer.Argument(metavar="JOURNALS...", help="Folders of journals: senders', receivers', syphons'.")
    ],
    *,
    primary: Annotated[
        str | None, typer.Option(metavar="STRING", help="Connection string of the primary, to look what is there.")
    ] = None,
    primary_admin: Annotated[
        str | None, typer.Option(metavar="STRING", help="The same for its administration: what entities are.")
    ] = None,
    secondary: Annotated[
        str | None, typer.Option(metavar="STRING", help="Connection string of the secondary, to look what is parked.")
    ] = None,
    captures: Annotated[
        list[str] | None, typer.Option("--captures", metavar="FOLDER", help="Captured files; repeatable.")
    ] = None,
    captured_as: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="What captures call the primary; if not said, its host's name; repeatable."),
    ] = None,
    covered: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ENTITY",
            help="All its receivers write journals, or are captures, given here; * for any letters; repeatable.",
        ),
    ] = None,
    namespace: Annotated[
        list[str] | None,
        typer.Option(metavar="ADDRESS", help="Rows of this namespace only (the journals' column); repeatable."),
    ] = None,
    since: Annotated[
        dt.datetime | None, typer.Option(formats=_TIME_FORMATS, metavar="TIME", help="Sends from then on, UTC.")
    ] = None,
    until: Annotated[
        dt.datetime | None, typer.Option(formats=_TIME_FORMATS, metavar="TIME", help="Sends up to then, UTC.")
    ] = None,
    skew: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="How far apart the clocks of all machines may be.")
    ] = 5.0,
    report: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Write every message with its verdict there, as Parquet.")
    ] = None,
    ca_file: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="An authority to trust, as in a ready file; repeatable.")
    ] = None,
    master: MasterOption = None,
) -> None:
    """Say of every message that was reported sent whether it was delivered, parked or dead-lettered, or is lost."""
    with reported_errors("audit"):
        # Inside, since `serve` starts sooner without.
        from twinbus.pipeline.audit.job import AuditSettings  # noqa: PLC0415

        settings = AuditSettings(
            journals=journals,
            captures=captures or (),
            capture_names=captured_as or (),
            primary=_make_access(primary, ca_file or ()),
            primary_admin=_make_access(primary_admin, ca_file or ()),
            secondary=_make_access(secondary, ca_file or ()),
            covered_entities=covered or (),
            namespaces=namespace or (),
            since=_as_utc(since),
            until=_as_utc(until),
            max_clock_skew_s=skew,
            report_folder=report,
        )
        code = run(settings, master)
    raise typer.Exit(code)


def _make_access(connection_string: str | None, ca_files: Sequence[Path]) -> NamespaceAccess | None:
    from twinbus.client import ConnectionString  # noqa: PLC0415
    from twinbus.pipeline.audit.contents import NamespaceAccess  # noqa: PLC0415

    if connection_string is None:
        return None
    ConnectionString.parse(connection_string)  # what is wrong with it is said before Spark starts
    return NamespaceAccess(connection_string, tuple(str(file) for file in ca_files))


def _as_utc(time: dt.datetime | None) -> dt.datetime | None:
    return None if time is None else time.replace(tzinfo=dt.UTC)


def run(settings: AuditSettings, master: str | None) -> int:
    """All of it; the exit code."""
    from twinbus.cli.pipeline.audit_view import show  # noqa: PLC0415
    from twinbus.pipeline.audit.inspection import check_access  # noqa: PLC0415
    from twinbus.pipeline.audit.job import run_audit as judge_all  # noqa: PLC0415
    from twinbus.pipeline.spark import session  # noqa: PLC0415

    with _progress() as shown:
        shown.show_step("asking the namespaces")
        asyncio.run(check_access(settings))  # what a wrong key or address makes fail does so before Spark is started
        shown.show_step("starting Spark")
        with session("twinbus audit", master=master) as spark, shown.watching_spark(spark):
            outcome = judge_all(spark, settings, shown.show_step)
    show(outcome, settings.report_folder)
    return outcome.exit_code


class _AuditProgress:
    """The step that is being done, how much of it Spark has done, and for how long it all has lasted."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=None)

    def show_step(self, text: str) -> None:
        self._progress.update(self._task, description=text, total=None)

    @contextlib.contextmanager
    def watching_spark(self, spark: SparkSession) -> Iterator[None]:
        over = threading.Event()
        thread = threading.Thread(target=self._watch, args=(spark, over), name="twinbus-progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _watch(self, spark: SparkSession, stopped: threading.Event) -> None:
        tracker = spark.sparkContext.statusTracker()
        while not stopped.wait(_POLL_INTERVAL_S):
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            tasks = sum(one.numTasks for one in stages if one is not None)
            done = sum(one.numCompletedTasks for one in stages if one is not None)
            self._progress.update(self._task, completed=done, total=tasks or None)


@contextlib.contextmanager
def _progress() -> Iterator[_AuditProgress]:
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=20), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield _AuditProgress(progress)
