"""The metrics page: its format, its labels, and a queue with the name of the page."""

from __future__ import annotations

import http.client
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from azure.servicebus import ServiceBusClient, ServiceBusMessage

from tests.server.api.metrics_reader import scrape
from twinbus.client import sync
from twinbus.client.management import TopicDescription

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.server.api.api_client import ApiClient
    from tests.support.server_process import ServerProcess

DOCS = Path(__file__).parents[3] / "docs"
ONLY_WITH_PAIRS = {"twinbus_paired_clients", "twinbus_unprotected_clients", "twinbus_failed_over_entities"}
"""Metrics that a namespace has only if paired clients report to it."""


def expressions(panel: object) -> Iterator[str]:
    """Yield all PromQL expressions and queries in a dashboard."""
    if isinstance(panel, dict):
        for name, value in panel.items():
            if name in ("expr", "query") and isinstance(value, str) and value != "prometheus":
                yield value
            yield from expressions(value)
    elif isinstance(panel, list):
        for value in panel:
            yield from expressions(value)


def names_in(text: str) -> set[str]:
    return set(re.findall(r"\btwinbus_[a-z_]+", text))


def scraped_names(api: ApiClient, sdk: ServiceBusClient, queue: str) -> set[str]:
    with sdk.get_queue_sender(queue) as sender:
        sender.send_messages(ServiceBusMessage("hello"))
    return {str(key[0]) for key in scrape(api).samples} | ONLY_WITH_PAIRS


def test_prometheus_can_read_the_page(server: ServerProcess, api: ApiClient, queue: str) -> None:
    server.create_entity(f"{queue}-topic", "TopicDescription")
    server.create_entity(f"{queue}-topic/Subscriptions/s", "SubscriptionDescription")
    response = api.request("GET", "/metrics")
    metrics = scrape(api)
    assert response.text.endswith("\n")
    assert metrics.value("twinbus_worker_up", worker="0") == 1
    assert metrics.value("twinbus_store_available", store="3") == 1
    assert (metrics.value("twinbus_disk_free_bytes", store="0") or 0) > 0
    info = {"kind": "subscription", "status": "Active", "partitioned": "false"}
    assert metrics.value("twinbus_entity_info", entity=f"{queue}-topic/Subscriptions/s", **info) == 1
    assert metrics.value("twinbus_messages", entity=queue, state="active") == 0
    types = {family.name: family.type for family in metrics.families.values()}
    assert types["twinbus_enqueued_messages"] == "counter"  # the parser drops the suffix _total
    assert types["twinbus_messages"] == "gauge"


def test_the_page_has_the_content_type_of_the_format(server: ServerProcess) -> None:
    connection = http.client.HTTPConnection(server.host, server.http_port, timeout=20)
    connection.request("GET", "/metrics", headers={"Authorization": server.token("")})
    response = connection.getresponse()
    response.read()
    connection.close()
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"


def test_figures_of_clients_are_on_the_page(api: ApiClient, queue: str, sdk: ServiceBusClient) -> None:
    before = scrape(api)
    with sdk.get_queue_sender(queue) as sender, sdk.get_queue_receiver(queue) as receiver:
        sender.send_messages([ServiceBusMessage("one"), ServiceBusMessage("two")])
        (message,) = receiver.receive_messages(max_message_count=1, max_wait_time=10)
        receiver.complete_message(message)
        after = scrape(api)
    assert after.value("twinbus_senders", entity=queue) == 1
    assert after.value("twinbus_receivers", entity=queue) == 1
    oldest = after.value("twinbus_oldest_active_message_timestamp_seconds", entity=queue)
    assert oldest is not None
    assert message.enqueued_time_utc is not None
    assert 0 <= oldest - message.enqueued_time_utc.timestamp() < 10
    for operation, count in (("sends", 2), ("settlements", 1)):
        name = "twinbus_operations_total"
        assert after.total(name, operation=operation) - before.total(name, operation=operation) == count
    assert after.total("twinbus_connections") >= 1
    assert after.total("twinbus_opened_connections_total") > before.total("twinbus_opened_connections_total")


def test_changes_of_entities_are_on_the_next_page(server: ServerProcess, api: ApiClient, queue: str) -> None:
    def infos() -> list[str]:
        family = scrape(api).families.get("twinbus_entity_info")  # missing if there is no entity at all
        labels = [dict(sample.labels) for sample in family.samples] if family is not None else []
        return [one["status"] for one in labels if one["entity"] == queue]

    assert infos() == ["Active"]
    server.update_queue(queue, Status="SendDisabled")
    assert infos() == ["SendDisabled"]
    server.delete_queue(queue)
    assert infos() == []
    server.create_entity(queue, "QueueDescription")
    assert infos() == ["Active"]


def test_a_queue_called_metrics_can_be_managed(server: ServerProcess, api: ApiClient) -> None:
    server.create_entity("metrics", "QueueDescription")
    assert "QueueDescription" in server.request("GET", "metrics", expected=200)  # with an api-version
    assert scrape(api).value("twinbus_messages", entity="metrics", state="active") == 0
    server.request("DELETE", "metrics", expected=200)


def test_the_dashboard_uses_existing_metrics_only(api: ApiClient, queue: str, sdk: ServiceBusClient) -> None:
    dashboard: dict[str, Any] = json.loads((DOCS / "grafana" / "twinbus.json").read_text())
    used = [(expression, names_in(expression)) for expression in expressions(dashboard)]
    existing = scraped_names(api, sdk, queue)
    assert len(used) > 10
    assert [expression for expression, names in used if not names or names - existing] == []


def test_the_page_lists_every_metric(api: ApiClient, queue: str, sdk: ServiceBusClient) -> None:
    page = (DOCS / "metrics.md").read_text()
    documented = set(re.findall(r"^\| `(twinbus_[a-z_]+)", page, re.MULTILINE))
    assert documented == scraped_names(api, sdk, queue)
    assert names_in(page) <= documented


def test_a_subscription_follows_the_size_of_its_topic(server: ServerProcess, api: ApiClient, name: str) -> None:
    with sync.NamespaceManager.from_connection_string(
        server.admin_connection_string, ca_file=server.ca_file
    ) as manager:
        manager.create_topic(name, TopicDescription(max_size_mb=1024))
        manager.create_subscription(name, "all")
        path = f"{name}/Subscriptions/all"

        def max_sizes() -> set[float | None]:
            listed = api.read(f"entities?prefix={path}")["entities"][0]["max_size_bytes"]
            return {listed, scrape(api).value("twinbus_max_size_bytes", entity=path)}

        assert max_sizes() == {1024 * 1_048_576}
        manager.update_topic(name, TopicDescription(max_size_mb=2048))
        assert max_sizes() == {2048 * 1_048_576}
