"""Coverage of the SDK's administration clients: a table names a test for every call."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest
from azure.servicebus.aio.management import ServiceBusAdministrationClient as AioClient
from azure.servicebus.management import ServiceBusAdministrationClient as SyncClient

FOLDER = Path(__file__).parent
TEST_OF_CALL = {
    "from_connection_string": ("admin.py", "__init__"),
    "close": ("admin.py", "end"),
    "create_queue": ("test_queues.py", "test_every_option_is_stored"),
    "get_queue": ("test_queues.py", "test_a_created_queue_is_found_and_listed_until_it_is_deleted"),
    "list_queues": ("test_queues.py", "test_a_created_queue_is_found_and_listed_until_it_is_deleted"),
    "delete_queue": ("test_queues.py", "test_a_created_queue_is_found_and_listed_until_it_is_deleted"),
    "update_queue": ("test_updates.py", "test_an_update_changes_a_queue"),
    "get_queue_runtime_properties": ("test_runtime_properties.py", "test_a_queue_has_message_counts_size_and_times"),
    "list_queues_runtime_properties": ("test_runtime_properties.py", "test_a_queue_has_message_counts_size_and_times"),
    "create_topic": ("test_topics.py", "test_every_option_is_stored"),
    "get_topic": ("test_topics.py", "test_a_created_topic_is_found_and_listed_until_it_is_deleted"),
    "list_topics": ("test_topics.py", "test_a_created_topic_is_found_and_listed_until_it_is_deleted"),
    "delete_topic": ("test_topics.py", "test_deleting_a_topic_deletes_its_subscriptions"),
    "update_topic": ("test_updates.py", "test_an_update_changes_a_topic"),
    "get_topic_runtime_properties": (
        "test_runtime_properties.py",
        "test_a_topic_and_its_subscriptions_have_counts_sizes_and_times",
    ),
    "list_topics_runtime_properties": (
        "test_runtime_properties.py",
        "test_a_topic_and_its_subscriptions_have_counts_sizes_and_times",
    ),
    "create_subscription": ("test_subscriptions.py", "test_every_option_is_stored"),
    "get_subscription": ("test_subscriptions.py", "test_every_option_is_stored"),
    "list_subscriptions": ("test_subscriptions.py", "test_topics_with_slashes_in_their_name_have_subscriptions"),
    "delete_subscription": (
        "test_subscriptions.py",
        "test_a_created_subscription_is_found_and_listed_until_it_is_deleted",
    ),
    "update_subscription": ("test_updates.py", "test_an_update_changes_a_subscription"),
    "get_subscription_runtime_properties": (
        "test_runtime_properties.py",
        "test_a_topic_and_its_subscriptions_have_counts_sizes_and_times",
    ),
    "list_subscriptions_runtime_properties": (
        "test_runtime_properties.py",
        "test_a_topic_and_its_subscriptions_have_counts_sizes_and_times",
    ),
    "create_rule": ("test_rules.py", "test_a_sql_filter_is_returned_with_its_parameters"),
    "get_rule": ("test_rules.py", "test_a_correlation_filter_is_returned_with_its_properties"),
    "list_rules": ("test_rules.py", "test_rules_are_listed_in_the_order_of_their_creation"),
    "update_rule": ("test_rules.py", "test_an_update_replaces_the_filter_and_the_action"),
    "delete_rule": ("test_rules.py", "test_rules_are_listed_in_the_order_of_their_creation"),
    "get_namespace_properties": ("test_namespace.py", "test_namespace_properties_have_the_name_and_the_creation_time"),
}


@pytest.mark.parametrize("client", [SyncClient, AioClient], ids=["sync", "aio"])
def test_the_table_has_every_call(client: type) -> None:
    methods = {name for name, _ in inspect.getmembers(client, callable) if not name.startswith("_")}
    assert methods == set(TEST_OF_CALL)


@pytest.mark.parametrize("method", TEST_OF_CALL)
def test_the_named_test_makes_the_call(method: str) -> None:
    file, function = TEST_OF_CALL[method]
    tree = ast.parse((FOLDER / file).read_text())
    [definition] = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == function]
    called = {
        call.func.attr for call in ast.walk(definition) if isinstance(call, ast.Call) and hasattr(call.func, "attr")
    }
    assert method in called
