"""Messages are captured exactly once, and a capture continues where the last one ended, also after a failure."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from tests.pipeline.capture.local_capture import (
    CapturedFolder,
    LocalSpark,
    RecordingListener,
    make_settings,
    run_capture,
    send_messages,
)
from tests.support.server_process import wait_until
from twinbus.cli.main import app
from twinbus.client import MessagingFactory, ReceiveMode
from twinbus.pipeline.capture.driver import Capture
from twinbus.pipeline.capture.entity import CapturedEntity
from twinbus.pipeline.capture.folder import Folder
from twinbus.pipeline.capture.task import capture_window, failure_report
from twinbus.pipeline.capture.window import WindowLimits
from twinbus.pipeline.errors import PipelineError
from twinbus.pipeline.source.positions import Positions, request_positions

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.server_process import ServerProcess
    from twinbus.pipeline.source import SourceOptions


async def test_messages_are_captured_and_stay_in_the_queue(server: ServerProcess, queue: str, tmp_path: Path) -> None:
    await send_messages(server, queue, range(1000), label="order", properties={"number": 7})
    listener = await run_capture(LocalSpark(), make_settings(server, tmp_path, queue))
    captured = CapturedFolder(tmp_path)
    captured.check_manifests()
    assert sorted(captured.ids(), key=int) == [str(number) for number in range(1000)]
    assert set(captured.table().column("label").to_pylist()) == {"order"}
    assert [manifest.eventCount for manifest in listener.manifests] == [1000]
    assert listener.manifests[0].entity == queue
    assert listener.manifests[0].first_enqueued <= listener.manifests[0].last_enqueued
    assert server.message_counts(queue)[0] == 1000


async def test_the_next_capture_continues_after_the_last(server: ServerProcess, queue: str, tmp_path: Path) -> None:
    for part in range(3):
        await send_messages(server, queue, range(part * 10, part * 10 + 10))
        await run_capture(LocalSpark(), make_settings(server, tmp_path, queue))
    spark = LocalSpark()
    await run_capture(spark, make_settings(server, tmp_path, queue))
    assert spark.jobs == 0, "there is nothing new"
    captured = CapturedFolder(tmp_path)
    captured.check_manifests()
    assert len(captured.files()) == 3
    assert captured.ids() == [str(number) for number in range(30)]


async def test_each_fragment_has_its_own_files(server: ServerProcess, tmp_path: Path) -> None:
    path = server.create_queue(EnablePartitioning="true")
    for number in range(64):
        await send_messages(server, path, [number], partition_key=str(number))
    await run_capture(LocalSpark(), make_settings(server, tmp_path, path))
    captured = CapturedFolder(tmp_path)
    captured.check_manifests()
    assert len(captured.files()) == len({manifest.fragment for manifest in captured.manifests()}) > 4
    assert sorted(captured.ids(), key=int) == [str(number) for number in range(64)]


async def test_several_entities_are_captured_at_once(server: ServerProcess, tmp_path: Path) -> None:
    paths = [server.create_queue() for _ in range(3)]
    for path in paths:
        await send_messages(server, path, [path])
    spark = LocalSpark()
    await run_capture(spark, make_settings(server, tmp_path, *paths))
    assert spark.jobs == 1
    assert CapturedFolder(tmp_path).ids() == sorted(paths)


async def test_a_subscription_is_captured(server: ServerProcess, tmp_path: Path) -> None:
    server.create_entity("captured-topic", "TopicDescription")
    server.create_entity("captured-topic/Subscriptions/capture", "SubscriptionDescription")
    await send_messages(server, "captured-topic", range(5))
    await run_capture(LocalSpark(), make_settings(server, tmp_path, "captured-topic/Subscriptions/capture"))
    captured = CapturedFolder(tmp_path)
    assert captured.ids() == list("01234")
    assert captured.manifests()[0].file.startswith("contoso/captured-topic/subscriptions/capture/0/")


async def test_a_window_larger_than_the_maximum_file_size_is_split(
    server: ServerProcess, queue: str, tmp_path: Path
) -> None:
    await send_messages(server, queue, range(100), body=os.urandom(10_000))
    await run_capture(LocalSpark(), make_settings(server, tmp_path, queue, limits=WindowLimits(60, 300_000)))
    captured = CapturedFolder(tmp_path)
    captured.check_manifests()
    assert [manifest.eventCount for manifest in captured.manifests()] == pytest.approx([30, 30, 30, 10], abs=2)
    assert captured.ids() == [str(number) for number in range(100)]


async def test_captured_messages_are_completed_if_requested(server: ServerProcess, queue: str, tmp_path: Path) -> None:
    await send_messages(server, queue, range(10))
    await run_capture(LocalSpark(), make_settings(server, tmp_path, queue, completes_captured=True))
    assert server.message_counts(queue) == (0, 0)
    assert len(CapturedFolder(tmp_path).ids()) == 10


async def test_messages_that_the_last_capture_did_not_complete_are_completed(
    server: ServerProcess,
    queue: str,
    tmp_path: Path,
) -> None:
    await send_messages(server, queue, range(10))
    await run_capture(LocalSpark(), make_settings(server, tmp_path, queue))
    await run_capture(LocalSpark(), make_settings(server, tmp_path, queue, completes_captured=True))
    assert server.message_counts(queue) == (0, 0)
    assert len(CapturedFolder(tmp_path).ids()) == 10


async def test_a_file_without_a_manifest_is_captured_again(
    server: ServerProcess,
    queue: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await send_messages(server, queue, range(10))
    with monkeypatch.context() as patch:
        patch.setattr(Folder, "write_atomically", lambda *_: (_ for _ in ()).throw(OSError("the power is gone")))
        with pytest.raises(OSError, match="the power is gone"):
            await run_capture(LocalSpark(), make_settings(server, tmp_path, queue, completes_captured=True))
    assert len(CapturedFolder(tmp_path).files()) == 1
    assert server.message_counts(queue)[0] == 10, "nothing is completed before its manifest exists"
    await send_messages(server, queue, range(10, 20))
    await run_capture(LocalSpark(), make_settings(server, tmp_path, queue, completes_captured=True))
    captured = CapturedFolder(tmp_path)
    captured.check_manifests()
    assert captured.ids() == [str(number) for number in range(20)]
    assert server.message_counts(queue)[0] == 0


async def test_ranges_are_contiguous_also_if_a_window_was_empty(
    server: ServerProcess,
    queue: str,
    tmp_path: Path,
) -> None:
    listener, stop, spark = RecordingListener(), asyncio.Event(), LocalSpark()
    settings = make_settings(server, tmp_path, queue, available_now=False, limits=WindowLimits(0.1, 10_000_000))
    running = asyncio.create_task(Capture(spark, settings, listener).run(stop))  # type: ignore[arg-type]
    await send_messages(server, queue, ["taken"])
    async with MessagingFactory.from_connection_string(server.connection_string) as factory:
        client = factory.create_queue_client(queue, ReceiveMode.RECEIVE_AND_DELETE)
        await client.receive()
    while not spark.jobs:  # noqa: ASYNC110  # there is no event, since nothing is captured
        await asyncio.sleep(0.01)
    await send_messages(server, queue, ["kept"])
    while not listener.manifests or listener.manifests[-1].lastSequenceNumber < 2:
        await listener.happened.wait()
        listener.happened.clear()
    stop.set()
    await running
    assert listener.manifests[0].fromSequenceNumber <= 1
    assert [manifest.toSequenceNumber + 1 for manifest in listener.manifests[:-1]] == [
        manifest.fromSequenceNumber for manifest in listener.manifests[1:]
    ]


async def test_messages_that_others_received_are_no_data_loss(
    server: ServerProcess, queue: str, tmp_path: Path
) -> None:
    await send_messages(server, queue, range(10))
    await run_capture(LocalSpark(), make_settings(server, tmp_path, queue))
    await send_messages(server, queue, range(10, 20))
    async with MessagingFactory.from_connection_string(server.connection_string) as factory:
        client = factory.create_queue_client(queue)
        for message in await client.receive_batch(15):
            await client.complete(message)
    await run_capture(LocalSpark(), make_settings(server, tmp_path, queue))
    captured = CapturedFolder(tmp_path)
    captured.check_manifests()
    assert captured.ids() == [str(number) for number in (*range(10), *range(15, 20))]


async def test_a_recreated_entity_is_data_loss_unless_it_is_allowed(
    server: ServerProcess,
    tmp_path: Path,
) -> None:
    path = server.create_queue()
    await send_messages(server, path, range(5))
    await run_capture(LocalSpark(), make_settings(server, tmp_path, path))
    recreate_queue(server, path)
    await send_messages(server, path, range(5, 8))
    with pytest.raises(PipelineError, match=r"deleted and created again .*--allow-data-loss"):
        await run_capture(LocalSpark(), make_settings(server, tmp_path, path))
    await run_capture(LocalSpark(), make_settings(server, tmp_path, path, allows_data_loss=True))
    await run_capture(LocalSpark(), make_settings(server, tmp_path, path))
    captured = CapturedFolder(tmp_path)
    captured.check_manifests()
    assert captured.ids() == [str(number) for number in range(8)]


async def test_a_purge_before_the_capture_is_data_loss(
    server: ServerProcess,
    queue: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await send_messages(server, queue, range(5))
    await run_capture(LocalSpark(), make_settings(server, tmp_path, queue))
    await send_messages(server, queue, range(5, 8))
    (last,) = CapturedFolder(tmp_path).manifests()

    async def purged_positions(factory: MessagingFactory, options: SourceOptions) -> Positions:
        positions = await request_positions(factory, options)
        return replace(
            positions, fragments=(replace(positions.fragments[0], purged_sequence_number=last.toSequenceNumber + 1),)
        )

    monkeypatch.setattr("twinbus.pipeline.capture.entity.request_positions", purged_positions)
    with pytest.raises(PipelineError, match=r"data was lost: .*purged"):
        await run_capture(LocalSpark(), make_settings(server, tmp_path, queue))
    await run_capture(LocalSpark(), make_settings(server, tmp_path, queue, allows_data_loss=True))
    assert CapturedFolder(tmp_path).ids() == [str(number) for number in (*range(5), 6, 7)]


def recreate_queue(server: ServerProcess, path: str) -> None:
    """Delete a queue, and create a new one with the same name."""
    server.delete_queue(path)
    server.request("PUT", path, _QUEUE, expected=201)


async def test_a_late_failure_of_a_recreated_entity_reopens_no_window(
    server: ServerProcess,
    tmp_path: Path,
) -> None:
    path = server.create_queue()
    await send_messages(server, path, range(3))
    entity = CapturedEntity(Folder(str(tmp_path)), make_settings(server, tmp_path, path, allows_data_loss=True), path)
    try:
        await entity.open()
        (old_task,) = await entity.find_due_windows(0.0, force=True)
        recreate_queue(server, path)
        await send_messages(server, path, range(3))
        (task,) = await entity.find_due_windows(0.0, force=True)
        assert not entity.reopen_window(failure_report(old_task, "too late"))
        assert await entity.find_due_windows(0.0, force=True) == [], "its job runs"
        assert entity.reopen_window(failure_report(task, "in time"))
        assert len(await entity.find_due_windows(0.0, force=True)) == 1
    finally:
        await entity.close()


async def test_an_entity_recreated_during_a_task_is_captured_anew_if_data_loss_is_allowed(
    server: ServerProcess,
    tmp_path: Path,
) -> None:
    path, listener, stop, spark = server.create_queue(), RecordingListener(), asyncio.Event(), LocalSpark()

    def recreate_once() -> None:
        if spark.jobs == 1:
            recreate_queue(server, path)
            asyncio.run(send_messages(server, path, ["new"]))

    spark.before_job = recreate_once
    await send_messages(server, path, ["gone"])
    settings = make_settings(
        server,
        tmp_path,
        path,
        available_now=False,
        limits=WindowLimits(0.1, 10_000_000),
        allows_data_loss=True,
        completes_captured=True,
    )
    running = asyncio.create_task(Capture(spark, settings, listener).run(stop))  # type: ignore[arg-type]
    async with asyncio.timeout(60):
        while not listener.manifests and not running.done():  # noqa: ASYNC110  # the capture may end without an event
            await asyncio.sleep(0.05)
    stop.set()
    await running
    assert CapturedFolder(tmp_path).ids() == ["new"]
    assert server.message_counts(path)[0] == 0


async def test_an_entity_recreated_during_a_task_is_data_loss(server: ServerProcess, tmp_path: Path) -> None:
    path, spark = server.create_queue(), LocalSpark()
    spark.before_job = lambda: recreate_queue(server, path)
    await send_messages(server, path, ["gone"])
    with pytest.raises(PipelineError, match=r"created again .*--allow-data-loss") as raised:
        await run_capture(spark, make_settings(server, tmp_path, path))
    assert "failOnDataLoss" not in str(raised.value)
    await send_messages(server, path, ["gone", "too"])
    await run_capture(spark, make_settings(server, tmp_path, path, allows_data_loss=True))
    assert CapturedFolder(tmp_path).files() == []


async def test_a_range_that_is_already_in_a_file_is_not_committed_again(
    server: ServerProcess, queue: str, tmp_path: Path
) -> None:
    await send_messages(server, queue, range(3))
    entity = CapturedEntity(Folder(str(tmp_path)), make_settings(server, tmp_path, queue), queue)
    try:
        await entity.open()
        (task,) = await entity.find_due_windows(0.0, force=True)
        reports = [await asyncio.to_thread(capture_window, task) for _ in range(2)]
        assert [len(await entity.commit(report)) for report in reports] == [1, 0]
    finally:
        await entity.close()
    assert CapturedFolder(tmp_path).ids() == ["0", "1", "2"]


async def capture_then_restore(server: ServerProcess, path: str, to: Path) -> None:
    """Capture ten messages, and raise the last number in the manifest, as if the namespace had been restored since."""
    await send_messages(server, path, range(10))
    await run_capture(LocalSpark(), make_settings(server, to, path, completes_captured=True))
    (manifest,) = CapturedFolder(to).manifests()
    (to / manifest.path).write_bytes(replace(manifest, toSequenceNumber=1000).encode())


async def test_after_a_restore_messages_are_captured_before_they_are_completed(
    server: ServerProcess,
    queue: str,
    tmp_path: Path,
) -> None:
    await capture_then_restore(server, queue, tmp_path)
    await send_messages(server, queue, ["new-0", "new-1"])
    with pytest.raises(PipelineError, match=r"restored to an earlier state.*--allow-data-loss"):
        await run_capture(LocalSpark(), make_settings(server, tmp_path, queue, completes_captured=True))
    assert server.message_counts(queue)[0] == 2
    await run_capture(
        LocalSpark(), make_settings(server, tmp_path, queue, completes_captured=True, allows_data_loss=True)
    )
    await send_messages(server, queue, ["new-2"])
    await run_capture(
        LocalSpark(), make_settings(server, tmp_path, queue, completes_captured=True)
    )  # continues after the newer file
    await run_capture(LocalSpark(), make_settings(server, tmp_path, queue, completes_captured=True))
    captured = CapturedFolder(tmp_path)
    assert captured.ids() == [*map(str, range(10)), "new-0", "new-1", "new-2"]
    assert captured.files() == [tmp_path / manifest.file for manifest in captured.manifests()]
    assert server.message_counts(queue)[0] == 0


async def test_a_restore_does_not_overwrite_a_file_with_the_same_numbers(
    server: ServerProcess,
    queue: str,
    tmp_path: Path,
) -> None:
    await send_messages(server, queue, range(3))
    await run_capture(LocalSpark(), make_settings(server, tmp_path, queue))
    (old,) = CapturedFolder(tmp_path).manifests()
    (tmp_path / old.path).write_bytes(replace(old, toSequenceNumber=1000).encode())
    for _ in range(2):
        await run_capture(LocalSpark(), make_settings(server, tmp_path, queue, allows_data_loss=True))
    _, new = CapturedFolder(tmp_path).manifests()
    assert (new.fromSequenceNumber, new.eventCount) == (old.fromSequenceNumber, 3)
    assert CapturedFolder(tmp_path).ids() == [*"012", *"012"]


async def test_a_restore_during_a_capture_is_detected_and_captured_at_once(
    server: ServerProcess,
    queue: str,
    tmp_path: Path,
) -> None:
    settings = make_settings(server, tmp_path, queue, completes_captured=True, allows_data_loss=True)
    await send_messages(server, queue, range(3))
    entity = CapturedEntity(Folder(str(tmp_path)), settings, queue)
    try:
        await entity.open()
        entity._windows[0].first_sequence_number = 1000  # noqa: SLF001  # as if 999 numbers had been captured
        entity._uncompleted_up_to[0] = 999  # noqa: SLF001
        (task,) = await entity.find_due_windows(0.0, force=False)
        await entity.complete_captured()
        assert server.message_counts(queue)[0] == 3
        await entity.commit(await asyncio.to_thread(capture_window, task))
        await entity.complete_captured()
    finally:
        await entity.close()
    assert CapturedFolder(tmp_path).ids() == ["0", "1", "2"]
    assert server.message_counts(queue)[0] == 0


async def test_new_messages_with_the_numbers_of_captured_ones_are_not_completed(
    server: ServerProcess,
    tmp_path: Path,
) -> None:
    path = server.create_queue()
    await send_messages(server, path, range(3))
    settings = make_settings(server, tmp_path, path, completes_captured=True, allows_data_loss=True)
    entity = CapturedEntity(Folder(str(tmp_path)), settings, path)
    try:
        await entity.open()
        (task,) = await entity.find_due_windows(0.0, force=True)
        await entity.commit(await asyncio.to_thread(capture_window, task))
        recreate_queue(server, path)
        await send_messages(server, path, ["new"])
        await entity.complete_captured()
        assert server.message_counts(path)[0] == 1
    finally:
        await entity.close()


async def test_a_queue_with_sessions_is_captured_and_completed(server: ServerProcess, tmp_path: Path) -> None:
    path = server.create_queue(RequiresSession="true")
    for part in range(2):
        await send_messages(server, path, range(part * 10, part * 10 + 10), session_id=f"session {part}")
        await run_capture(LocalSpark(), make_settings(server, tmp_path, path, completes_captured=True))
    assert server.message_counts(path) == (0, 0)
    assert CapturedFolder(tmp_path).ids() == [str(number) for number in range(20)]


async def test_a_capture_cannot_complete_a_queue_that_others_receive_from(
    server: ServerProcess,
    queue: str,
    tmp_path: Path,
) -> None:
    async with MessagingFactory.from_connection_string(server.connection_string) as factory:
        await factory.create_message_receiver(queue).open()
        with pytest.raises(PipelineError, match="cannot be received from exclusively"):
            await run_capture(LocalSpark(), make_settings(server, tmp_path, queue, completes_captured=True))


async def test_a_missing_entity_is_named(server: ServerProcess, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="nowhere"):
        await run_capture(LocalSpark(), make_settings(server, tmp_path, "nowhere"))


async def test_a_continuous_capture_closes_windows_by_time_and_ends_when_stopped(
    server: ServerProcess,
    queue: str,
    tmp_path: Path,
) -> None:
    listener, stop = RecordingListener(), asyncio.Event()
    settings = make_settings(
        server, tmp_path, queue, available_now=False, limits=WindowLimits(0.5, 10_000_000), completes_captured=True
    )
    running = asyncio.create_task(Capture(LocalSpark(), settings, listener).run(stop))  # type: ignore[arg-type]
    for part in range(2):
        await send_messages(server, queue, range(part * 10, part * 10 + 10))
        await listener.happened.wait()
        listener.happened.clear()
    stop.set()
    await running
    assert listener.retries == []
    captured = CapturedFolder(tmp_path)
    captured.check_manifests()
    assert len(captured.files()) >= 2
    assert captured.ids() == [str(number) for number in range(20)]
    wait_until(lambda: server.message_counts(queue)[0] == 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere"),
        (["orders", "--window", "30"], "a window of 30 s; use 60 to 900 s"),
        (["orders", "--size", "5"], "a size of 5 MB; use 10 to 500 MB"),
    ],
)
def test_invalid_arguments_are_refused_before_spark_starts(
    server: ServerProcess,
    arguments: list[str],
    message: str,
    tmp_path: Path,
) -> None:
    result = CliRunner().invoke(app, ["pipeline", "capture", server.connection_string, str(tmp_path), *arguments])
    assert result.exit_code == 1
    assert message in result.stderr
    assert server.key not in result.stderr


_QUEUE = (
    '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml"><QueueDescription '
    'xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"></QueueDescription></content></entry>'
)
