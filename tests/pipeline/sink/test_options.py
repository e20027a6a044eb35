"""Options for writing: wrong ones are refused with what to do, and secrets do not show."""

from __future__ import annotations

import pytest

from twinbus.pipeline.errors import PipelineError
from twinbus.pipeline.sink.options import read_options

WHERE = "Endpoint=sb://contoso.example/;SharedAccessKeyName=root;SharedAccessKey=c2VjcmV0"
OTHER = "Endpoint=sb://backup.example/;SharedAccessKeyName=root;SharedAccessKey=b3RoZXI="


def test_names_are_read_without_regard_to_case() -> None:
    found = read_options({"CONNECTIONSTRING": WHERE, "Entity": "orders", "checkpointLocation": "/tmp/x"})  # noqa: S108
    assert (found.entity, found.operation_timeout_s, found.pair, found.has_deterministic_ids) == (
        "orders",
        60,
        None,
        False,
    )


def test_the_argument_of_save_is_the_entity_too() -> None:
    assert read_options({"connectionString": WHERE, "path": "orders"}).entity == "orders"
    assert read_options({"connectionString": WHERE, "path": "Orders", "entity": "orders"}).entity == "orders"


def test_a_pair_is_read() -> None:
    found = read_options(
        {
            "connectionString": WHERE,
            "secondaryConnectionString": OTHER,
            "backlogQueueCount": "3",
            "failoverInterval": "0",
            "pingInterval": "5",
            "primaryName": "contoso",
            "spoolDir": "/srv/spool",
            "journalDir": "/srv/journal",
        }
    )
    pair = found.pair
    assert pair is not None
    assert (pair.connection_string, pair.admin_connection_string) == (OTHER, OTHER)
    assert (pair.backlog_queue_count, pair.failover_interval_s, pair.ping_interval_s) == (3, 0, 5)
    assert (pair.primary_name, pair.spool_dir, found.journal_dir) == ("contoso", "/srv/spool", "/srv/journal")


def test_a_key_for_ids_is_names_of_columns() -> None:
    found = read_options({"connectionString": WHERE, "messageIds": "deterministic", "messageIdKey": "orderId, line"})
    assert (found.has_deterministic_ids, found.id_key) == (True, ("orderId", "line"))


def test_secrets_do_not_show() -> None:
    text = repr(read_options({"connectionString": WHERE, "secondaryConnectionString": OTHER}))
    assert "c2VjcmV0" not in text
    assert "b3RoZXI" not in text


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "needs the option connectionString"),
        ({"connectionString": "Endpoint=x"}, "connectionString cannot be read"),
        ({"connectionString": WHERE, "entty": "x"}, "no option 'entty' for writing .did you mean entity"),
        ({"connectionString": WHERE, "startingOffsets": "latest"}, "no option 'startingOffsets' for writing"),
        (
            {"connectionString": WHERE, "entity": "orders", "path": "news"},
            r"entity is 'orders', and save\(...\) or start\(...\) says 'news': give one of them",
        ),
        ({"connectionString": WHERE, "messageIds": "random"}, "messageIds is 'random'; it can be given or determin"),
        ({"connectionString": WHERE, "messageIdKey": "a"}, "messageIdKey is 'a', and messageIds is given"),
        (
            {"connectionString": WHERE, "messageIds": "deterministic", "messageIdKey": "a, ,b"},
            "it is the names of columns, each once",
        ),
        (
            {"connectionString": WHERE, "messageIds": "deterministic", "messageIdKey": "a,a"},
            "it is the names of columns, each once",
        ),
        ({"connectionString": WHERE, "operationTimeout": "soon"}, "operationTimeout is 'soon'"),
        ({"connectionString": WHERE, "spoolDir": "/x"}, "spoolDir is for a pair"),
        ({"connectionString": WHERE, "secondaryConnectionString": "Key=c2VjcmV0"}, "secondaryConnectionString cannot"),
        (
            {"connectionString": WHERE, "secondaryConnectionString": OTHER, "backlogQueueCount": "0"},
            "backlogQueueCount is '0'",
        ),
    ],
)
def test_what_cannot_be_is_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(PipelineError, match=said) as caught:
        read_options(given)
    assert "c2VjcmV0" not in str(caught.value)
