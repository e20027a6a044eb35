"""Entities that are exported to a file and imported from it are the same; what cannot be imported is refused."""

from __future__ import annotations

import dataclasses
import json
import tomllib
import uuid
from typing import TYPE_CHECKING

import pytest

from twinbus.client import sync
from twinbus.client.management import (
    AuthorizationRule,
    CorrelationFilter,
    FalseFilter,
    ImportAction,
    InvalidConfig,
    NamespaceManager,
    Plan,
    QueueDescription,
    RuleDescription,
    SqlAction,
    SqlFilter,
    SubscriptionDescription,
    TopicDescription,
    TrueFilter,
    Value,
    read_plan,
    write_emulator,
    write_toml,
)
from twinbus.model.errors import InvalidArgument

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from tests.support.server_process import ServerProcess

VALUES = {
    "text": Value("string", 'quote " and \\ and é'),
    "number": Value("int", "-5"),
    "small long": Value("long", "5"),
    "large long": Value("long", str(2**40)),
    "double": Value("double", "1.5"),
    "whole double": Value("double", "1"),
    "yes": Value("boolean", "true"),
    "time": Value("dateTime", "2026-11-17T08:00:00+00:00"),
    "zulu": Value("dateTime", "2026-11-17T08:00:00Z"),
    "duration": Value("duration", "PT5S"),
    "guid": Value("guid", str(uuid.UUID(int=5))),
    "binary": Value("binary", "AAEC"),
}
PLAIN_RULES = (
    RuleDescription(name="all", filter=TrueFilter()),
    RuleDescription(name="sql", filter=SqlFilter(expression="a > 'x\"'"), action=SqlAction(expression="SET b = 1")),
    RuleDescription(name="equal", filter=CorrelationFilter(label="l", properties={"number": Value("int", "5")})),
)
RULES = (
    *PLAIN_RULES,
    RuleDescription(name="none", filter=FalseFilter()),
    RuleDescription(name="values", filter=CorrelationFilter(properties=VALUES)),
    RuleDescription(
        name="parameters",
        filter=SqlFilter(expression="a = @a", parameters={"@a": Value("guid", str(uuid.UUID(int=7)))}),
        action=SqlAction(expression="SET b = @b", parameters={"@b": Value("string", "x")}),
    ),
)


def manager_of(server: ServerProcess) -> AbstractAsyncContextManager[NamespaceManager]:
    return NamespaceManager.from_connection_string(server.admin_connection_string, ca_file=server.ca_file)


async def create_entities(manager: NamespaceManager, prefix: str, rules: tuple[RuleDescription, ...]) -> None:
    await manager.create_topic(
        f"{prefix}/topic", TopicDescription(requires_duplicate_detection=True, user_metadata='über\n"alles"')
    )
    key = AuthorizationRule.new("sender", ("Send",))
    await manager.create_queue(
        f"{prefix}/queue",
        QueueDescription(
            enable_partitioning=True,
            max_size_mb=2048,
            lock_duration_ms=30_500,
            default_time_to_live_ms=86_400_000,
            requires_session=True,
            status="SendDisabled",
            forward_dead_lettered_to=f"{prefix}/topic",
            authorization_rules=(key,),
        ),
    )
    await manager.create_subscription(f"{prefix}/topic", "all", SubscriptionDescription(max_delivery_count=3), rules[0])
    for rule in rules[1:]:
        await manager.create_rule(f"{prefix}/topic", "all", rule)
    await manager.create_subscription(f"{prefix}/topic", "silent")
    await manager.delete_rule(f"{prefix}/topic", "silent", "$Default")


async def delete_entities(manager: NamespaceManager, prefix: str) -> None:
    for path in (f"{prefix}/queue", f"{prefix}/topic"):
        await manager.delete_queue(path)


def comparable(plan: Plan) -> object:
    """All entities without dates of creation; a filter that matches nothing is SQL in a file."""

    def rule_of(rule: RuleDescription) -> object:
        found = SqlFilter(expression="1=0") if rule.filter == FalseFilter() else rule.filter
        return rule.name, found, rule.action

    def value_of(name: str, value: object) -> object:
        if name != "authorization_rules":
            return value
        return [dataclasses.replace(rule, created_ms=0, modified_ms=0) for rule in value]  # type: ignore[attr-defined]

    return [
        (
            entity.path,
            entity.description_type,
            {name: value_of(name, value) for name, value in entity.properties.values.items()},
            sorted(map(str, map(rule_of, entity.rules))),
        )
        for entity in plan.entities
    ]


async def test_entities_survive_a_round_trip_through_toml(server: ServerProcess, name: str, tmp_path: Path) -> None:
    file = tmp_path / "entities.toml"
    async with manager_of(server) as manager:
        await create_entities(manager, name, RULES)
        before = await manager.export_entities(name, with_keys=True)
        assert len(before.entities) == 4
        file.touch(mode=0o600)
        file.write_text(write_toml(before, "contoso"))
        await delete_entities(manager, name)
        results = await manager.import_entities(read_plan(file))
        assert {change.action for change in results} == {ImportAction.CREATE}, results
        assert comparable(await manager.export_entities(name, with_keys=True)) == comparable(before)
        again = await manager.import_entities(read_plan(file))
        assert {change.action for change in again} == {ImportAction.KEEP}, again
        await delete_entities(manager, name)


async def test_entities_survive_a_round_trip_through_the_emulators_file(
    server: ServerProcess, name: str, tmp_path: Path
) -> None:
    file = tmp_path / "Config.json"
    async with manager_of(server) as manager:
        await create_entities(manager, name, PLAIN_RULES[1:])
        before = await manager.export_entities(name)
        text, omitted = write_emulator(before, "contoso")
        assert sorted(omitted) == sorted(
            [
                f"queue {name}/queue: enable_partitioning",
                f"queue {name}/queue: max_size_mb",
                f"queue {name}/queue: status",
                f"topic {name}/topic: user_metadata",
            ]
        )
        file.write_text(text)
        await delete_entities(manager, name)
        results = await manager.import_entities(read_plan(file))
        assert {change.action for change in results} == {ImportAction.CREATE}, results
        after = await manager.export_entities(name)
        lost = [line.rpartition(" ")[2] for line in omitted]
        for old, new in zip(before.entities, after.entities, strict=True):
            assert {key: value for key, value in old.properties.values.items() if key not in lost} == {
                key: value for key, value in new.properties.values.items() if key not in lost
            }
        assert comparable(Plan(before.entities[2:])) == comparable(Plan(after.entities[2:]))
        await delete_entities(manager, name)


async def test_a_rule_that_the_emulators_file_cannot_express_is_refused(server: ServerProcess, name: str) -> None:
    async with manager_of(server) as manager:
        for rule, reason in ((RULES[4], "has a value of type long"), (RULES[5], "has parameters")):
            await manager.create_topic(name)
            await manager.create_subscription(name, "all", None, rule)
            with pytest.raises(InvalidArgument, match=f"rule '{rule.name}' of '{name}/Subscriptions/all' {reason}"):
                write_emulator(await manager.export_entities(name), "contoso")
            await manager.delete_topic(name)


async def test_the_keys_of_entities_are_not_exported_unless_asked_for(server: ServerProcess, name: str) -> None:
    async with manager_of(server) as manager:
        key = AuthorizationRule.new("sender", ("Send",))
        await manager.create_queue(name, QueueDescription(authorization_rules=(key,)))
        without = write_toml(await manager.export_entities(name), "contoso")
        assert "authorization_rules" not in tomllib.loads(without)["queues"][0]
        assert key.primary_key not in without
        assert key.primary_key in write_toml(await manager.export_entities(name, with_keys=True), "contoso")
        assert key.primary_key not in repr(await manager.export_entities(name, with_keys=True))


def write_plan(file: Path, *queues: str) -> Plan:
    file.write_text("".join(f"[[queues]]\n{queue}\n" for queue in queues))
    return read_plan(file)


def test_an_import_reports_each_entity_and_its_differences(server: ServerProcess, name: str, tmp_path: Path) -> None:
    """The blocking manager has the same operations."""
    manager = sync.NamespaceManager.from_connection_string(server.admin_connection_string, ca_file=server.ca_file)
    queues = [f'name = "{name}{letter}"' for letter in "abcd"]
    manager.import_entities(write_plan(tmp_path / "1.toml", *queues[:3]))
    plan = write_plan(
        tmp_path / "2.toml",
        queues[0],
        f'{queues[1]}\nlock_duration = "PT30S"',
        f"{queues[2]}\nrequires_session = true",
        f'{queues[3]}\nforward_to = "{name}/missing"',
    )
    planned = manager.plan_import(plan)
    assert [change.action.value for change in planned] == ["unchanged", "updated", "refused", "created"]
    assert planned[1].differences == ("lock_duration: PT1M -> PT30S",)
    assert manager.get_queue(f"{name}b").lock_duration_ms == 60_000
    seen: list[str] = []
    done = manager.import_entities(plan, on_change=lambda change: seen.append(change.path))
    assert seen == [f"{name}{letter}" for letter in "abcd"]
    assert [change.action.value for change in done] == ["unchanged", "updated", "refused", "refused"]
    assert "cannot be changed after creation" in (done[2].reason or "")
    assert f"{name}/missing" in (done[3].reason or "")
    assert manager.get_queue(f"{name}b").lock_duration_ms == 30_000
    manager.close()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("[[queue]]\nname = 'a'", "queue: unknown key: did you mean queues?"),
        ("[[queues]]\nname = 'a'\nlock_time = 'PT5S'", "queues[0].lock_time: unknown key: did you mean lock_duration?"),
        ("[[queues]]\nname = 'a'\n[[queues]]\nname = 'A'", "'A' is already the name at queues[0].name"),
    ],
)
def test_an_invalid_file_is_refused_at_the_wrong_key(content: str, reason: str, tmp_path: Path) -> None:
    file = tmp_path / "entities.toml"
    file.write_text(content)
    with pytest.raises(InvalidConfig) as caught:
        read_plan(file)
    assert reason in str(caught.value)


def test_the_settings_of_a_server_in_the_file_are_ignored(tmp_path: Path) -> None:
    file = tmp_path / "entities.toml"
    file.write_text("name = 'x'\nplaintext = []\n[limits]\nmax_locks = 1\n[[keys]]\nname = 'a'\n[[queues]]\nname = 'q'")
    assert [entity.path for entity in read_plan(file).entities] == ["q"]


def test_the_emulators_file_has_the_form_that_microsoft_ships() -> None:
    document = json.loads(write_emulator(Plan(()), "contoso")[0])
    assert document == {
        "UserConfig": {"Namespaces": [{"Name": "contoso", "Queues": [], "Topics": []}], "Logging": {"Type": "File"}}
    }
