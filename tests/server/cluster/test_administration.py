"""Administration through one worker takes effect in every worker."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from azure.servicebus.management import ServiceBusAdministrationClient, SqlRuleFilter

from tests.support.multi_process_server import run_multi_process_server
from tests.support.server_process import QUEUE_ENTRY, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.multi_process_server import MultiProcessServer

WORKERS = 3
PARTITIONED = QUEUE_ENTRY.format("<EnablePartitioning>true</EnablePartitioning>")


@pytest.fixture(scope="module")
def running_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MultiProcessServer]:
    with run_multi_process_server(tmp_path_factory.mktemp("crew"), "--stores=6", workers=WORKERS) as server:
        yield server


@pytest.fixture
def server(running_server: MultiProcessServer) -> Iterator[MultiProcessServer]:
    yield running_server
    running_server.check_log()


def count_of(answer: str, kind: str = "Active") -> int:
    match = re.search(rf"{kind}MessageCount>(\d+)<", answer)
    assert match is not None
    return int(match[1])


@pytest.mark.parametrize("body", [QUEUE_ENTRY.format(""), PARTITIONED], ids=["plain", "partitioned"])
def test_an_entity_created_through_any_worker_exists_at_once_in_every_worker(
    server: MultiProcessServer, body: str
) -> None:
    kind = "plain" if body != PARTITIONED else "partitioned"
    with server.connect_to_each() as connections:
        for creator, connection in connections.items():
            name = f"made-{kind}-{creator}"
            server.request_on(connection, "PUT", name, body, expected=201)
            for other in connections.values():
                assert f">{name}<" in server.request_on(other, "GET", name, expected=200)
            conflict = server.request_on(connections[(creator + 1) % WORKERS], "PUT", name, body, expected=409)
            assert f"'{name}' already exists" in conflict


@pytest.mark.parametrize("partitioned", ["false", "true"])
def test_every_worker_reports_the_same_time_of_last_access(server: MultiProcessServer, partitioned: str) -> None:
    name = server.create_queue(EnablePartitioning=partitioned)
    with server.connect_to_each() as connections:
        server.send(name, "used", connections[1])
        descriptions = {server.request_on(connection, "GET", name, expected=200) for connection in connections.values()}
    (accessed,) = {re.findall("<AccessedAt>(.*?)<", text)[0] for text in descriptions}
    (created,) = {re.findall("<CreatedAt>(.*?)<", text)[0] for text in descriptions}
    assert accessed > created


def test_an_update_is_visible_at_once_through_every_worker(server: MultiProcessServer) -> None:
    name = server.create_queue()
    with server.connect_to_each() as connections:
        for number, connection in connections.items():
            body = QUEUE_ENTRY.format(f"<MaxDeliveryCount>{number + 20}</MaxDeliveryCount>")
            server.request_on(connection, "PUT", name, body, expected=200, headers={"If-Match": "*"})
            for other in connections.values():
                assert f"MaxDeliveryCount>{number + 20}<" in server.request_on(other, "GET", name, expected=200)


def test_a_disabled_queue_accepts_no_message_through_any_worker(server: MultiProcessServer) -> None:
    name = server.create_queue()
    server.update_queue(name, Status="Disabled")
    with server.connect_to_each() as connections:
        for connection in connections.values():
            server.request_on(connection, "POST", f"{name}/messages", "no", expected=400)
        server.update_queue(name, Status="Active")
        for connection in connections.values():
            server.send(name, "yes", connection)


def test_a_deleted_entity_is_gone_at_once_from_every_worker(server: MultiProcessServer) -> None:
    with server.connect_to_each() as connections:
        for connection in connections.values():
            server.request_on(connection, "PUT", "short-lived", PARTITIONED, expected=201)
            server.send("short-lived", "old", connection)
            server.request_on(connection, "DELETE", "short-lived", expected=200)
            for other in connections.values():
                server.request_on(other, "GET", "short-lived", expected=404)
                server.request_on(other, "POST", "short-lived/messages", "no", expected=404)


def test_a_recreated_queue_has_no_messages_of_the_deleted_queue(server: MultiProcessServer) -> None:
    server.create_entity("again", "QueueDescription")
    for _ in range(5):
        server.send("again", "old")
    server.delete_queue("again")
    server.create_entity("again", "QueueDescription")
    for answer in server.request_each("GET", "again", expected=200).values():
        assert count_of(answer) == 0


def test_every_worker_has_the_same_rules(server: MultiProcessServer) -> None:
    with ServiceBusAdministrationClient.from_connection_string(
        server.admin_connection_string, connection_verify=server.ca_file
    ) as admin:
        admin.create_topic("news")
        admin.create_subscription("news", "reds")
        admin.create_rule("news", "reds", "colour", filter=SqlRuleFilter("colour = 'red'"))
        admin.delete_rule("news", "reds", "$Default")
        for answer in server.request_each("GET", "news/Subscriptions/reds/Rules", expected=200).values():
            assert "colour = 'red'" in answer
            assert "$Default" not in answer
        rule = admin.get_rule("news", "reds", "colour")
        rule.filter = SqlRuleFilter("colour = 'blue'")
        admin.update_rule("news", "reds", rule)
        for answer in server.request_each("GET", "news/Subscriptions/reds/Rules/colour", expected=200).values():
            assert "colour = 'blue'" in answer
        with server.connect_to_each() as connections:
            for number, connection in connections.items():
                headers = {"colour": '"blue"' if number else '"red"'}
                server.request_on(connection, "POST", "news/messages", f"by {number}", expected=201, headers=headers)
            received = {server.receive_and_delete("news/Subscriptions/reds") for _ in range(WORKERS - 1)}
        assert received == {"by 1", "by 2"}


@pytest.mark.parametrize(
    "elements", ["", "<EnablePartitioning>true</EnablePartitioning>"], ids=["plain", "partitioned"]
)
def test_every_worker_reports_the_right_message_counts(server: MultiProcessServer, elements: str) -> None:
    name = f"counted-{bool(elements)}".lower()
    server.request("PUT", name, QUEUE_ENTRY.format(elements), expected=201)
    with server.connect_to_each() as connections:
        for connection in connections.values():
            for number in range(7):
                server.send(name, str(number), connection)
        for connection in connections.values():
            assert count_of(server.request_on(connection, "GET", name, expected=200)) == 7 * WORKERS
            listed = server.request_on(
                connection, "GET", "$Resources/queues?api-version=2021-05&$top=1000", expected=200
            )
            entry = next(text for text in listed.split("<entry") if f">{name}<" in text)
            assert count_of(entry) == 7 * WORKERS


def test_entities_of_all_workers_are_listed_in_order(server: MultiProcessServer) -> None:
    names = [f"listed-{number}" for number in range(8)]
    for name in names:
        server.create_entity(name, "QueueDescription")
    for answer in server.request_each("GET", "$Resources/queues?api-version=2021-05&$top=1000", expected=200).values():
        listed = re.findall(r"<title[^>]*>(listed-\d)</title>", answer)
        assert listed == names


def test_subscriptions_created_through_any_worker_get_their_topics_messages(server: MultiProcessServer) -> None:
    for number in range(4):
        server.create_entity(f"topic-{number}", "TopicDescription")
        with server.connect_to_each() as connections:
            for worker, connection in connections.items():
                body = QUEUE_ENTRY.format("").replace("QueueDescription", "SubscriptionDescription")
                path = f"topic-{number}/Subscriptions/by-{worker}"
                server.request_on(connection, "PUT", path, body, expected=201)
            server.send(f"topic-{number}", "to all", connections[number % WORKERS])
            for worker in range(WORKERS):
                assert server.receive_and_delete(f"topic-{number}/Subscriptions/by-{worker}") == "to all"


def test_forward_to_a_missing_queue_is_refused(server: MultiProcessServer) -> None:
    body = QUEUE_ENTRY.format("<ForwardTo>nowhere</ForwardTo>")
    assert "ForwardTo of 'source' is 'nowhere'" in server.request_any(None, "PUT", "source", body, expected=400)
    target = server.create_queue()
    source = "source"
    server.request_any(None, "PUT", source, QUEUE_ENTRY.format(f"<ForwardTo>{target}</ForwardTo>"), expected=201)
    with server.connect_to_each() as connections:
        for number, connection in connections.items():
            server.send(source, str(number), connection)
        assert {server.receive_and_delete(target, connection) for connection in connections.values()} == {"0", "1", "2"}


def test_keys_of_an_entity_are_valid_at_every_worker(server: MultiProcessServer) -> None:
    rule = (
        '<AuthorizationRules><AuthorizationRule xmlns:i="http://www.w3.org/2001/XMLSchema-instance" '
        'i:type="SharedAccessAuthorizationRule"><ClaimType>SharedAccessKey</ClaimType><ClaimValue>None</ClaimValue>'
        "<Rights><AccessRights>Send</AccessRights></Rights><KeyName>sender</KeyName>"
        "<PrimaryKey>c2VjcmV0c2VjcmV0</PrimaryKey><SecondaryKey>c2VjcmV0c2VjcmV0</SecondaryKey></AuthorizationRule>"
        "</AuthorizationRules>"
    )
    server.request("PUT", "keyed", QUEUE_ENTRY.format(rule), expected=201)
    headers = {"Authorization": server.token("keyed", key="c2VjcmV0c2VjcmV0", key_name="sender")}
    with server.connect_to_each() as connections:
        for connection in connections.values():
            server.request_on(connection, "POST", "keyed/messages", "x", expected=201, headers=headers)
            server.request_on(connection, "DELETE", "keyed/messages/head?timeout=0", expected=401, headers=headers)


def test_a_deleted_entity_is_removed_from_the_catalogue_and_the_stores(server: MultiProcessServer) -> None:
    server.request("PUT", "buried", PARTITIONED, expected=201)
    server.delete_queue("buried")
    wait_until(lambda: server.entities_pending_cleanup() == 0)
