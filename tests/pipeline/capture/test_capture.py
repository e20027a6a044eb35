"""What there is in entities is captured once, and a capture goes on where the last one ended, whatever ended it."""

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


async def test_what_is_there_is_captured_and_stays(server: ServerProcess, queue: str, tmp_path: Path) -> None:
    await send_messages(server, queue, range(1000), label="order", properties={"number": 7})
    told = await run_capture(LocalSpark(), make_settings(server, tmp_path, queue))
    taken = CapturedFolder(tmp_path)
    taken.check_manifests()
    assert sorted(taken.ids(), key=int) == [str(number) for number in range(1000)]
    assert set(taken.table().column("label").to_pylist()) == {"order"}
    assert [one.eventCount for one in told.manifests] == [1000]
    assert told.manifests[0].entity == queue
    assert told.manifests[0].first_enqueued <= told.manifests[0].last_enqueued
    assert server.message_counts(queue)[0] == 1000


async def test_the_next_capture_goes_on_behind_the_last(server: ServerProcess, queue: str, tmp_path: Path) -> None:
    for part in range(3):
        await send_messages(server, queue, range(part * 10, part * 10 + 10))
        await run_capture(LocalSpark(), make_settings(server, tmp_path, queue))
    here = LocalSpark()
    await run_capture(here, make_settings(server, tmp_path, queue))
    assert here.jobs == 0, "there is nothing new"
    taken = CapturedFolder(tmp_path)
    taken.check_manifests()
    assert len(taken.files()) == 3
    assert taken.ids() == [str(number) for number in range(30)]


async def test_fragments_have_files_of_their_own(server: ServerProcess, tmp_path: Path) -> None:
    path = server.create_queue(EnablePartitioning="true")
    for number in range(64):
        await send_messages(server, path, [number], partition_key=str(number))
    await run_capture(LocalSpark(), make_settings(server, tmp_path, path))
    taken = CapturedFolder(tmp_path)
    taken.check_manifests()
    assert len(taken.files()) == len({one.fragment for one in taken.manifests()}) > 4
    assert sorted(taken.ids(), key=int) == [str(number) for number in range(64)]


async def test_several_entities_are_captured_at_once(server: ServerProcess, tmp_path: Path) -> None:
    paths = [server.create_queue() for _ in range(3)]
    for path in paths:
        await send_messages(server, path, [path])
    here = LocalSpark()
    await run_capture(here, make_settings(server, tmp_path, *paths))
    assert here.jobs == 1
    assert CapturedFolder(tmp_path).ids() == sorted(paths)


async def test_a_subscription_is_captured(server: ServerProcess, tmp_path: Path) -> None:
    server.create_entity("captured-topic", "TopicDescription")
    server.create_entity("captured-topic/Subscriptions/capture", "SubscriptionDescription")
    await send_messages(server, "captured-topic", range(5))
    await run_capture(LocalSpark(), make_settings(server, tmp_path, "captured-topic/Subscriptions/capture"))
    taken = CapturedFolder(tmp_path)
    assert taken.ids() == list("01234")
    assert taken.manifests()[0].file.startswith("contoso/captured-topic/subscriptions/capture/0/")


async def test_a_window_that_is_larger_than_a_file_may_be_is_cut(
    server: ServerProcess, queue: str, tmp_path: Path
) -> None:
    await send_messages(server, queue, range(100), body=os.urandom(10_000))
    await run_capture(LocalSpark(), make_settings(server, tmp_path, queue, limits=WindowLimits(60, 300_000)))
    taken = CapturedFolder(tmp_path)
    taken.check_manifests()
    assert [one.eventCount for one in taken.manifests()] == pytest.approx([30, 30, 30, 10], abs=2)
    assert taken.ids() == [str(number) for number in range(100)]


async def test_what_was_captured_is_completed_if_that_is_wanted(
    server: ServerProcess, queue: str, tmp_path: Path
) -> None:
    await send_messages(server, queue, range(10))
    await run_capture(LocalSpark(), make_settings(server, tmp_path, queue, completes_captured=True))
    assert server.message_counts(queue) == (0, 0)
    assert len(CapturedFolder(tmp_path).ids()) == 10


async def test_what_the_last_capture_did_not_come_to_complete_is_completed(
    server: ServerProcess,
    queue: str,
    tmp_path: Path,
) -> None:
    await send_messages(server, queue, range(10))
    await run_capture(LocalSpark(), make_settings(server, tmp_path, queue))
    await run_capture(LocalSpark(), make_settings(server, tmp_path, queue, completes_captured=True))
    assert server.message_counts(queue) == (0, 0)
    assert len(CapturedFolder(tmp_path).ids()) == 10


async def test_what_failed_between_a_file_and_its_manifest_is_captured_again(
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
    assert server.message_counts(queue)[0] == 10, "nothing is completed before its manifest is there"
    await send_messages(server, queue, range(10, 20))
    await run_capture(LocalSpark(), make_settings(server, tmp_path, queue, completes_captured=True))
    taken = CapturedFolder(tmp_path)
    taken.check_manifests()
    assert taken.ids() == [str(number) for number in range(20)]
    assert server.message_counts(queue)[0] == 0


async def test_ranges_follow_one_another_also_where_nothing_was_left(
    server: ServerProcess,
    queue: str,
    tmp_path: Path,
) -> None:
    told, stop, here = RecordingListener(), asyncio.Event(), LocalSpark()
    wanted = make_settings(server, tmp_path, queue, available_now=False, limits=WindowLimits(0.1, 10_000_000))
    running_now = asyncio.create_task(Capture(here, wanted, told).run(stop))  # type: ignore[arg-type]
    await send_messages(server, queue, ["taken"])
    async with MessagingFactory.from_connection_string(server.connection_string) as factory:
        client = factory.create_queue_client(queue, ReceiveMode.RECEIVE_AND_DELETE)
        await client.receive()
    while not here.jobs:  # noqa: ASYNC110  # there is no event: nothing is captured
        await asyncio.sleep(0.01)
    await send_messages(server, queue, ["kept"])
    while not told.manifests or told.manifests[-1].lastSequenceNumber < 2:
        await told.happened.wait()
        told.happened.clear()
    stop.set()
    await running_now
    assert told.manifests[0].fromSequenceNumber <= 1
    assert [one.toSequenceNumber + 1 for one in told.manifests[:-1]] == [
        one.fromSequenceNumber for one in told.manifests[1:]
    ]


async def test_messages_that_others_took_are_no_loss(server: ServerProcess, queue: str, tmp_path: Path) -> None:
    await send_messages(server, queue, range(10))
    await run_capture(LocalSpark(), make_settings(server, tmp_path, queue))
    await send_messages(server, queue, range(10, 20))
    async with MessagingFactory.from_connection_string(server.connection_string) as factory:
        client = factory.create_queue_client(queue)
        for message in await client.receive_batch(15):
            await client.complete(message)
    await run_capture(LocalSpark(), make_settings(server, tmp_path, queue))
    taken = CapturedFolder(tmp_path)
    taken.check_manifests()
    assert taken.ids() == [str(number) for number in (*range(10), *range(15, 20))]


async def test_an_entity_that_was_created_again_is_a_loss_unless_that_is_allowed(
    server: ServerProcess,
    tmp_path: Path,
) -> None:
    path = server.create_queue()
    await send_messages(server, path, range(5))
    await run_capture(LocalSpark(), make_settings(server, tmp_path, path))
    create_again(server, path)
    await send_messages(server, path, range(5, 8))
    with pytest.raises(PipelineError, match=r"deleted and created again .*--allow-data-loss"):
        await run_capture(LocalSpark(), make_settings(server, tmp_path, path))
    await run_capture(LocalSpark(), make_settings(server, tmp_path, path, allows_data_loss=True))
    await run_capture(LocalSpark(), make_settings(server, tmp_path, path))
    taken = CapturedFolder(tmp_path)
    taken.check_manifests()
    assert taken.ids() == [str(number) for number in range(8)]


async def test_what_was_purged_before_it_was_captured_is_a_loss(
    server: ServerProcess,
    queue: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await send_messages(server, queue, range(5))
    await run_capture(LocalSpark(), make_settings(server, tmp_path, queue))
    await send_messages(server, queue, range(5, 8))
    (last,) = CapturedFolder(tmp_path).manifests()

    async def ask(factory: MessagingFactory, options: SourceOptions) -> Positions:
        found = await request_positions(factory, options)
        return replace(
            found, fragments=(replace(found.fragments[0], purged_sequence_number=last.toSequenceNumber + 1),)
        )

    monkeypatch.setattr("twinbus.pipeline.capture.entity.request_positions", ask)
    with pytest.raises(PipelineError, match=r"data was lost: .*purged"):
        await run_capture(LocalSpark(), make_settings(server, tmp_path, queue))
    await run_capture(LocalSpark(), make_settings(server, tmp_path, queue, allows_data_loss=True))
    assert CapturedFolder(tmp_path).ids() == [str(number) for number in (*range(5), 6, 7)]


def create_again(server: ServerProcess, path: str) -> None:
    """Delete a queue, and create another of its name."""
    server.delete_queue(path)
    server.request("PUT", path, _QUEUE, expected=201)


async def test_a_failure_that_comes_after_the_entity_was_created_again_opens_no_window(
    server: ServerProcess,
    tmp_path: Path,
) -> None:
    path = server.create_queue()
    await send_messages(server, path, range(3))
    entity = CapturedEntity(Folder(str(tmp_path)), make_settings(server, tmp_path, path, allows_data_loss=True), path)
    try:
        await entity.open()
        (late,) = await entity.find_due_windows(0.0, force=True)
        create_again(server, path)
        await send_messages(server, path, range(3))
        (order,) = await entity.find_due_windows(0.0, force=True)
        assert not entity.reopen_window(failure_report(late, "too late"))
        assert await entity.find_due_windows(0.0, force=True) == [], "its job runs"
        assert entity.reopen_window(failure_report(order, "in time"))
        assert len(await entity.find_due_windows(0.0, force=True)) == 1
    finally:
        await entity.close()


async def test_an_entity_that_is_created_again_while_a_task_reads_it_is_begun_anew_if_loss_is_allowed(
    server: ServerProcess,
    tmp_path: Path,
) -> None:
    path, told, stop, here = server.create_queue(), RecordingListener(), asyncio.Event(), LocalSpark()

    def create_once() -> None:
        if here.jobs == 1:
            create_again(server, path)
            asyncio.run(send_messages(server, path, ["new"]))

    here.before_job = create_once
    await send_messages(server, path, ["gone"])
    wanted = make_settings(
        server,
        tmp_path,
        path,
        available_now=False,
        limits=WindowLimits(0.1, 10_000_000),
        allows_data_loss=True,
        completes_captured=True,
    )
    running_now = asyncio.create_task(Capture(here, wanted, told).run(stop))  # type: ignore[arg-type]
    async with asyncio.timeout(60):
        while not told.manifests and not running_now.done():  # noqa: ASYNC110  # it may end without a word
            await asyncio.sleep(0.05)
    stop.set()
    await running_now
    assert CapturedFolder(tmp_path).ids() == ["new"]
    assert server.message_counts(path)[0] == 0


async def test_an_entity_that_is_created_again_while_a_task_reads_it_is_a_loss(
    server: ServerProcess, tmp_path: Path
) -> None:
    path, here = server.create_queue(), LocalSpark()
    here.before_job = lambda: create_again(server, path)
    await send_messages(server, path, ["gone"])
    with pytest.raises(PipelineError, match=r"created again .*--allow-data-loss") as raised:
        await run_capture(here, make_settings(server, tmp_path, path))
    assert "failOnDataLoss" not in str(raised.value)
    await send_messages(server, path, ["gone", "too"])
    await run_capture(here, make_settings(server, tmp_path, path, allows_data_loss=True))
    assert CapturedFolder(tmp_path).files() == []


async def test_a_range_that_is_in_a_file_is_not_named_again(server: ServerProcess, queue: str, tmp_path: Path) -> None:
    await send_messages(server, queue, range(3))
    entity = CapturedEntity(Folder(str(tmp_path)), make_settings(server, tmp_path, queue), queue)
    try:
        await entity.open()
        (order,) = await entity.find_due_windows(0.0, force=True)
        reports = [await asyncio.to_thread(capture_window, order) for _ in range(2)]
        assert [len(await entity.commit(report)) for report in reports] == [1, 0]
    finally:
        await entity.close()
    assert CapturedFolder(tmp_path).ids() == ["0", "1", "2"]


async def captured_further(server: ServerProcess, path: str, to: Path) -> None:
    """Ten messages are captured, and, as the manifest has it, many more, as if the namespace was restored since."""
    await send_messages(server, path, range(10))
    await run_capture(LocalSpark(), make_settings(server, to, path, completes_captured=True))
    (one,) = CapturedFolder(to).manifests()
    (to / one.path).write_bytes(replace(one, toSequenceNumber=1000).encode())


async def test_what_is_there_after_a_restore_is_captured_before_it_is_completed(
    server: ServerProcess,
    queue: str,
    tmp_path: Path,
) -> None:
    await captured_further(server, queue, tmp_path)
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
    )  # goes on behind the newer file
    await run_capture(LocalSpark(), make_settings(server, tmp_path, queue, completes_captured=True))
    taken = CapturedFolder(tmp_path)
    assert taken.ids() == [*map(str, range(10)), "new-0", "new-1", "new-2"]
    assert taken.files() == [tmp_path / one.file for one in taken.manifests()]
    assert server.message_counts(queue)[0] == 0


async def test_a_restore_before_a_file_of_the_same_numbers_overwrites_nothing(
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
    _, anew = CapturedFolder(tmp_path).manifests()
    assert (anew.fromSequenceNumber, anew.eventCount) == (old.fromSequenceNumber, 3)
    assert CapturedFolder(tmp_path).ids() == [*"012", *"012"]


async def test_a_restore_while_a_capture_runs_is_noticed_and_soon_in_a_file(
    server: ServerProcess,
    queue: str,
    tmp_path: Path,
) -> None:
    wanted = make_settings(server, tmp_path, queue, completes_captured=True, allows_data_loss=True)
    await send_messages(server, queue, range(3))
    entity = CapturedEntity(Folder(str(tmp_path)), wanted, queue)
    try:
        await entity.open()
        entity._windows[0].first_sequence_number = 1000  # noqa: SLF001  # as if so many had been captured
        entity._uncompleted_up_to[0] = 999  # noqa: SLF001
        (order,) = await entity.find_due_windows(0.0, force=False)
        await entity.complete_captured()
        assert server.message_counts(queue)[0] == 3
        await entity.commit(await asyncio.to_thread(capture_window, order))
        await entity.complete_captured()
    finally:
        await entity.close()
    assert CapturedFolder(tmp_path).ids() == ["0", "1", "2"]
    assert server.message_counts(queue)[0] == 0


async def test_what_has_the_numbers_of_captured_messages_since_a_job_ended_is_not_completed(
    server: ServerProcess,
    tmp_path: Path,
) -> None:
    path = server.create_queue()
    await send_messages(server, path, range(3))
    wanted = make_settings(server, tmp_path, path, completes_captured=True, allows_data_loss=True)
    entity = CapturedEntity(Folder(str(tmp_path)), wanted, path)
    try:
        await entity.open()
        (order,) = await entity.find_due_windows(0.0, force=True)
        await entity.commit(await asyncio.to_thread(capture_window, order))
        create_again(server, path)
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


async def test_a_queue_that_others_receive_from_cannot_be_completed(
    server: ServerProcess,
    queue: str,
    tmp_path: Path,
) -> None:
    async with MessagingFactory.from_connection_string(server.connection_string) as factory:
        await factory.create_message_receiver(queue).open()
        with pytest.raises(PipelineError, match="cannot be had alone"):
            await run_capture(LocalSpark(), make_settings(server, tmp_path, queue, completes_captured=True))


async def test_an_entity_that_is_not_there_is_named(server: ServerProcess, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="nowhere"):
        await run_capture(LocalSpark(), make_settings(server, tmp_path, "nowhere"))


async def test_a_capture_that_goes_on_closes_windows_by_time_and_ends_when_it_is_stopped(
    server: ServerProcess,
    queue: str,
    tmp_path: Path,
) -> None:
    told, stop = RecordingListener(), asyncio.Event()
    wanted = make_settings(
        server, tmp_path, queue, available_now=False, limits=WindowLimits(0.5, 10_000_000), completes_captured=True
    )
    running_now = asyncio.create_task(Capture(LocalSpark(), wanted, told).run(stop))  # type: ignore[arg-type]
    for part in range(2):
        await send_messages(server, queue, range(part * 10, part * 10 + 10))
        await told.happened.wait()
        told.happened.clear()
    stop.set()
    await running_now
    assert told.waiting == []
    taken = CapturedFolder(tmp_path)
    taken.check_manifests()
    assert len(taken.files()) >= 2
    assert taken.ids() == [str(number) for number in range(20)]
    wait_until(lambda: server.message_counts(queue)[0] == 0)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere"], "nowhere"),
        (["orders", "--window", "30"], "a window of 30 s; it can be 60 to 900 s"),
        (["orders", "--size", "5"], "a size of 5 MB; it can be 10 to 500 MB"),
    ],
)
def test_a_capture_that_cannot_be_is_refused_before_spark_starts(
    server: ServerProcess,
    words: list[str],
    said: str,
    tmp_path: Path,
) -> None:
    done = CliRunner().invoke(app, ["pipeline", "capture", server.connection_string, str(tmp_path), *words])
    assert done.exit_code == 1
    assert said in done.stderr
    assert server.key not in done.stderr


_QUEUE = (
    '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml"><QueueDescription '
    'xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"></QueueDescription></content></entry>'
)
