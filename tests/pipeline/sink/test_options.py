"""Options for writing: invalid ones are refused with advice, and secrets are not shown."""

from __future__ import annotations

import pytest

from twinbus.pipeline.errors import PipelineError
from twinbus.pipeline.sink.options import read_options

PRIMARY = "Endpoint=sb://contoso.example/;SharedAccessKeyName=root;SharedAccessKey=c2VjcmV0"
SECONDARY = "Endpoint=sb://backup.example/;SharedAccessKeyName=root;SharedAccessKey=b3RoZXI="


def test_option_names_ignore_case() -> None:
    options = read_options({"CONNECTIONSTRING": PRIMARY, "Entity": "orders", "checkpointLocation": "/tmp/x"})  # noqa: S108
    assert (options.entity, options.operation_timeout_s, options.pair, options.has_deterministic_ids) == (
        "orders",
        60,
        None,
        False,
    )


def test_the_argument_of_save_names_the_entity() -> None:
    assert read_options({"connectionString": PRIMARY, "path": "orders"}).entity == "orders"
    assert read_options({"connectionString": PRIMARY, "path": "Orders", "entity": "orders"}).entity == "orders"


def test_the_options_of_a_pair_are_read() -> None:
    options = read_options(
        {
            "connectionString": PRIMARY,
            "secondaryConnectionString": SECONDARY,
            "backlogQueueCount": "3",
            "failoverInterval": "0",
            "pingInterval": "5",
            "primaryName": "contoso",
            "spoolDir": "/srv/spool",
            "journalDir": "/srv/journal",
        }
    )
    pair = options.pair
    assert pair is not None
    assert (pair.connection_string, pair.admin_connection_string) == (SECONDARY, SECONDARY)
    assert (pair.backlog_queue_count, pair.failover_interval_s, pair.ping_interval_s) == (3, 0, 5)
    assert (pair.primary_name, pair.spool_dir, options.journal_dir) == ("contoso", "/srv/spool", "/srv/journal")


def test_a_message_id_key_is_a_list_of_columns() -> None:
    options = read_options(
        {"connectionString": PRIMARY, "messageIds": "deterministic", "messageIdKey": "orderId, line"}
    )
    assert (options.has_deterministic_ids, options.id_key) == (True, ("orderId", "line"))


def test_options_show_no_secrets() -> None:
    text = repr(read_options({"connectionString": PRIMARY, "secondaryConnectionString": SECONDARY}))
    assert "c2VjcmV0" not in text
    assert "b3RoZXI" not in text


@pytest.mark.parametrize(
    ("invalid", "message"),
    [
        ({}, "needs the option connectionString"),
        ({"connectionString": "Endpoint=x"}, "connectionString cannot be read"),
        ({"connectionString": PRIMARY, "entty": "x"}, "no option 'entty' for writing .did you mean entity"),
        ({"connectionString": PRIMARY, "startingOffsets": "latest"}, "no option 'startingOffsets' for writing"),
        (
            {"connectionString": PRIMARY, "entity": "orders", "path": "news"},
            r"entity is 'orders', but save\(...\) or start\(...\) names 'news': give one",
        ),
        ({"connectionString": PRIMARY, "messageIds": "random"}, "messageIds is 'random'; use given or determin"),
        ({"connectionString": PRIMARY, "messageIdKey": "a"}, "messageIdKey is 'a', but messageIds is given"),
        (
            {"connectionString": PRIMARY, "messageIds": "deterministic", "messageIdKey": "a, ,b"},
            "use distinct column names",
        ),
        (
            {"connectionString": PRIMARY, "messageIds": "deterministic", "messageIdKey": "a,a"},
            "use distinct column names",
        ),
        ({"connectionString": PRIMARY, "operationTimeout": "soon"}, "operationTimeout is 'soon'"),
        ({"connectionString": PRIMARY, "spoolDir": "/x"}, "spoolDir requires the option secondaryConnectionString"),
        (
            {"connectionString": PRIMARY, "secondaryConnectionString": "Key=c2VjcmV0"},
            "secondaryConnectionString cannot",
        ),
        (
            {"connectionString": PRIMARY, "secondaryConnectionString": SECONDARY, "backlogQueueCount": "0"},
            "backlogQueueCount is '0'",
        ),
    ],
)
def test_invalid_options_are_refused(invalid: dict[str, str], message: str) -> None:
    with pytest.raises(PipelineError, match=message) as caught:
        read_options(invalid)
    assert "c2VjcmV0" not in str(caught.value)
