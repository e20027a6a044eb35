"""Entities with their figures: counts by state, totals, rates, ages, fragments, pages, and bad parameters."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from tests.support.server_process import QUEUE_ENTRY, wait_until

if TYPE_CHECKING:
    from tests.server.api.api_client import ApiClient
    from tests.support.server_process import ServerProcess


def test_an_entity_is_shown_with_its_messages_by_state(queue: str, api: ApiClient, sdk: ServiceBusClient) -> None:
    later = dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)
    with sdk.get_queue_sender(queue) as sender, sdk.get_queue_receiver(queue) as receiver:
        sender.send_messages([ServiceBusMessage(str(number)) for number in range(6)])
        sender.schedule_messages(ServiceBusMessage("later"), later)
        received: list[Any] = []
        while len(received) < 4:
            received += receiver.receive_messages(max_message_count=4 - len(received), max_wait_time=10)
        receiver.complete_message(received[0])
        receiver.defer_message(received[1])
        receiver.dead_letter_message(received[2])
        shown = api.read(f"entities/{queue}")
        assert shown["counts"] == {
            "active": 3,
            "scheduled": 1,
            "deferred": 1,
            "dead_lettered": 1,
            "transfer": 0,
            "transfer_dead_lettered": 0,
            "locked": 1,
        }
        assert shown["totals"] == {"enqueued": 7, "removed": 2, "dead_lettered": 1}
        assert (shown["senders"], shown["receivers"]) == (1, 1)
    assert (shown["kind"], shown["status"], shown["is_available"]) == ("queue", "Active", True)
    assert 0 < shown["size_bytes"] < shown["max_size_bytes"] == 1024 * 1_048_576
    (fragment,) = shown["fragments"]
    assert (fragment["number"], fragment["counts"], fragment["totals"]) == (0, shown["counts"], shown["totals"])


def test_the_age_is_that_of_the_oldest_active_message(queue: str, api: ApiClient, sdk: ServiceBusClient) -> None:
    assert api.read(f"entities/{queue}")["oldest_active"] is None
    with sdk.get_queue_sender(queue) as sender, sdk.get_queue_receiver(queue) as receiver:
        sender.send_messages(ServiceBusMessage("first"))
        sender.send_messages(ServiceBusMessage("second"))
        first, second = (message.enqueued_time_utc for message in receiver.peek_messages(2))
        for expected in (first, second):
            shown = api.read(f"entities/{queue}")
            assert dt.datetime.fromisoformat(shown["oldest_active"]) == expected
            assert 0 <= shown["oldest_active_age_s"] < 60
            (message,) = receiver.receive_messages(max_wait_time=10)
            receiver.complete_message(message)
    assert api.read(f"entities/{queue}")["oldest_active"] is None


def test_rates_follow_the_messages_of_clients(queue: str, api: ApiClient, sdk: ServiceBusClient) -> None:
    with sdk.get_queue_sender(queue) as sender:
        sender.send_messages([ServiceBusMessage(str(number)) for number in range(50)])
        wait_until(lambda: api.read(f"entities/{queue}")["rates"]["sent"] > 0)
        assert api.read(f"entities/{queue}")["rates"]["received"] == 0
        assert api.read("overview")["rates"]["sent"] > 0


def test_a_partitioned_queue_has_sixteen_fragments_that_add_up(
    server: ServerProcess, api: ApiClient, sdk: ServiceBusClient
) -> None:
    queue = server.create_queue(EnablePartitioning="true")
    with sdk.get_queue_sender(queue) as sender:
        for number in range(4):
            sender.send_messages([ServiceBusMessage("x", session_id=f"key-{number}") for _ in range(3)])
    shown = api.read(f"entities/{queue}")
    assert [fragment["number"] for fragment in shown["fragments"]] == list(range(16))
    assert sum(fragment["counts"]["active"] for fragment in shown["fragments"]) == shown["counts"]["active"] == 12
    assert {fragment["store"] for fragment in shown["fragments"]} == {0, 1, 2, 3}


def test_entities_are_listed_in_pages_by_prefix_and_kind(server: ServerProcess, api: ApiClient, name: str) -> None:
    server.create_entity(f"{name}/topic", "TopicDescription")
    for number in range(3):
        server.create_entity(f"{name}/topic/Subscriptions/s{number}", "SubscriptionDescription")
        server.request("PUT", f"{name}/Queue{number}", QUEUE_ENTRY.format(""), expected=201)
    listed, after = [], ""
    while True:
        page = api.read(f"entities?prefix={name.upper()}&top=2{after}")
        listed += [(entity["kind"], entity["path"].removeprefix(f"{name}/")) for entity in page["entities"]]
        if page["next"] is None:
            break
        assert len(page["entities"]) == 2
        after = f"&after={page['next']}"
    subscriptions = [("subscription", f"topic/Subscriptions/s{number}") for number in range(3)]
    assert listed == [*[("queue", f"Queue{number}") for number in range(3)], ("topic", "topic"), *subscriptions]
    topics = api.read(f"entities?prefix={name}&kind=topic")["entities"]
    assert [topic["path"] for topic in topics] == [f"{name}/topic"]


@pytest.mark.parametrize(
    ("resource", "status", "error"),
    [
        ("entities?top=0", 400, "top is '0'; it has to be a number from 1 to 1,000"),
        ("entities?top=1001", 400, "top is '1001'; it has to be a number from 1 to 1,000"),
        ("entities?top=%C2%B2", 400, "top is '²'; it has to be a number from 1 to 1,000"),
        ("entities?kind=queues", 400, "kind is 'queues'; it has to be one of queue, topic, subscription"),
        ("entities?prefx=a", 400, "'prefx' is not a parameter of this resource; it has prefix, kind, top, after"),
        (f"entities?prefix={'a' * 600}", 400, "prefix has 600 characters (limit: 512)"),
        ("overview?top=1", 400, "'top' is not a parameter of this resource; it has none"),
        ("locks/missing?after=x", 400, "after is 'x'; it has to be the value of 'next' in the previous page"),
        ("connections?after=7", 400, "'7' is not the id of a connection, such as 0-17"),
        ("connections/seven", 400, "'seven' is not the id of a connection, such as 0-17"),
        ("connections/9-1", 404, "there is no connection '9-1': it is closed, or its process does not answer"),
        ("entities/missing", 404, "The messaging entity 'missing' could not be found."),
        ("locks/missing", 404, "The messaging entity 'missing' could not be found."),
        ("sessions/missing", 404, "The messaging entity 'missing' could not be found."),
        ("nothing", 404, "there is no resource '$api/v1/nothing': /$api/v1/openapi.json lists the resources"),
    ],
)
def test_a_bad_request_gets_one_line_that_says_what_to_do(
    api: ApiClient, resource: str, status: int, error: str
) -> None:
    response = api.get(resource)
    assert (response.status, response.error) == (status, error)
