"""Captured files go back into an entity: all, those of some time, those of a filter; each message as it was."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import uuid
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from tests.pipeline.capture.local_capture import CapturedFolder, LocalSpark, make_settings, run_capture
from twinbus.amqp.types import Int, Symbol, ULong
from twinbus.cli.main import app
from twinbus.client import BrokeredMessage, MessagingFactory
from twinbus.pipeline import spark as spark_module
from twinbus.pipeline.capture.data_source import CapturedReader, source_name_of
from twinbus.pipeline.capture.replay import find_entity_folder, find_files, read_rows, send_rows
from twinbus.pipeline.errors import PipelineError
from twinbus.pipeline.sink.messages import WRITABLE_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.support.server_process import ServerProcess

PROPERTIES = {
    "int": Int(1),
    "long": 2,
    "ulong": ULong(2**64 - 1),
    "symbol": Symbol("s"),
    "when": dt.datetime(2026, 11, 17, 8, tzinfo=dt.UTC),
    "tick": dt.timedelta(milliseconds=7),
    "id": uuid.UUID(int=7),
    "no": False,
    "nothing": None,
}
MESSAGES = [
    BrokeredMessage(b"\x00\xff", message_id="bytes", label="kept", time_to_live=dt.timedelta(hours=3)),
    BrokeredMessage({"a": Int(1)}, message_id="value", properties=PROPERTIES, correlation_id="c", content_type="t"),
    BrokeredMessage(None, message_id="empty", to="to", reply_to="r", reply_to_session_id="s", partition_key="k"),
]


async def send_messages(server: ServerProcess, path: str, messages: Sequence[BrokeredMessage]) -> None:
    async with MessagingFactory.from_connection_string(server.connection_string) as factory:
        for message in messages:
            await factory.create_message_sender(path).send(message)


async def captured(server: ServerProcess, path: str, folder: Path) -> CapturedFolder:
    await run_capture(LocalSpark(), make_settings(server, folder, path))
    return CapturedFolder(folder)


async def test_a_replayed_message_is_the_one_that_was_captured(
    spark: SparkSession,
    server: ServerProcess,
    queue: str,
    tmp_path: Path,
) -> None:
    await send_messages(server, queue, MESSAGES)
    taken = await captured(server, queue, tmp_path / "first")
    target = server.create_queue()
    place = find_entity_folder(taken.folder, queue, None)
    rows = read_rows(spark, taken.folder, find_files(taken.folder, place))
    send_rows(rows, {"connectionString": server.connection_string, "entity": target})
    again = await captured(server, target, tmp_path / "again")
    assert again.ids() == taken.ids() == ["bytes", "value", "empty"]
    for name in WRITABLE_COLUMNS:
        if name != "entity":
            assert again.table().column(name).to_pylist() == taken.table().column(name).to_pylist(), name


async def test_times_and_filters_choose_messages_and_files(
    spark: SparkSession,
    server: ServerProcess,
    queue: str,
    tmp_path: Path,
) -> None:
    for message in MESSAGES:
        await send_messages(server, queue, [message])
        taken = await captured(server, queue, tmp_path)
    (tmp_path / taken.manifests()[2].path).unlink()  # a file that does not count
    first, second, *_ = files = find_files(taken.folder, "contoso")
    assert len(files) == 2
    assert find_files(taken.folder, "contoso", since=second.first_enqueued) == [second]
    assert find_files(taken.folder, "contoso", until=second.first_enqueued) == [first]

    def ids(**chosen: object) -> list[str]:
        found = read_rows(spark, taken.folder, files, **chosen).select("messageId").collect()  # type: ignore[arg-type]
        return [row.messageId for row in found]

    assert ids() == ["bytes", "value"]
    assert ids(since=second.first_enqueued) == ["value"]
    assert ids(until=second.first_enqueued) == ["bytes"]
    assert ids(where="label = 'kept'") == ["bytes"]
    assert ids(where="properties['int'].long = 1") == ["value"]
    with pytest.raises(PipelineError, match="the filter 'nonsense' cannot be used"):
        ids(where="nonsense")


async def test_what_lies_below_the_folder_of_an_entity_is_not_replayed_with_it(
    server: ServerProcess,
    tmp_path: Path,
) -> None:
    topic = "replayed"
    server.create_entity(topic, "TopicDescription")
    server.create_entity(f"{topic}/Subscriptions/all", "SubscriptionDescription")
    queue = server.create_queue()
    dead = f"{queue}/$DeadLetterQueue"
    await send_messages(server, queue, MESSAGES[:1])
    async with MessagingFactory.from_connection_string(server.connection_string) as factory:
        receiver = factory.create_message_receiver(queue)
        message = await receiver.receive()
        assert message is not None
        await receiver.dead_letter(message)
    await send_messages(server, queue, MESSAGES[1:])
    await send_messages(server, topic, MESSAGES)
    await run_capture(LocalSpark(), make_settings(server, tmp_path, queue, dead, f"{topic}/Subscriptions/all"))
    words = ["pipeline", "replay", server.connection_string, str(tmp_path)]
    for path, count in ((queue.upper(), 2), (dead, 1), (f"{topic}/subscriptions/ALL", 3)):
        folder = CapturedFolder(tmp_path).folder
        assert sum(one.eventCount for one in find_files(folder, find_entity_folder(folder, path, None), path)) == count
    done = CliRunner().invoke(app, [*words, topic])
    assert (done.exit_code, done.stdout) == (0, f"No captured file of '{topic}' has messages of that time.\n")


async def test_a_file_that_was_changed_is_not_replayed(
    spark: SparkSession,
    server: ServerProcess,
    queue: str,
    tmp_path: Path,
) -> None:
    await send_messages(server, queue, MESSAGES[:1])
    taken = await captured(server, queue, tmp_path)
    (manifest,) = taken.manifests()
    file, target = tmp_path / manifest.file, server.create_queue()
    file.write_bytes(file.read_bytes()[:-10])
    rows = read_rows(spark, taken.folder, [manifest])
    with pytest.raises(PipelineError, match=rf"{file.name} cannot be read"):
        send_rows(rows, {"connectionString": server.connection_string, "entity": target})
    assert server.message_counts(target)[0] == 0


async def test_files_of_earlier_versions_have_source_ids_too(
    server: ServerProcess,
    queue: str,
    tmp_path: Path,
) -> None:
    await send_messages(server, queue, MESSAGES)
    taken = await captured(server, queue, tmp_path)
    (manifest,) = taken.manifests()

    def source_ids() -> list[str]:
        files = json.dumps([(0, manifest.file, 3, source_name_of(manifest))])
        reader = CapturedReader({"uri": taken.folder.uri, "files": files})
        return [
            one for part in reader.partitions() for batch in reader.read(part) for one in batch["sourceId"].to_pylist()
        ]

    assert len(set(source_ids())) == 3
    assert all(f"/{queue}:" in one for one in source_ids())
    file = tmp_path / manifest.file
    pq.write_table(pq.read_table(file, partitioning=None).drop_columns(["sourceId"]), file)
    assert len(set(source_ids())) == 3
    assert all(one.startswith(f"contoso/{queue}:{manifest.entityId}/") for one in source_ids())


async def test_the_command_counts_and_sends_what_was_chosen(
    spark: SparkSession,
    server: ServerProcess,
    queue: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await send_messages(server, queue, MESSAGES)
    await captured(server, queue, tmp_path)
    monkeypatch.setattr(spark_module, "session", lambda *_, **__: contextlib.nullcontext(spark))
    target = server.create_queue()
    words = ["pipeline", "replay", server.connection_string, str(tmp_path), queue, "--to", target]
    for more, said, there in ((["--dry-run"], "would be", 0), ([], "were", 1)):
        done = CliRunner().invoke(app, [*words, "--filter", "label = 'kept'", *more])
        assert (done.exit_code, done.stdout) == (0, f"1 messages {said} sent.\n")
        assert server.message_counts(target)[0] == there


def test_what_was_never_captured_is_named(tmp_path: Path) -> None:
    taken = CapturedFolder(tmp_path)
    taken.folder.write_atomically("contoso/orders/0/2026/x", b"", "_temporary/x")
    taken.folder.write_atomically("other/orders/0/2026/x", b"", "_temporary/x")
    with pytest.raises(PipelineError, match=r"nothing of 'news' is in .*; it has contoso, other"):
        find_entity_folder(taken.folder, "news", None)
    with pytest.raises(PipelineError, match="'orders' was captured from contoso, other: say which"):
        find_entity_folder(taken.folder, "orders", None)
    assert find_entity_folder(taken.folder, "orders", "other") == "other/orders"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--since", "yesterday"], "--since is 'yesterday'"),
        (["--option", "messageIds"], "has no value"),
        (["--option", "entty=x"], "no option 'entty' for writing"),
        ([], "nothing of 'orders'"),
    ],
)
def test_a_replay_that_cannot_be_is_refused_before_spark_starts(words: list[str], said: str, tmp_path: Path) -> None:
    where = "Endpoint=sb://contoso.example/;SharedAccessKeyName=root;SharedAccessKey=c2VjcmV0"
    done = CliRunner().invoke(app, ["pipeline", "replay", where, str(tmp_path), "orders", *words])
    assert done.exit_code == 1
    assert said in done.stderr
