"""Captures in tests, without Spark: the tasks run in this process, one after the other.

await run_capture(LocalSpark(), make_settings(server, tmp_path / "captured", queue))
assert CapturedFolder(tmp_path / "captured").ids() == [...]
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from twinbus.client import BrokeredMessage, MessagingFactory
from twinbus.pipeline.capture.driver import Capture
from twinbus.pipeline.capture.folder import Folder
from twinbus.pipeline.capture.replay import find_files
from twinbus.pipeline.capture.settings import CaptureSettings
from twinbus.pipeline.capture.window import WindowLimits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.support.server_process import ServerProcess
    from twinbus.pipeline.capture.manifest import Manifest

SMALL = WindowLimits(60.0, 10_000_000)


class LocalSpark:
    """The part of a Spark session that a capture uses; tasks run in this process."""

    def __init__(self) -> None:
        self.jobs = 0
        self.before_job: Callable[[], None] = lambda: None

    @property
    def sparkContext(self) -> LocalSpark:  # noqa: N802  # the name in Spark
        return self

    def parallelize(self, tasks: Sequence[Any], _partitions: int) -> LocalSpark:
        self._tasks = tasks
        self.jobs += 1
        self.before_job()
        return self

    def map(self, function: Callable[[Any], Any]) -> LocalSpark:
        self._function = function
        return self

    def collect(self) -> list[Any]:
        return [self._function(task) for task in self._tasks]


class RecordingListener:
    """Records the files and retries that a capture reports."""

    def __init__(self) -> None:
        self.manifests: list[Manifest] = []
        self.retries: list[str] = []
        self.happened = asyncio.Event()

    def on_captured(self, manifest: Manifest) -> None:
        self.manifests.append(manifest)
        self.happened.set()

    def on_retry(self, entity: str, reason: str) -> None:
        self.retries.append(f"{entity}: {reason}")
        self.happened.set()


def make_settings(server: ServerProcess, to: Path, *entities: str, **overrides: Any) -> CaptureSettings:  # noqa: ANN401
    defaults: dict[str, Any] = {"limits": SMALL, "namespace": "contoso", "available_now": True}
    return CaptureSettings(
        connection_string=server.connection_string, entities=entities, target_uri=str(to), **defaults | overrides
    )


async def run_capture(spark: LocalSpark, settings: CaptureSettings) -> RecordingListener:
    """Run a capture to its end, and return its listener."""
    listener = RecordingListener()
    await Capture(cast("SparkSession", spark), settings, listener).run(asyncio.Event())
    return listener


async def send_messages(
    server: ServerProcess,
    path: str,
    ids: Iterable[object],
    body: bytes = b"x",
    **fields: Any,  # noqa: ANN401
) -> None:
    async with MessagingFactory.from_connection_string(server.connection_string) as factory:
        sender = factory.create_message_sender(path)
        await asyncio.gather(
            *[sender.send(BrokeredMessage(body, message_id=str(message_id), **fields)) for message_id in ids]
        )


class CapturedFolder:
    """The captured files of a folder."""

    def __init__(self, to: Path) -> None:
        self.to = to
        self.folder = Folder(str(to))

    def files(self) -> list[Path]:
        """Return the Parquet files as a reader finds them that does not know of manifests."""
        return sorted(file for file in self.to.rglob("*.parquet") if "_temporary" not in file.parts)

    def manifests(self, path: str = "contoso") -> list[Manifest]:
        return find_files(self.folder, path)

    def table(self) -> pa.Table:
        return pa.concat_tables([pq.read_table(file, partitioning=None) for file in self.files()])

    def ids(self) -> list[str]:
        """Return the ids of all messages, including duplicates."""
        return cast("list[str]", self.table().column("messageId").to_pylist()) if self.files() else []

    def check_manifests(self) -> None:
        """Check that every file has a correct manifest, and that the ranges of a fragment do not overlap."""
        manifests = self.manifests()
        assert sorted(self.to / manifest.file for manifest in manifests) == self.files()
        ends: dict[tuple[str, int, int], int] = {}
        for manifest in manifests:
            numbers = pq.read_table(self.to / manifest.file, partitioning=None).column("sequenceNumber").to_pylist()
            assert len(numbers) == manifest.eventCount
            assert (numbers[0], numbers[-1]) == (manifest.firstSequenceNumber, manifest.lastSequenceNumber)
            assert manifest.fromSequenceNumber <= numbers[0] <= numbers[-1] <= manifest.toSequenceNumber
            assert numbers == sorted(set(numbers))
            assert manifest.sizeInBytes == (self.to / manifest.file).stat().st_size
            key = (manifest.entity, manifest.fragment, manifest.entityId)
            assert manifest.fromSequenceNumber > ends.get(key, -1)
            ends[key] = manifest.toSequenceNumber
