"""Creating, reading, updating and deleting rules of a subscription."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from twinbus.client.errors import EntityNotFound
from twinbus.client.management import CorrelationFilter, FalseFilter, RuleDescription, SqlAction, SqlFilter, Value
from twinbus.model.errors import EntityAlreadyExists, InvalidArgument

if TYPE_CHECKING:
    from tests.client.management.manager_factory import ManagerFactory

RULES = [
    RuleDescription(name="none", filter=FalseFilter()),
    RuleDescription(
        name="sql",
        filter=SqlFilter(expression="priority > @least", parameters={"@least": Value("int", "5")}),
        action=SqlAction(expression="SET seen = @by", parameters={"@by": Value("string", "<me>")}),
    ),
    RuleDescription(
        name="equal",
        filter=CorrelationFilter(
            correlation_id="1",
            message_id="2",
            to="3",
            reply_to="4",
            label="5",
            session_id="6",
            reply_to_session_id="7",
            content_type="8",
            properties={"colour": Value("string", "blue"), "size": Value("long", "9"), "big": Value("boolean", "true")},
        ),
    ),
]


async def test_a_rule_has_the_filter_and_action_it_was_created_with(connect_manager: ManagerFactory, name: str) -> None:
    async with connect_manager() as manager:
        await manager.create_topic(name)
        await manager.create_subscription(name, "all")
        for wanted in RULES:
            created = await manager.create_rule(name, "all", wanted)
            assert msgspec.structs.replace(created, created_ms=0) == wanted
            assert await manager.get_rule(name, "all", wanted.name) == created
        listed = [rule.name async for rule in manager.get_rules(name, "all")]
    assert listed == ["$Default", "none", "sql", "equal"]


async def test_update_rule_replaces_the_filter(connect_manager: ManagerFactory, name: str) -> None:
    async with connect_manager() as manager:
        await manager.create_topic(name)
        await manager.create_subscription(name, "all")
        changed = RuleDescription(name="$Default", filter=SqlFilter(expression="priority > 5"))
        await manager.update_rule(name, "all", changed)
        assert (await manager.get_rule(name, "all", "$Default")).filter == changed.filter


async def test_a_rule_exists_until_it_is_deleted(connect_manager: ManagerFactory, name: str) -> None:
    async with connect_manager() as manager:
        await manager.create_topic(name)
        await manager.create_subscription(name, "all")
        assert await manager.rule_exists(name, "all", "$Default")
        await manager.delete_rule(name, "all", "$Default")
        assert not await manager.rule_exists(name, "all", "$Default")
        with pytest.raises(EntityNotFound):
            await manager.delete_rule(name, "all", "$Default")


async def test_existing_missing_and_invalid_rules_are_refused(connect_manager: ManagerFactory, name: str) -> None:
    async with connect_manager() as manager:
        await manager.create_topic(name)
        await manager.create_subscription(name, "all")
        with pytest.raises(EntityAlreadyExists):
            await manager.create_rule(name, "all", RuleDescription(name="$Default"))
        with pytest.raises(EntityNotFound):
            await manager.update_rule(name, "all", RuleDescription(name="other"))
        with pytest.raises(InvalidArgument, match="line 1"):
            await manager.create_rule(
                name, "all", RuleDescription(name="broken", filter=SqlFilter(expression="priority >"))
            )
