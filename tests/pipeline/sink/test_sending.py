"""A task sends its rows, in order within a session, and names the row that fails."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from twinbus.client.journal_file import batches as read_batches
from twinbus.client.sync import MessagingFactory
from twinbus.pipeline.errors import PipelineError
from twinbus.pipeline.sink.batch_sender import SendCounts, send_all
from twinbus.pipeline.sink.message_ids import DIGEST_BYTES, RowIds
from twinbus.pipeline.sink.options import SinkOptions, read_options

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.server_process import ServerProcess

ROWS = 2_500


def options(server: ServerProcess, entity: str, **overrides: str) -> SinkOptions:
    return read_options({"connectionString": server.connection_string, "entity": entity, **overrides})


def batches(count: int = ROWS, rows_per_batch: int = 1_000, **columns: list[str]) -> Iterator[pa.RecordBatch]:
    table = pa.table({"messageId": [str(number) for number in range(count)], "body": ["x"] * count, **columns})
    yield from table.to_batches(rows_per_batch)


def ids(server: ServerProcess, path: str) -> list[str]:
    with MessagingFactory.from_connection_string(server.connection_string) as factory:
        client, message_ids = factory.create_queue_client(path), list[str]()
        while batch := client.receive_batch(500, 5 if not message_ids else 0.2):
            message_ids += [str(message.message_id) for message in batch]
        return message_ids


def test_all_rows_are_sent_once(server: ServerProcess, queue: str) -> None:
    assert send_all(options(server, queue), batches(), None) == SendCounts(sent=ROWS)
    received = ids(server, queue)
    assert len(received) == ROWS
    assert sorted(received, key=int) == [str(number) for number in range(ROWS)]


def test_rows_go_to_the_entities_they_name(server: ServerProcess, queue: str) -> None:
    other = server.create_queue()
    entities = [queue if number % 2 else other for number in range(100)]
    send_all(options(server, queue), batches(100, entity=entities), None)
    assert (server.message_counts(queue)[0], server.message_counts(other)[0]) == (50, 50)


def test_rows_go_to_a_topic(server: ServerProcess) -> None:
    server.create_entity("sink-topic", "TopicDescription")
    server.create_entity("sink-topic/Subscriptions/all", "SubscriptionDescription")
    send_all(options(server, "sink-topic"), batches(10), None)
    assert sorted(ids(server, "sink-topic/Subscriptions/all"), key=int) == [str(number) for number in range(10)]


def test_the_rows_of_a_session_stay_in_order(server: ServerProcess) -> None:
    path = server.create_queue(RequiresSession="true")
    names = [str(number % 3) for number in range(ROWS)]
    send_all(options(server, path), batches(sessionId=names), None)
    with MessagingFactory.from_connection_string(server.connection_string) as factory:
        for name in ("0", "1", "2"):
            session, numbers = factory.create_queue_client(path).accept_session(name), list[int]()
            while batch := session.receive_batch(500, 1):
                numbers += [int(str(message.message_id)) for message in batch]
            assert numbers == [number for number in range(ROWS) if str(number % 3) == name]


def test_rows_without_an_id_are_sent_with_deterministic_ids(server: ServerProcess, queue: str) -> None:
    rows = pa.table({"body": ["x"] * 25, "sourceId": [f"s/{row}" for row in range(25)]}).to_batches(10)
    row_ids = RowIds("query-3")
    send_all(options(server, queue), iter(rows), row_ids)
    digests = [row_ids.digests[start : start + DIGEST_BYTES] for start in range(0, len(row_ids.digests), DIGEST_BYTES)]
    assert sorted(ids(server, queue)) == sorted(f"query-3-{digest.hex()}" for digest in digests)
    assert len(set(digests)) == 25


def test_a_row_with_a_deterministic_id_is_named_by_its_key(server: ServerProcess, queue: str) -> None:
    rows = pa.table({"sourceId": ["s/1", "s/2"], "body": ["x", "x" * 300_000]}).to_batches()
    with pytest.raises(PipelineError, match=f"the row with sourceId s/2 cannot be sent to '{queue}': .*300,?0"):
        send_all(options(server, queue), iter(rows), RowIds("query-3"))


def test_a_row_that_is_too_large_is_named(server: ServerProcess, queue: str) -> None:
    rows = pa.table({"messageId": ["small", "large"], "body": ["x", "x" * 300_000]}).to_batches()
    with pytest.raises(PipelineError, match=f"the row with messageId 'large' cannot be sent to '{queue}': .*300,?0"):
        send_all(options(server, queue), iter(rows), None)


def test_a_row_that_the_entity_refuses_is_named(server: ServerProcess) -> None:
    path = server.create_queue(RequiresSession="true")
    rows = pa.table({"messageId": ["a", "b"], "body": ["x", "x"]}).to_batches()
    with pytest.raises(PipelineError, match="messageId 'a' cannot be sent"):
        send_all(options(server, path), iter(rows), None)


def test_a_property_out_of_range_names_its_row(server: ServerProcess, queue: str) -> None:
    entry = pa.struct([("type", pa.string()), ("long", pa.int64())])
    column = pa.array([None, [("a", {"type": "ubyte", "long": 256})]], pa.map_(pa.string(), entry))
    rows = pa.table({"messageId": ["good", "bad"], "body": ["x", "x"], "properties": column}).to_batches()
    with pytest.raises(PipelineError, match="messageId 'bad' cannot be sent"):
        send_all(options(server, queue), iter(rows), None)


def test_a_missing_entity_is_named(server: ServerProcess) -> None:
    with pytest.raises(PipelineError, match="nowhere"):
        send_all(options(server, "nowhere"), batches(1), None)


def test_an_error_of_the_row_iterator_is_passed_on(server: ServerProcess, queue: str) -> None:
    def failing() -> Iterator[pa.RecordBatch]:
        yield from batches(10)
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        send_all(options(server, queue), failing(), None)


def test_the_journal_has_a_row_for_each_message(server: ServerProcess, queue: str, tmp_path: Path) -> None:
    send_all(options(server, queue, journalDir=str(tmp_path)), batches(100), None)
    journal_rows = [row for file in tmp_path.iterdir() for batch in read_batches(file) for row in batch.to_pylist()]
    sent = [row["message_id"] for row in journal_rows if (row["kind"], row["outcome"]) == ("send", "sent")]
    assert sorted(sent, key=int) == [str(number) for number in range(100)]
