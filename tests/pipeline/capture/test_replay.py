"""A replay sends captured messages to an entity unchanged: all, those of a period, or those that pass a filter."""

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


async def capture_queue(server: ServerProcess, path: str, folder: Path) -> CapturedFolder:
    await run_capture(LocalSpark(), make_settings(server, folder, path))
    return CapturedFolder(folder)


async def test_a_replayed_message_equals_the_captured_one(
    spark: SparkSession,
    server: ServerProcess,
    queue: str,
    tmp_path: Path,
) -> None:
    await send_messages(server, queue, MESSAGES)
    captured = await capture_queue(server, queue, tmp_path / "first")
    target = server.create_queue()
    entity_folder = find_entity_folder(captured.folder, queue, None)
    rows = read_rows(spark, captured.folder, find_files(captured.folder, entity_folder))
    send_rows(rows, {"connectionString": server.connection_string, "entity": target})
    recaptured = await capture_queue(server, target, tmp_path / "again")
    assert recaptured.ids() == captured.ids() == ["bytes", "value", "empty"]
    for name in WRITABLE_COLUMNS:
        if name != "entity":
            assert recaptured.table().column(name).to_pylist() == captured.table().column(name).to_pylist(), name


async def test_times_and_filters_choose_messages_and_files(
    spark: SparkSession,
    server: ServerProcess,
    queue: str,
    tmp_path: Path,
) -> None:
    for message in MESSAGES:
        await send_messages(server, queue, [message])
        captured = await capture_queue(server, queue, tmp_path)
    (tmp_path / captured.manifests()[2].path).unlink()  # a file without a manifest does not count
    first, second, *_ = files = find_files(captured.folder, "contoso")
    assert len(files) == 2
    assert find_files(captured.folder, "contoso", since=second.first_enqueued) == [second]
    assert find_files(captured.folder, "contoso", until=second.first_enqueued) == [first]

    def ids(**selection: object) -> list[str]:
        rows = read_rows(spark, captured.folder, files, **selection).select("messageId").collect()  # type: ignore[arg-type]
        return [row.messageId for row in rows]

    assert ids() == ["bytes", "value"]
    assert ids(since=second.first_enqueued) == ["value"]
    assert ids(until=second.first_enqueued) == ["bytes"]
    assert ids(where="label = 'kept'") == ["bytes"]
    assert ids(where="properties['int'].long = 1") == ["value"]
    with pytest.raises(PipelineError, match="the filter 'nonsense' is not valid"):
        ids(where="nonsense")


async def test_a_replay_of_an_entity_excludes_its_subscriptions_and_dead_letters(
    server: ServerProcess,
    tmp_path: Path,
) -> None:
    topic = "replayed"
    server.create_entity(topic, "TopicDescription")
    server.create_entity(f"{topic}/Subscriptions/all", "SubscriptionDescription")
    queue = server.create_queue()
    dead_letters = f"{queue}/$DeadLetterQueue"
    await send_messages(server, queue, MESSAGES[:1])
    async with MessagingFactory.from_connection_string(server.connection_string) as factory:
        receiver = factory.create_message_receiver(queue)
        message = await receiver.receive()
        assert message is not None
        await receiver.dead_letter(message)
    await send_messages(server, queue, MESSAGES[1:])
    await send_messages(server, topic, MESSAGES)
    await run_capture(LocalSpark(), make_settings(server, tmp_path, queue, dead_letters, f"{topic}/Subscriptions/all"))
    arguments = ["pipeline", "replay", server.connection_string, str(tmp_path)]
    for path, count in ((queue.upper(), 2), (dead_letters, 1), (f"{topic}/subscriptions/ALL", 3)):
        folder = CapturedFolder(tmp_path).folder
        assert (
            sum(manifest.eventCount for manifest in find_files(folder, find_entity_folder(folder, path, None), path))
            == count
        )
    result = CliRunner().invoke(app, [*arguments, topic])
    assert (result.exit_code, result.stdout) == (0, f"No captured file of '{topic}' has messages of that period.\n")


async def test_a_damaged_file_is_not_replayed(
    spark: SparkSession,
    server: ServerProcess,
    queue: str,
    tmp_path: Path,
) -> None:
    await send_messages(server, queue, MESSAGES[:1])
    captured = await capture_queue(server, queue, tmp_path)
    (manifest,) = captured.manifests()
    file, target = tmp_path / manifest.file, server.create_queue()
    file.write_bytes(file.read_bytes()[:-10])
    rows = read_rows(spark, captured.folder, [manifest])
    with pytest.raises(PipelineError, match=rf"{file.name} cannot be read"):
        send_rows(rows, {"connectionString": server.connection_string, "entity": target})
    assert server.message_counts(target)[0] == 0


async def test_files_without_a_source_id_column_have_source_ids(
    server: ServerProcess,
    queue: str,
    tmp_path: Path,
) -> None:
    await send_messages(server, queue, MESSAGES)
    captured = await capture_queue(server, queue, tmp_path)
    (manifest,) = captured.manifests()

    def source_ids() -> list[str]:
        files = json.dumps([(0, manifest.file, 3, source_name_of(manifest))])
        reader = CapturedReader({"uri": captured.folder.uri, "files": files})
        return [
            source_id
            for part in reader.partitions()
            for batch in reader.read(part)
            for source_id in batch["sourceId"].to_pylist()
        ]

    assert len(set(source_ids())) == 3
    assert all(f"/{queue}:" in source_id for source_id in source_ids())
    file = tmp_path / manifest.file
    pq.write_table(pq.read_table(file, partitioning=None).drop_columns(["sourceId"]), file)
    assert len(set(source_ids())) == 3
    assert all(source_id.startswith(f"contoso/{queue}:{manifest.entityId}/") for source_id in source_ids())


async def test_the_command_counts_and_sends_the_selected_messages(
    spark: SparkSession,
    server: ServerProcess,
    queue: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await send_messages(server, queue, MESSAGES)
    await capture_queue(server, queue, tmp_path)
    monkeypatch.setattr(spark_module, "session", lambda *_, **__: contextlib.nullcontext(spark))
    target = server.create_queue()
    arguments = ["pipeline", "replay", server.connection_string, str(tmp_path), queue, "--to", target]
    for options, verb, count in ((["--dry-run"], "would be", 0), ([], "were", 1)):
        result = CliRunner().invoke(app, [*arguments, "--filter", "label = 'kept'", *options])
        assert (result.exit_code, result.stdout) == (0, f"1 messages {verb} sent.\n")
        assert server.message_counts(target)[0] == count


def test_an_entity_that_was_not_captured_is_named(tmp_path: Path) -> None:
    captured = CapturedFolder(tmp_path)
    captured.folder.write_atomically("contoso/orders/0/2026/x", b"", "_temporary/x")
    captured.folder.write_atomically("other/orders/0/2026/x", b"", "_temporary/x")
    with pytest.raises(PipelineError, match=r"'news' was not captured to .*; namespaces there: contoso, other"):
        find_entity_folder(captured.folder, "news", None)
    with pytest.raises(PipelineError, match="'orders' was captured from contoso, other: choose one"):
        find_entity_folder(captured.folder, "orders", None)
    assert find_entity_folder(captured.folder, "orders", "other") == "other/orders"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--since", "yesterday"], "--since is 'yesterday'"),
        (["--option", "messageIds"], "has no value"),
        (["--option", "entty=x"], "no option 'entty' for writing"),
        ([], "'orders' was not captured"),
    ],
)
def test_invalid_arguments_are_refused_before_spark_starts(arguments: list[str], message: str, tmp_path: Path) -> None:
    connection_string = "Endpoint=sb://contoso.example/;SharedAccessKeyName=root;SharedAccessKey=c2VjcmV0"
    result = CliRunner().invoke(app, ["pipeline", "replay", connection_string, str(tmp_path), "orders", *arguments])
    assert result.exit_code == 1
    assert message in result.stderr
