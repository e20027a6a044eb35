"""`twinbus pipeline capture`: what goes through entities, as Parquet files.

Owns: the options as they are typed, what is shown, and the exit codes: 0 when it was stopped, or all is captured that
was there; 1 where something has to be mended.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from pathlib import Path  # noqa: TC003  # typer reads it
from typing import TYPE_CHECKING, Annotated

import typer

from twinbus.cli.pipeline.app import MasterOption, app, reported_errors

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.progress import Progress, TaskID

    from twinbus.pipeline.capture.driver import Capture
    from twinbus.pipeline.capture.manifest import Manifest
    from twinbus.pipeline.capture.settings import CaptureSettings


@app.command()
def capture(  # noqa: PLR0913  # as many as there are options
    connection: Annotated[
        str, typer.Argument(metavar="CONNECTION_STRING", help="Of the namespace.", envvar="TWINBUS_CONNECTION_STRING")
    ],
    to: Annotated[str, typer.Argument(metavar="FOLDER", help="Where files go: a folder, or s3://, hdfs://, gs://...")],
    entities: Annotated[
        list[str], typer.Argument(metavar="ENTITY...", help="Queues, or topic/Subscriptions/name; several at once.")
    ],
    *,
    window: Annotated[float, typer.Option(metavar="SECONDS", help="A file is closed after so long, 60 to 900.")] = 300,
    size: Annotated[int, typer.Option(metavar="MB", help="... or with so much in it, 10 to 500.")] = 300,
    available_now: Annotated[
        bool, typer.Option("--available-now", help="Capture what is there, and end; else go on until stopped.")
    ] = False,
    complete: Annotated[
        bool, typer.Option("--complete", help="Complete what is captured; nobody else may receive meanwhile.")
    ] = False,
    allow_data_loss: Annotated[
        bool, typer.Option("--allow-data-loss", help="Go on where messages were lost before they were captured.")
    ] = False,
    namespace: Annotated[
        str | None, typer.Option(metavar="NAME", help="What paths begin with; if not said, the host's name.")
    ] = None,
    ca_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="An authority to trust, as in a ready file.")
    ] = None,
    master: MasterOption = None,
) -> None:
    """Write what goes through entities to Parquet files, each with a manifest; nothing twice, nothing missing."""
    with reported_errors("capture"):
        # Inside, since `serve` starts sooner without.
        from twinbus.pipeline.capture.settings import CaptureSettings, make_limits  # noqa: PLC0415

        settings = CaptureSettings(
            connection_string=connection,
            entities=entities,
            target_uri=to,
            limits=make_limits(window, size),
            namespace=namespace,
            ca_file=None if ca_file is None else str(ca_file),
            completes_captured=complete,
            allows_data_loss=allow_data_loss,
            available_now=available_now,
        )
        _warn_about_shared_entities(settings)
        run(settings, master)


def _warn_about_shared_entities(settings: CaptureSettings) -> None:
    """A queue has messages only until somebody has them."""
    shared = [path for path in settings.entities if "/subscriptions/" not in path.lower()]
    if shared and not settings.completes_captured:
        typer.echo(
            f"{', '.join(shared)}: what others receive before its window closes is not captured. A subscription of its "
            "own is captured as a whole, and so is a queue with --complete.",
            err=True,
        )


def run(settings: CaptureSettings, master: str | None) -> None:
    """Until it is stopped, or all is done."""
    from twinbus.pipeline.capture.driver import Capture  # noqa: PLC0415
    from twinbus.pipeline.source import read_positions  # noqa: PLC0415
    from twinbus.pipeline.spark import session  # noqa: PLC0415

    for path in settings.entities:  # what a wrong key or path makes fail does so before Spark is started
        read_positions(settings.source_options(path))
    with session("twinbus capture", master=master) as spark, _progress() as shown:
        asyncio.run(_until_stopped(Capture(spark, settings, shown)))
    typer.echo(f"{shown.messages:,} messages in {shown.files:,} files.")


async def _until_stopped(capture_job: Capture) -> None:
    """Asked once it ends in order; asked again, at once."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()

    def end() -> None:
        stop.set()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, end)
    typer.echo("Capturing; ctrl-C ends it.", err=True)
    await capture_job.run(stop)


class CaptureProgress:
    """What is on the screen: a line for each file, and below them how much there is of each entity."""

    def __init__(self, progress: Progress) -> None:
        """Nothing yet."""
        self._progress = progress
        self._tasks: dict[str, TaskID] = {}
        self.messages = 0
        self.files = 0

    def on_captured(self, manifest: Manifest) -> None:
        """There is one more file."""
        self.messages += manifest.eventCount
        self.files += 1
        self._progress.console.print(
            f"{manifest.entity}, fragment {manifest.fragment}: {manifest.eventCount:,} messages, "
            f"{manifest.sizeInBytes:,} bytes, {manifest.file}",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
        if manifest.entity not in self._tasks:
            self._tasks[manifest.entity] = self._progress.add_task(manifest.entity, total=None)
        self._progress.advance(self._tasks[manifest.entity], manifest.eventCount)

    def on_retry(self, entity: str, reason: str) -> None:
        """An entity cannot be captured now."""
        self._progress.console.print(f"{entity} is tried again: {reason}", markup=False, soft_wrap=True)


@contextlib.contextmanager
def _progress() -> Iterator[CaptureProgress]:
    from rich import progress as rich  # noqa: PLC0415
    from rich.console import Console  # noqa: PLC0415

    columns = (
        rich.SpinnerColumn(),
        rich.TextColumn("{task.description}", markup=False),
        rich.TextColumn("{task.completed:,} messages"),
        rich.TimeElapsedColumn(),
    )
    with rich.Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        yield CaptureProgress(shown)
