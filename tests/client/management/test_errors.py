"""What a real server refuses is the error that it means, by its exact class."""

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
async def test_what_is_not_there_is_not_found(
    connect_manager: ManagerFactory, name: str, method: str, rest: list[object]
) -> None:
    async with connect_manager() as manager:
        with pytest.raises(errors.EntityNotFound, match=f"'{name}") as caught:
            await getattr(manager, method)(name, *rest)
    assert type(caught.value) is EntityNotFound
    assert "TrackingId" in str(caught.value), "by which the server's log can be asked"


async def test_what_is_there_is_not_made_again(connect_manager: ManagerFactory, name: str) -> None:
    async with connect_manager() as manager:
        await manager.create_topic(name)
        await manager.create_subscription(name, "all")
        for made in (manager.create_topic(name), manager.create_queue(name), manager.create_subscription(name, "all")):
            with pytest.raises(errors.EntityAlreadyExists) as caught:
                await made
            assert type(caught.value) is errors.EntityAlreadyExists
            assert not caught.value.is_retriable


async def test_what_the_server_cannot_do_is_an_invalid_argument(connect_manager: ManagerFactory, name: str) -> None:
    async with connect_manager() as manager:
        with pytest.raises(errors.InvalidArgument, match="is no path") as caught:
            await manager.create_queue(f"{name} with blanks?#")
        assert type(caught.value) is errors.InvalidArgument
        with pytest.raises(errors.InvalidArgument):
            await manager.create_queue(name, QueueDescription(forward_to=name))


async def test_a_wrong_key_is_told_and_not_shown(connect_manager: ManagerFactory, name: str) -> None:
    async with connect_manager(connect_manager.connection_string(key="d3Jvbmc=")) as manager:
        for asked in (manager.get_queue(name), manager.create_queue(name), manager.queue_exists(name)):
            with pytest.raises(errors.Unauthorized, match="the signature does not match") as caught:
                await asked
            assert type(caught.value) is errors.Unauthorized
    async with connect_manager(connect_manager.connection_string(key_name="nobody")) as manager:
        with pytest.raises(errors.Unauthorized, match="the signature does not match"):
            await anext(manager.get_queues())
    assert "d3Jvbmc=" not in repr(manager)


@pytest.mark.parametrize("path", ["", "/", "..", "a/../b", "./a", "news/Subscriptions/all", "a/$management", "$cbs"])
async def test_a_path_that_is_none_is_not_asked_for(connect_manager: ManagerFactory, path: str) -> None:
    async with connect_manager() as manager:
        for asked in (manager.get_queue(path), manager.create_topic(path), manager.delete_queue(path)):
            with pytest.raises(errors.InvalidArgument, match="is no path of a queue or topic"):
                await asked


@pytest.mark.parametrize("part", ["", "..", ".", "all/rules/one", "/"])
async def test_the_name_of_a_subscription_or_rule_leads_nowhere_else(
    connect_manager: ManagerFactory, name: str, part: str
) -> None:
    async with connect_manager() as manager:
        await manager.create_topic(name)
        with pytest.raises(errors.InvalidArgument, match="is no name of a subscription"):
            await manager.delete_subscription(name, part)
        with pytest.raises(errors.InvalidArgument, match="is no name of a rule"):
            await manager.delete_rule(name, "all", part)
        assert await manager.topic_exists(name)


async def test_a_closed_manager_says_so(connect_manager: ManagerFactory, name: str) -> None:
    manager = connect_manager()
    await manager.close()
    await manager.close()
    with pytest.raises(ObjectClosed):
        await manager.create_queue(name)
    assert "closed" in repr(manager)
