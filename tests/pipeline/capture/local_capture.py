"""Captures in tests: an entity of a server, a folder, and what is in the folder afterwards.

    taken = Taken(tmp_path / "captured")
    await capture(here, settings)
    assert taken.ids() == [...]

Owns: a capture whose tasks run in this process, one after the other, without Spark, and how a test looks at files.
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
    """As much of a session of Spark as a capture uses; tasks run at once, in this process."""

    def __init__(self) -> None:
        self.jobs = 0
        self.before_job: Callable[[], None] = lambda: None

    @property
    def sparkContext(self) -> LocalSpark:  # noqa: N802  # as Spark calls it
        return self

    def parallelize(self, orders: Sequence[Any], _parts: int) -> LocalSpark:
        self._orders = orders
        self.jobs += 1
        self.before_job()
        return self

    def map(self, task: Callable[[Any], Any]) -> LocalSpark:
        self._task = task
        return self

    def collect(self) -> list[Any]:
        return [self._task(order) for order in self._orders]


class RecordingListener:
    """What a capture says."""

    def __init__(self) -> None:
        self.manifests: list[Manifest] = []
        self.waiting: list[str] = []
        self.happened = asyncio.Event()

    def on_captured(self, manifest: Manifest) -> None:
        self.manifests.append(manifest)
        self.happened.set()

    def on_retry(self, entity: str, reason: str) -> None:
        self.waiting.append(f"{entity}: {reason}")
        self.happened.set()


def make_settings(server: ServerProcess, to: Path, *entities: str, **more: Any) -> CaptureSettings:  # noqa: ANN401
    given: dict[str, Any] = {"limits": SMALL, "namespace": "contoso", "available_now": True}
    return CaptureSettings(
        connection_string=server.connection_string, entities=entities, target_uri=str(to), **given | more
    )


async def run_capture(spark: LocalSpark, settings: CaptureSettings) -> RecordingListener:
    """All that there is now, or until its end."""
    told = RecordingListener()
    await Capture(cast("SparkSession", spark), settings, told).run(asyncio.Event())
    return told


async def send_messages(
    server: ServerProcess,
    path: str,
    ids: Iterable[object],
    body: bytes = b"x",
    **more: Any,  # noqa: ANN401
) -> None:
    async with MessagingFactory.from_connection_string(server.connection_string) as factory:
        sender = factory.create_message_sender(path)
        await asyncio.gather(*[sender.send(BrokeredMessage(body, message_id=str(one), **more)) for one in ids])


class CapturedFolder:
    """What was captured to a folder."""

    def __init__(self, to: Path) -> None:
        self.to = to
        self.folder = Folder(str(to))

    def files(self) -> list[Path]:
        """Parquet files as anyone finds them who does not know of manifests."""
        return sorted(file for file in self.to.rglob("*.parquet") if "_temporary" not in file.parts)

    def manifests(self, place: str = "contoso") -> list[Manifest]:
        return find_files(self.folder, place)

    def table(self) -> pa.Table:
        return pa.concat_tables([pq.read_table(file, partitioning=None) for file in self.files()])

    def ids(self) -> list[str]:
        """Of all messages, those that are there twice as well."""
        return cast("list[str]", self.table().column("messageId").to_pylist()) if self.files() else []

    def check_manifests(self) -> None:
        """Every file has its manifest, which says what is in it; ranges follow one another without a gap."""
        manifests = self.manifests()
        assert sorted(self.to / one.file for one in manifests) == self.files()
        ends: dict[tuple[str, int, int], int] = {}
        for one in manifests:
            numbers = pq.read_table(self.to / one.file, partitioning=None).column("sequenceNumber").to_pylist()
            assert len(numbers) == one.eventCount
            assert (numbers[0], numbers[-1]) == (one.firstSequenceNumber, one.lastSequenceNumber)
            assert one.fromSequenceNumber <= numbers[0] <= numbers[-1] <= one.toSequenceNumber
            assert numbers == sorted(set(numbers))
            assert one.sizeInBytes == (self.to / one.file).stat().st_size
            key = (one.entity, one.fragment, one.entityId)
            assert one.fromSequenceNumber > ends.get(key, -1)
            ends[key] = one.toSequenceNumber
