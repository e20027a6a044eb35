"""Every call that the SDK's administration clients have is made by some test, which this table names."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest
from azure.servicebus.aio.management import ServiceBusAdministrationClient as AioClient
from azure.servicebus.management import ServiceBusAdministrationClient as SyncClient

FOLDER = Path(__file__).parent
MADE_BY = {
    "from_connection_string": ("admin.py", "__init__"),
    "close": ("admin.py", "end"),
    "create_queue": ("test_queues.py", "test_every_option_comes_back"),
    "get_queue": ("test_queues.py", "test_a_queue_that_is_made_is_found_and_listed_until_it_is_deleted"),
    "list_queues": ("test_queues.py", "test_a_queue_that_is_made_is_found_and_listed_until_it_is_deleted"),
    "delete_queue": ("test_queues.py", "test_a_queue_that_is_made_is_found_and_listed_until_it_is_deleted"),
    "update_queue": ("test_updates.py", "test_a_queue_is_changed"),
    "get_queue_runtime_properties": ("test_runtime_properties.py", "test_the_counts_of_a_queue"),
    "list_queues_runtime_properties": ("test_runtime_properties.py", "test_the_counts_of_a_queue"),
    "create_topic": ("test_topics.py", "test_every_option_comes_back"),
    "get_topic": ("test_topics.py", "test_a_topic_that_is_made_is_found_and_listed_until_it_is_deleted"),
    "list_topics": ("test_topics.py", "test_a_topic_that_is_made_is_found_and_listed_until_it_is_deleted"),
    "delete_topic": ("test_topics.py", "test_a_deleted_topic_takes_its_subscriptions_along"),
    "update_topic": ("test_updates.py", "test_a_topic_is_changed"),
    "get_topic_runtime_properties": (
        "test_runtime_properties.py",
        "test_the_counts_of_a_topic_and_its_subscriptions",
    ),
    "list_topics_runtime_properties": (
        "test_runtime_properties.py",
        "test_the_counts_of_a_topic_and_its_subscriptions",
    ),
    "create_subscription": ("test_subscriptions.py", "test_every_option_comes_back"),
    "get_subscription": ("test_subscriptions.py", "test_every_option_comes_back"),
    "list_subscriptions": ("test_subscriptions.py", "test_topics_with_slashes_have_subscriptions_too"),
    "delete_subscription": (
        "test_subscriptions.py",
        "test_a_subscription_that_is_made_is_found_and_listed_until_it_is_deleted",
    ),
    "update_subscription": ("test_updates.py", "test_a_subscription_is_changed"),
    "get_subscription_runtime_properties": (
        "test_runtime_properties.py",
        "test_the_counts_of_a_topic_and_its_subscriptions",
    ),
    "list_subscriptions_runtime_properties": (
        "test_runtime_properties.py",
        "test_the_counts_of_a_topic_and_its_subscriptions",
    ),
    "create_rule": ("test_rules.py", "test_a_filter_in_sql_comes_back_with_its_parameters"),
    "get_rule": ("test_rules.py", "test_a_filter_by_correlation_comes_back_with_its_properties"),
    "list_rules": ("test_rules.py", "test_rules_are_listed_in_the_order_of_their_making"),
    "update_rule": ("test_rules.py", "test_an_update_puts_another_rule_in_its_place"),
    "delete_rule": ("test_rules.py", "test_rules_are_listed_in_the_order_of_their_making"),
    "get_namespace_properties": ("test_namespace.py", "test_the_namespace_tells_its_name_and_its_age"),
}


@pytest.mark.parametrize("client", [SyncClient, AioClient], ids=["sync", "aio"])
def test_the_table_has_every_call(client: type) -> None:
    found = {name for name, _ in inspect.getmembers(client, callable) if not name.startswith("_")}
    assert found == set(MADE_BY)


@pytest.mark.parametrize("method", MADE_BY)
def test_the_call_is_made_where_the_table_says(method: str) -> None:
    file, function = MADE_BY[method]
    tree = ast.parse((FOLDER / file).read_text())
    [found] = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == function]
    called = {call.func.attr for call in ast.walk(found) if isinstance(call, ast.Call) and hasattr(call.func, "attr")}
    assert method in called
