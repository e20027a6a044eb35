"""Authorization rules of queues and topics, and the rights of their keys."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from twinbus.client.management import AuthorizationRule, QueueDescription, TopicDescription
from twinbus.model.errors import Unauthorized

if TYPE_CHECKING:
    from tests.client.management.manager_factory import ManagerFactory

SEND = AuthorizationRule.new("sender", ("Send",))
MANAGE = AuthorizationRule.new("owner", ("Manage", "Send", "Listen"))


async def test_authorization_rules_are_stored_as_created(connect_manager: ManagerFactory, name: str) -> None:
    async with connect_manager() as manager:
        queue = await manager.create_queue(name, QueueDescription(authorization_rules=(SEND, MANAGE)))
        topic = await manager.create_topic(f"{name}-topic", TopicDescription(authorization_rules=(SEND,)))
    for shown, wanted in zip(queue.authorization_rules, (SEND, MANAGE), strict=True):
        assert replace(shown, created_ms=0, modified_ms=0) == wanted
        assert shown.created_ms == shown.modified_ms > 1_600_000_000_000
    assert [rule.primary_key for rule in topic.authorization_rules] == [SEND.primary_key]
    assert SEND.primary_key not in repr(queue)


async def test_a_key_of_an_entity_can_manage_that_entity_only(connect_manager: ManagerFactory, name: str) -> None:
    async with connect_manager() as manager:
        await manager.create_queue(name, QueueDescription(authorization_rules=(SEND, MANAGE)))
        await manager.create_queue(f"{name}-other")
    text = connect_manager.connection_string(key=MANAGE.primary_key, key_name="owner") + f";EntityPath={name}"
    async with connect_manager(text) as owner:
        description = await owner.get_queue(name)
        await owner.update_queue(name, replace(description, max_delivery_count=2))
        assert (await owner.get_queue(name)).max_delivery_count == 2
        with pytest.raises(Unauthorized):
            await owner.get_queue(f"{name}-other")
        with pytest.raises(Unauthorized):
            await anext(owner.get_queues())


async def test_a_key_with_the_send_right_cannot_manage(connect_manager: ManagerFactory, name: str) -> None:
    async with connect_manager() as manager:
        await manager.create_queue(name, QueueDescription(authorization_rules=(SEND,)))
    async with connect_manager(
        connect_manager.connection_string(key=SEND.primary_key, key_name="sender") + f";EntityPath={name}"
    ) as sender:
        with pytest.raises(Unauthorized):
            await sender.get_queue(name)
