"""Requests that a real server refuses raise the exact error class."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from twinbus.client.errors import EntityNotFound, ObjectClosed
from twinbus.client.management import QueueDescription, RuleDescription
from twinbus.model import errors

if TYPE_CHECKING:
    from tests.client.management.manager_factory import ManagerFactory


@pytest.mark.parametrize(
    ("method", "rest"),
    [
        ("get_queue", []),
        ("get_queue_runtime", []),
        ("delete_queue", []),
        ("get_topic", []),
        ("get_topic_runtime", []),
        ("delete_topic", []),
        ("create_subscription", ["all"]),
        ("get_subscription", ["all"]),
        ("get_subscription_runtime", ["all"]),
        ("delete_subscription", ["all"]),
        ("create_rule", ["all", RuleDescription(name="one")]),
        ("get_rule", ["all", "one"]),
        ("delete_rule", ["all", "one"]),
    ],
)
async def test_calls_for_a_missing_entity_raise_entity_not_found(
    connect_manager: ManagerFactory, name: str, method: str, rest: list[object]
) -> None:
    async with connect_manager() as manager:
        with pytest.raises(errors.EntityNotFound, match=f"'{name}") as caught:
            await getattr(manager, method)(name, *rest)
    assert type(caught.value) is EntityNotFound
    assert "TrackingId" in str(caught.value), "needed to search the server's log"


async def test_creating_an_existing_entity_raises_entity_already_exists(
    connect_manager: ManagerFactory, name: str
) -> None:
    async with connect_manager() as manager:
        await manager.create_topic(name)
        await manager.create_subscription(name, "all")
        for call in (manager.create_topic(name), manager.create_queue(name), manager.create_subscription(name, "all")):
            with pytest.raises(errors.EntityAlreadyExists) as caught:
                await call
            assert type(caught.value) is errors.EntityAlreadyExists
            assert not caught.value.is_retriable


async def test_an_invalid_description_raises_invalid_argument(connect_manager: ManagerFactory, name: str) -> None:
    async with connect_manager() as manager:
        with pytest.raises(errors.InvalidArgument, match="is not a valid path") as caught:
            await manager.create_queue(f"{name} with blanks?#")
        assert type(caught.value) is errors.InvalidArgument
        with pytest.raises(errors.InvalidArgument):
            await manager.create_queue(name, QueueDescription(forward_to=name))


async def test_a_wrong_key_raises_unauthorized_and_is_not_printed(connect_manager: ManagerFactory, name: str) -> None:
    async with connect_manager(connect_manager.connection_string(key="d3Jvbmc=")) as manager:
        for call in (manager.get_queue(name), manager.create_queue(name), manager.queue_exists(name)):
            with pytest.raises(errors.Unauthorized, match="the signature does not match") as caught:
                await call
            assert type(caught.value) is errors.Unauthorized
    async with connect_manager(connect_manager.connection_string(key_name="nobody")) as manager:
        with pytest.raises(errors.Unauthorized, match="the signature does not match"):
            await anext(manager.get_queues())
    assert "d3Jvbmc=" not in repr(manager)


@pytest.mark.parametrize("path", ["", "/", "..", "a/../b", "./a", "news/Subscriptions/all", "a/$management", "$cbs"])
async def test_an_invalid_path_is_refused(connect_manager: ManagerFactory, path: str) -> None:
    async with connect_manager() as manager:
        for call in (manager.get_queue(path), manager.create_topic(path), manager.delete_queue(path)):
            with pytest.raises(errors.InvalidArgument, match="is not the path of a queue or topic"):
                await call


@pytest.mark.parametrize("part", ["", "..", ".", "all/rules/one", "/"])
async def test_the_name_of_a_subscription_or_rule_cannot_address_another_entity(
    connect_manager: ManagerFactory, name: str, part: str
) -> None:
    async with connect_manager() as manager:
        await manager.create_topic(name)
        with pytest.raises(errors.InvalidArgument, match="is not a valid name of a subscription"):
            await manager.delete_subscription(name, part)
        with pytest.raises(errors.InvalidArgument, match="is not a valid name of a rule"):
            await manager.delete_rule(name, "all", part)
        assert await manager.topic_exists(name)


async def test_a_closed_manager_raises_object_closed(connect_manager: ManagerFactory, name: str) -> None:
    manager = connect_manager()
    await manager.close()
    await manager.close()
    with pytest.raises(ObjectClosed):
        await manager.create_queue(name)
    assert "closed" in repr(manager)
