"""A server that starts with a configuration file creates or updates the entities of the file, and no others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.server.config.applied_config import apply_config, emulator_config
from twinbus.model.description import partitioned_size_mb
from twinbus.model.queue import QueueDescription
from twinbus.model.rule import DEFAULT_RULE, CorrelationFilter, RuleDescription, SqlAction, SqlFilter, Value
from twinbus.model.topic import TopicDescription
from twinbus.server.config.settings import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path

    from twinbus.server.catalogue.local_catalogue import LocalCatalogue

FILE = "Config.json"
FIRST = "UserConfig.Namespaces[0].Queues[0]"


def queue(name: str = "orders", **properties: object) -> dict[str, Any]:
    return {"Name": name, "Properties": properties}


def topic(*subscriptions: object) -> dict[str, Any]:
    return {"Name": "events", "Subscriptions": [*subscriptions]}


def sql(name: str, expression: str, action: str | None = None) -> dict[str, Any]:
    properties: dict[str, Any] = {"FilterType": "Sql", "SqlFilter": {"SqlExpression": expression}}
    if action is not None:
        properties["Action"] = {"SqlExpression": action}
    return {"Name": name, "Properties": properties}


def expressions(rules: dict[str, RuleDescription]) -> dict[str, str]:
    return {name: rule.filter.expression for name, rule in rules.items() if isinstance(rule.filter, SqlFilter)}


async def test_missing_properties_have_the_defaults_of_service_bus(tmp_path: Path) -> None:
    entities = await apply_config(
        tmp_path, FILE, emulator_config(queues=[{"Name": "orders"}], topics=[{"Name": "events"}])
    )
    assert entities["orders"].description == QueueDescription()
    assert entities["events"].description == TopicDescription()


async def test_an_entity_may_forward_to_a_later_entity_of_the_file(tmp_path: Path) -> None:
    queues = [queue(ForwardTo="late"), queue("late", ForwardDeadLetteredMessagesTo="events")]
    subscription = {"Name": "all", "Properties": {"ForwardTo": "orders"}}
    entities = await apply_config(tmp_path, FILE, emulator_config(queues=queues, topics=[topic(subscription)]))
    assert entities["orders"].description.forward_to == "late"
    assert entities["late"].description.forward_dead_lettered_to == "events"
    assert entities["events/Subscriptions/all"].description.forward_to == "orders"


async def test_a_second_start_with_the_same_file_changes_nothing(tmp_path: Path) -> None:
    rules = [sql("one", "a = 1", "SET b = 2"), sql("two", "a = 2")]
    content = emulator_config(
        queues=[queue(ForwardTo="late", LockDuration="PT30S"), queue("late")],
        topics=[topic({"Name": "some", "Rules": rules}, {"Name": "all"})],
    )
    assert await apply_config(tmp_path, FILE, content) == await apply_config(tmp_path, FILE, content)


async def test_a_second_start_keeps_the_size_of_a_partitioned_queue(tmp_path: Path) -> None:
    content = '[[queues]]\nname = "orders"\nenable_partitioning = true\nmax_size_mb = 3072'
    first = await apply_config(tmp_path, "twinbus.toml", content)
    assert first == await apply_config(tmp_path, "twinbus.toml", content)
    larger = await apply_config(tmp_path, "twinbus.toml", content.replace("3072", "4096"))
    assert partitioned_size_mb(larger["orders"].description.max_size_mb) == 16 * 4096


async def test_a_changed_file_changes_only_the_properties_it_names(tmp_path: Path) -> None:
    async def create_by_hand(entities: LocalCatalogue) -> None:
        await entities.create_queue("by-hand", QueueDescription(max_size_mb=2048))

    before = await apply_config(
        tmp_path,
        FILE,
        emulator_config(queues=[queue(LockDuration="PT30S", MaxDeliveryCount=5), queue("gone")]),
        before_apply=create_by_hand,
    )
    after = await apply_config(
        tmp_path, FILE, emulator_config(queues=[queue("ORDERS", LockDuration="PT2M"), queue("new")])
    )
    assert after["orders"].description == QueueDescription(lock_duration_ms=120_000, max_delivery_count=5)
    assert after["new"].description == QueueDescription()
    assert {name: after[name] for name in ("gone", "by-hand")} == {name: before[name] for name in ("gone", "by-hand")}


async def test_an_empty_forward_to_ends_forwarding(tmp_path: Path) -> None:
    await apply_config(tmp_path, FILE, emulator_config(queues=[queue(ForwardTo="late"), queue("late")]))
    entities = await apply_config(tmp_path, FILE, emulator_config(queues=[queue(ForwardTo="")]))
    assert entities["orders"].description.forward_to is None


async def test_a_subscription_without_rules_has_the_default_rule(tmp_path: Path) -> None:
    entities = await apply_config(
        tmp_path, FILE, emulator_config(topics=[topic({"Name": "all"}, {"Name": "too", "Rules": []})])
    )
    assert (
        list(entities["events/Subscriptions/all"].rules)
        == list(entities["events/Subscriptions/too"].rules)
        == [DEFAULT_RULE]
    )


async def test_a_subscription_has_exactly_the_rules_of_the_file(tmp_path: Path) -> None:
    some = "events/Subscriptions/some"
    rules = [sql("one", "a = 1"), sql("two", "a = 2"), sql("three", "a = 3")]
    entities = await apply_config(tmp_path, FILE, emulator_config(topics=[topic({"Name": "some", "Rules": rules})]))
    assert expressions(entities[some].rules) == {"one": "a = 1", "two": "a = 2", "three": "a = 3"}
    others = [sql("TWO", "a = 22", "SET b = 1"), sql("three", "a = 3"), sql("four", "a = 4")]
    after = await apply_config(tmp_path, FILE, emulator_config(topics=[topic({"Name": "some", "Rules": others})]))
    assert expressions(after[some].rules) == {"two": "a = 22", "three": "a = 3", "four": "a = 4"}
    assert after[some].rules["two"].action == SqlAction(expression="SET b = 1")
    assert after[some].rules["three"] == entities[some].rules["three"]
    without_rules = await apply_config(tmp_path, FILE, emulator_config(topics=[topic({"Name": "some"})]))
    assert without_rules[some].rules == after[some].rules


async def test_values_of_a_correlation_filter_have_the_types_of_the_file(tmp_path: Path) -> None:
    values = {"text": "1", "int": 1, "long": 2**40, "double": 1.5, "flag": True}
    condition = {"FilterType": "Correlation", "CorrelationFilter": {"Label": "a", "Properties": values}}
    rule = {"Name": "values", "Properties": condition}
    entities = await apply_config(tmp_path, FILE, emulator_config(topics=[topic({"Name": "some", "Rules": [rule]})]))
    assert entities["events/Subscriptions/some"].rules["values"].filter == CorrelationFilter(
        label="a",
        properties={
            "text": Value("string", "1"),
            "int": Value("int", "1"),
            "long": Value("long", "1099511627776"),
            "double": Value("double", "1.5"),
            "flag": Value("boolean", "true"),
        },
    )


@pytest.mark.parametrize(
    ("before", "after", "line"),
    [
        (
            emulator_config(queues=[queue()]),
            emulator_config(queues=[queue(RequiresSession=True, LockDuration="PT5S")]),
            f"{FIRST}.Properties.RequiresSession: is false in the queue 'orders' and cannot be changed after creation",
        ),
        (
            emulator_config(queues=[queue(RequiresDuplicateDetection=True)]),
            emulator_config(queues=[queue(RequiresDuplicateDetection=False, LockDuration="PT5S")]),
            f"{FIRST}.Properties.RequiresDuplicateDetection: is true in the queue 'orders'",
        ),
        (
            emulator_config(queues=[queue("Events")]),
            emulator_config(topics=[topic()]),
            "UserConfig.Namespaces[0].Topics[0].Name: 'Events' already exists as a queue, not a topic: delete",
        ),
        (
            emulator_config(),
            emulator_config(queues=[queue(ForwardTo="nowhere")]),
            f"{FIRST}.Properties.ForwardTo: there is no queue or topic 'nowhere', neither in the file nor in the name",
        ),
        (
            emulator_config(),
            emulator_config(queues=[queue(ForwardDeadLetteredMessagesTo="nowhere")]),
            f"{FIRST}.Properties.ForwardDeadLetteredMessagesTo: there is no queue or topic 'nowhere'",
        ),
        (
            emulator_config(),
            emulator_config(queues=[queue(ForwardTo="Orders")]),
            f"{FIRST}.Properties.ForwardTo: 'Orders' would forward to itself",
        ),
        (
            emulator_config(topics=[topic({"Name": "all"})]),
            emulator_config(queues=[queue(ForwardTo="events/Subscriptions/all")]),
            f"{FIRST}.Properties.ForwardTo: 'events/Subscriptions/all' is a subscription: forward to its topic",
        ),
    ],
)
async def test_an_invalid_file_is_refused_before_any_entity_changes(
    tmp_path: Path, before: str, after: str, line: str
) -> None:
    entities = await apply_config(tmp_path, FILE, before)
    with pytest.raises(ConfigurationError) as caught:
        await apply_config(tmp_path, FILE, after)
    assert str(caught.value).startswith(f"{tmp_path / FILE}: {line}")
    assert await apply_config(tmp_path, FILE, emulator_config()) == entities


async def test_an_entity_may_forward_to_an_entity_that_exists_already(tmp_path: Path) -> None:
    await apply_config(tmp_path, FILE, emulator_config(queues=[queue("late")]))
    entities = await apply_config(tmp_path, FILE, emulator_config(queues=[queue(ForwardTo="late")]))
    assert entities["orders"].description.forward_to == "late"
