"""The command `twinbus pipeline audit`: trace every message that was reported as sent.

Owns the options, the progress display and the exit codes: 0 if no message is lost, 3 if messages are lost, 4 if the
audit is inconclusive because some messages could not be traced, 1 on errors that the user can fix.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import threading
from pathlib import Path  # noqa: TC003  # typer reads it
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

from twinbus.cli import connection
from twinbus.cli.connection import Role
from twinbus.cli.output import JsonOption, examples, print_json
from twinbus.cli.pipeline.app import MasterOption, app, reported_errors

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import SparkSession
    from rich.progress import Progress

    from twinbus.pipeline.audit.contents import NamespaceAccess
    from twinbus.pipeline.audit.job import AuditSettings

_POLL_INTERVAL_S: Final = 0.5
_TIME_FORMATS: Final = ["%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S"]


@app.command(
    epilog=examples(
        "twinbus pipeline audit /srv/journals --ready-file primary.json",
        "twinbus pipeline audit /srv/journals --captures /srv/captured --covered '*'",
    )
)
def audit(  # noqa: PLR0913  # one per option
    journals: Annotated[
        list[Path],
        typer.Argument(metavar="JOURNALS", help="Folders with journals of senders, receivers and syphons."),
    ],
    *,
    captures: Annotated[
        list[str] | None, typer.Option("--captures", metavar="FOLDER", help="Folder with captured files; repeatable.")
    ] = None,
    captured_as: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Name of the primary in captures (default: from its host name); repeatable."),
    ] = None,
    covered: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ENTITY",
            help="Entity with all its receivers in these journals and captures; * is a wildcard; repeatable.",
        ),
    ] = None,
    namespace: Annotated[
        list[str] | None,
        typer.Option(metavar="ADDRESS", help="Only journal rows of this namespace; repeatable."),
    ] = None,
    since: Annotated[
        dt.datetime | None,
        typer.Option(formats=_TIME_FORMATS, metavar="TIME", help="Only sends at or after this time (UTC)."),
    ] = None,
    until: Annotated[
        dt.datetime | None,
        typer.Option(formats=_TIME_FORMATS, metavar="TIME", help="Only sends up to this time (UTC)."),
    ] = None,
    skew: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="Maximum difference between the clocks of the machines.")
    ] = 5.0,
    report: Annotated[
        str | None,
        typer.Option(metavar="FOLDER", help="Write every message with its verdict to this folder, as Parquet."),
    ] = None,
    connection_string: connection.ConnectionStringOption = None,
    ready_file: connection.ReadyFileOption = None,
    profile: connection.ProfileOption = None,
    primary: Annotated[str | None, typer.Option("--primary", hidden=True)] = None,
    primary_admin: Annotated[str | None, typer.Option("--primary-admin", hidden=True)] = None,
    secondary_connection_string: connection.SecondaryConnectionStringOption = None,
    secondary_ready_file: connection.SecondaryReadyFileOption = None,
    secondary_profile: connection.SecondaryProfileOption = None,
    secondary: Annotated[str | None, typer.Option("--secondary", hidden=True)] = None,
    ca_file: connection.CaFileOption = None,
    as_json: JsonOption = False,
    master: MasterOption = None,
) -> None:
    """Check whether every message that was reported as sent was delivered, parked or dead-lettered, or is lost."""
    with reported_errors("audit"):
        # Imported here, so that `serve` starts faster.
        from twinbus.pipeline.audit.job import AuditSettings  # noqa: PLC0415

        places = (connection_string, ready_file, profile)
        secondary_places = (secondary_connection_string, secondary_ready_file, secondary_profile)
        first = _find_access(places, ca_file, Role.PRIMARY, primary, primary_admin)
        second = _find_access(secondary_places, ca_file, Role.SECONDARY, secondary)
        settings = AuditSettings(
            journals=journals,
            captures=captures or (),
            capture_names=captured_as or (),
            primary=first.messaging,
            primary_admin=first.administration,
            secondary=second.messaging,
            covered_entities=covered or (),
            namespaces=namespace or (),
            since=_as_utc(since),
            until=_as_utc(until),
            max_clock_skew_s=skew,
            report_folder=report,
        )
        code = run(settings, master, as_json=as_json)
    raise typer.Exit(code)


class _Access(NamedTuple):
    """Access to a namespace that the audit reads; both fields are None if the audit does not read the namespace."""

    messaging: NamespaceAccess | None
    administration: NamespaceAccess | None


def _find_access(
    places: connection.Places,
    ca_file: list[Path] | None,
    role: Role,
    messaging: str | None = None,
    admin: str | None = None,
) -> _Access:
    """Return access to the namespace that the options or the environment name; an audit of journals needs no namespace.

    `messaging` and `admin` are from the options of earlier versions, each of which gives one kind of access.
    """
    if messaging is not None or admin is not None:
        return _Access(_make_access(messaging, ca_file or ()), _make_access(admin, ca_file or ()))
    target = connection.find_optional_target(*places, ca_file, role=role)
    if target is None:
        return _Access(None, None)
    return _Access(
        _make_access(target.connection_string, target.ca_files),
        _make_access(target.admin_connection_string, target.ca_files),
    )


def _make_access(connection_string: str | None, ca_files: Sequence[Path]) -> NamespaceAccess | None:
    from twinbus.client import ConnectionString  # noqa: PLC0415
    from twinbus.pipeline.audit.contents import NamespaceAccess  # noqa: PLC0415

    if connection_string is None:
        return None
    ConnectionString.parse(connection_string)  # an invalid string fails here, before Spark starts
    return NamespaceAccess(connection_string, tuple(str(file) for file in ca_files))


def _as_utc(time: dt.datetime | None) -> dt.datetime | None:
    return None if time is None else time.replace(tzinfo=dt.UTC)


def run(settings: AuditSettings, master: str | None, *, as_json: bool = False) -> int:
    """Run the audit, print the result, and return the exit code."""
    from twinbus.cli.pipeline.audit_view import result_json, show  # noqa: PLC0415
    from twinbus.pipeline.audit.inspection import check_access  # noqa: PLC0415
    from twinbus.pipeline.audit.job import run_audit as judge_all  # noqa: PLC0415
    from twinbus.pipeline.spark import session  # noqa: PLC0415

    with _progress() as progress:
        progress.show_step("connecting to the namespaces")
        asyncio.run(check_access(settings))  # a wrong key or address fails here, before Spark starts
        progress.show_step("starting Spark")
        with session("twinbus audit", master=master) as spark, progress.watching_spark(spark):
            result = judge_all(spark, settings, progress.show_step)
    if as_json:
        print_json(result_json(result))
    else:
        show(result, settings.report_folder)
    return result.exit_code


class _AuditProgress:
    """Progress display: the current step, the share of completed Spark tasks, and the elapsed time."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=None)

    def show_step(self, text: str) -> None:
        self._progress.update(self._task, description=text, total=None)

    @contextlib.contextmanager
    def watching_spark(self, spark: SparkSession) -> Iterator[None]:
        stopped = threading.Event()
        thread = threading.Thread(target=self._watch, args=(spark, stopped), name="twinbus-progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stopped.set()
            thread.join()

    def _watch(self, spark: SparkSession, stopped: threading.Event) -> None:
        tracker = spark.sparkContext.statusTracker()
        while not stopped.wait(_POLL_INTERVAL_S):
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            tasks = sum(info.numTasks for info in stages if info is not None)
            done = sum(info.numCompletedTasks for info in stages if info is not None)
            self._progress.update(self._task, completed=done, total=tasks or None)


@contextlib.contextmanager
def _progress() -> Iterator[_AuditProgress]:
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=20), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield _AuditProgress(progress)
