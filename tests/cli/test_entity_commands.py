"""`twinbus entity` creates, lists, shows, changes and deletes queues, topics, subscriptions and rules."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.cli import invoke
from tests.support.http_client import HttpClient
from twinbus.cli.entity.property_options import DESCRIPTIONS, PROPERTIES
from twinbus.cli.output import EXIT_FAILED, EXIT_MISUSE

if TYPE_CHECKING:
    from tests.support.server_process import ServerProcess


@pytest.fixture(autouse=True)
def _connection(server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWINBUS_CONNECTION_STRING", server.connection_string)


def entity(*arguments: str) -> str:
    result = invoke("entity", *arguments)
    assert result.exit_code == 0, result.output
    return str(result.output)


def entity_json(*arguments: str) -> Any:  # noqa: ANN401  # any JSON
    return json.loads(entity(*arguments, "--json"))


def test_a_queue_gets_the_properties_of_its_options(name: str) -> None:
    created = entity_json(
        *("create", "queue", name, "--partitioned", "--max-size", "2GB", "--lock-duration", "30s"),
        *("--time-to-live", "1d12h", "--sessions", "--dead-letter-expired", "--max-delivery-count", "3"),
        *("--metadata", "for tests", "--auto-delete-after", "PT10M", "--max-message-size", "256KB"),
    )
    expected = {
        "enable_partitioning": True,
        "max_size_mb": 32_768,
        "lock_duration_ms": 30_000,
        "default_time_to_live_ms": 129_600_000,
        "requires_session": True,
        "dead_lettering_on_expiration": True,
        "max_delivery_count": 3,
        "user_metadata": "for tests",
        "auto_delete_on_idle_ms": 600_000,
        "max_message_kb": 256,
        "status": "Active",
    }
    assert created["properties"].items() >= expected.items()
    shown = entity_json("show", name)
    assert shown["properties"].items() >= expected.items()
    assert shown["runtime"]["active_count"] == 0
    text = entity("show", name)
    assert "max size                      32,768 MiB: 16 fragments of 2,048 MiB\n" in text
    assert "default time to live          1d12h\n" in text
    assert max(map(len, text.splitlines())) <= 80


def test_an_update_changes_only_the_given_properties(name: str) -> None:
    entity("create", "queue", name, "--partitioned", "--lock-duration", "30s", "--metadata", "text")
    changed = entity_json("update", "queue", name, "--status", "SendDisabled", "--max-size", "3GB", "--metadata", "")
    expected = {"lock_duration_ms": 30_000, "status": "SendDisabled", "max_size_mb": 49_152, "user_metadata": None}
    assert changed["properties"].items() >= expected.items()


def test_subscriptions_and_their_rules_are_managed(name: str) -> None:
    entity("create", "topic", name)
    entity("create", "subscription", name, "urgent", "--filter", "priority > 5")
    assert entity_json("show", name, "urgent", "$Default")["filter"]["expression"] == "priority > 5"
    entity("create", "rule", name, "urgent", "high", "--equal", "sys.Label=alarm", "--equal", "region=eu")
    entity("update", "rule", name, "urgent", "$Default", "--filter", "priority > 7", "--action", "SET seen = 1")
    shown = entity_json("show", f"{name}/Subscriptions/urgent")
    assert [rule["name"] for rule in shown["rules"]] == ["$Default", "high"]
    assert shown["rules"][0]["action"]["expression"] == "SET seen = 1"
    text = entity("show", name, "urgent")
    assert "$Default  priority > 7                           SET seen = 1\n" in text
    assert "high      sys.label = 'alarm' AND region = 'eu'\n" in text
    assert "filter    priority > 7\n" in entity("show", name, "urgent", "$Default")
    entity("delete", name, "urgent", "high", "--yes")
    assert [rule["name"] for rule in entity_json("show", name, "urgent")["rules"]] == ["$Default"]
    entity("delete", name, "urgent", "--yes")
    assert entity_json("show", name)["runtime"]["subscription_count"] == 0


def test_the_list_has_all_kinds_with_their_messages(server: ServerProcess, name: str) -> None:
    entity("create", "queue", f"{name}/queue")
    entity("create", "topic", f"{name}/topic")
    entity("create", "subscription", f"{name}/topic", "all")
    assert HttpClient(server).request("POST", f"/{name}/queue/messages", "one").status == 201
    lines = entity("list", name).splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert lines[0].split() == ["KIND", "PATH", "ACTIVE", "DEAD", "SIZE", "STATUS"]
    assert [line.split()[0] for line in lines[1:]] == ["queue", "topic", "subscription"]
    assert lines[1].split()[2:4] == ["1", "0"]
    rows = entity_json("list", name)
    assert [row["path"] for row in rows] == [f"{name}/queue", f"{name}/topic", f"{name}/topic/Subscriptions/all"]
    assert [row["kind"] for row in entity_json("list", name, "--kind", "subscription")] == ["subscription"]
    assert "There are no such entities" in entity("list", f"{name}/none")


def test_a_queue_with_messages_is_deleted_only_after_confirmation(server: ServerProcess, name: str) -> None:
    entity("create", "queue", name)
    assert HttpClient(server).request("POST", f"/{name}/messages", "one").status == 201
    refused = invoke("entity", "delete", name)
    assert refused.exit_code == EXIT_MISUSE
    question = f"Delete queue {name} with 1 message?"
    assert refused.output == f"twinbus entity delete: {question} There is no terminal to ask: confirm with --yes\n"
    assert entity("delete", name, "--yes") == f"Queue {name} deleted with 1 message.\n"
    assert entity("list", name).startswith("There are no")


def test_exists_ok_leaves_an_entity_as_it_is(name: str) -> None:
    entity("create", "queue", name, "--lock-duration", "30s")
    refused = invoke("entity", "create", "queue", name)
    assert refused.exit_code == EXIT_FAILED
    assert refused.output.startswith(f"twinbus entity create queue: '{name}' exists already: ")
    assert entity("create", "queue", name, "--exists-ok") == f"Queue {name} exists already.\n"
    assert entity_json("show", name)["properties"]["lock_duration_ms"] == 30_000


def test_exists_ok_leaves_a_subscription_as_it_is(name: str) -> None:
    entity("create", "topic", name)
    entity("create", "subscription", name, "s", "--lock-duration", "30s")
    again = entity("create", "subscription", name, "s", "--lock-duration", "1m", "--exists-ok")
    assert again == f"Subscription {name}/Subscriptions/s exists already.\n"
    assert entity_json("show", name, "s")["properties"]["lock_duration_ms"] == 30_000


def test_every_property_of_a_description_has_an_option() -> None:
    names = {field.name for kind in DESCRIPTIONS.values() for field in fields(kind)}
    assert names - set(PROPERTIES) == {"authorization_rules"}


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (("create", "queue", "a b"), EXIT_FAILED, "'a b' is not a valid path"),
        (("create", "queue", "q", "--lock-duration", "3s"), EXIT_MISUSE, "--lock-duration 3s: use 5s to 5m"),
        (("create", "queue", "q", "--lock-duration", "soon"), EXIT_MISUSE, "'soon' is not a duration"),
        (("create", "queue", "q", "--max-size", "7GB"), EXIT_MISUSE, "use 1GB, 2GB, 3GB, 4GB or 5GB"),
        (("create", "queue", "q", "--status", "Off"), EXIT_FAILED, "it can be Active, Disabled"),
        (("create", "subscription", "none", "s"), EXIT_FAILED, "'none' could not be found"),
        (("create", "rule", "t", "s", "r", "--filter", "a", "--equal", "b=c"), EXIT_MISUSE, "only one of --filter"),
        (("create", "rule", "t", "s", "r", "--equal", "b"), EXIT_MISUSE, "use NAME=TEXT"),
        (("create", "rule", "t", "s", "r", "--equal", "sys.b=c"), EXIT_MISUSE, "there is no 'sys.b'"),
        (("update", "queue", "none", "--status", "Active"), EXIT_FAILED, "'none' could not be found"),
        (("update", "queue", "none"), EXIT_MISUSE, "give at least one property"),
        (("show", "none"), EXIT_FAILED, "there is no queue or topic 'none'"),
        (("show", "t/Subscriptions/s", "s"), EXIT_MISUSE, "names a subscription already"),
        (("list", "--kind", "all"), EXIT_MISUSE, "use queue, topic or subscription"),
        (("delete", "none", "--yes"), EXIT_FAILED, "there is no queue or topic 'none'"),
    ],
)
def test_a_refusal_says_what_and_why(arguments: tuple[str, ...], code: int, reason: str) -> None:
    result = invoke("entity", *arguments, columns=200)
    assert result.exit_code == code, result.output
    assert reason in result.output
    assert "Traceback" not in result.output


def test_a_refused_key_and_a_missing_server_are_reported_in_one_line(server: ServerProcess) -> None:
    wrong = server.connection_string.replace(server.key, "d3Jvbmc=")
    result = invoke("entity", "list", "--connection-string", "-", stdin=wrong)
    assert (result.exit_code, result.output.count("\n")) == (EXIT_FAILED, 1)
    assert "the signature does not match any key with this name" in result.output
    assert "d3Jvbmc=" not in result.output
    nowhere = "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=a;SharedAccessKey=c2VjcmV0;UseDevelopmentEmulator=true"
    result = invoke("entity", "list", "--connection-string", "-", stdin=nowhere)
    assert (result.exit_code, result.output.count("\n")) == (EXIT_FAILED, 1)
    assert "http://127.0.0.1:1 cannot be reached: the connection is refused; is the server running?" in result.output


def test_without_the_ca_certificate_the_error_says_how_to_trust_it(
    server: ServerProcess,
) -> None:
    result = invoke("entity", "list", "--connection-string", server.admin_connection_string)
    assert result.exit_code == EXIT_FAILED
    assert "--ca-file FILE, or use its --ready-file" in result.output
