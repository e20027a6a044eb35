"""The command `twinbus pipeline capture`: write the messages in entities to Parquet files.

Owns the options, the output and the exit codes: 0 if the capture was stopped or has captured all available messages, 1
on errors that the user can fix.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from typing import TYPE_CHECKING, Annotated

import typer

from twinbus.cli import connection
from twinbus.cli.deprecated_arguments import accepting
from twinbus.cli.output import JsonOption, examples, print_json
from twinbus.cli.pipeline.app import MasterOption, app, reported_errors, single_ca_file

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.progress import Progress, TaskID

    from twinbus.pipeline.capture.driver import Capture
    from twinbus.pipeline.capture.manifest import Manifest
    from twinbus.pipeline.capture.settings import CaptureSettings


@app.command(
    cls=accepting("--connection-string"),
    epilog=examples("twinbus pipeline capture /srv/captured orders --available-now"),
)
def capture(  # noqa: PLR0913  # one per option
    to: Annotated[str, typer.Argument(metavar="FOLDER", help="Folder for the files, or s3://, hdfs://, gs://...")],
    entities: Annotated[
        list[str], typer.Argument(metavar="ENTITY", help="Queues, or subscriptions as topic/Subscriptions/name.")
    ],
    *,
    window: Annotated[float, typer.Option(metavar="SECONDS", help="Close a file after this time, 60 to 900.")] = 300,
    size: Annotated[int, typer.Option(metavar="MB", help="Close a file of this size, 10 to 500.")] = 300,
    available_now: Annotated[
        bool,
        typer.Option(
            "--available-now", help="Capture the available messages and exit, instead of running until stopped."
        ),
    ] = False,
    complete: Annotated[
        bool, typer.Option("--complete", help="Complete captured messages; other receivers are locked out meanwhile.")
    ] = False,
    allow_data_loss: Annotated[
        bool, typer.Option("--allow-data-loss", help="Continue if messages were lost before they were captured.")
    ] = False,
    namespace: Annotated[
        str | None, typer.Option(metavar="NAME", help="First part of file paths (default: from the host name).")
    ] = None,
    connection_string: connection.ConnectionStringOption = None,
    ready_file: connection.ReadyFileOption = None,
    profile: connection.ProfileOption = None,
    ca_file: connection.CaFileOption = None,
    as_json: JsonOption = False,
    master: MasterOption = None,
) -> None:
    """Write each message of some entities exactly once to Parquet files with manifests."""
    with reported_errors("capture"):
        # Imported here, so that `serve` starts faster.
        from twinbus.pipeline.capture.settings import CaptureSettings, make_limits  # noqa: PLC0415

        target = connection.find_target(connection_string, ready_file, profile, ca_file)
        settings = CaptureSettings(
            connection_string=target.connection_string,
            entities=entities,
            target_uri=to,
            limits=make_limits(window, size),
            namespace=namespace,
            ca_file=single_ca_file(target),
            completes_captured=complete,
            allows_data_loss=allow_data_loss,
            available_now=available_now,
        )
        _warn_about_shared_entities(settings)
        run(settings, master, as_json=as_json)


def _warn_about_shared_entities(settings: CaptureSettings) -> None:
    """Warn about queues whose messages other receivers may get before the capture."""
    shared = [path for path in settings.entities if "/subscriptions/" not in path.lower()]
    if shared and not settings.completes_captured:
        typer.echo(
            f"{', '.join(shared)}: messages that others receive before the window closes are not captured. To capture "
            "all messages, use a separate subscription, or --complete for a queue.",
            err=True,
        )


def run(settings: CaptureSettings, master: str | None, *, as_json: bool = False) -> None:
    """Run the capture until it is stopped or has captured all available messages."""
    from twinbus.pipeline.capture.driver import Capture  # noqa: PLC0415
    from twinbus.pipeline.source import read_positions  # noqa: PLC0415
    from twinbus.pipeline.spark import session  # noqa: PLC0415

    for path in settings.entities:  # a wrong key or path fails here, before Spark starts
        read_positions(settings.source_options(path))
    with session("twinbus capture", master=master) as spark, _progress() as progress:
        asyncio.run(_until_stopped(Capture(spark, settings, progress)))
    if as_json:
        print_json({"messages": progress.messages, "files": progress.files})
    else:
        typer.echo(f"{progress.messages:,} messages in {progress.files:,} files.")


async def _until_stopped(capture_job: Capture) -> None:
    """Run the job. The first signal stops the job cleanly, the second signal at once."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()

    def stop_cleanly() -> None:
        stop.set()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop_cleanly)
    typer.echo("Capturing; press Ctrl-C to stop.", err=True)
    await capture_job.run(stop)


class CaptureProgress:
    """Progress on the terminal: a line for each file, and a message count for each entity."""

    def __init__(self, progress: Progress) -> None:
        """Start without entities."""
        self._progress = progress
        self._tasks: dict[str, TaskID] = {}
        self.messages = 0
        self.files = 0

    def on_captured(self, manifest: Manifest) -> None:
        """Print and count a captured file."""
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
        """Print why an entity is retried."""
        self._progress.console.print(f"Retrying {entity}: {reason}", markup=False, soft_wrap=True)


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
    with rich.Progress(*columns, console=Console(stderr=True), transient=True) as display:
        yield CaptureProgress(display)
