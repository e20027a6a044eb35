"""Listing entities over several pages."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.client.management.fake_service import atom_entry, atom_feed, http_response, run_fake_service
from twinbus.client.errors import EntityNotFound
from twinbus.client.management import FalseFilter, QueueDescription, RuleDescription, SubscriptionInfo

if TYPE_CHECKING:
    from tests.client.management.manager_factory import ManagerFactory

MANY = 103


async def test_queues_are_listed_over_several_pages(connect_manager: ManagerFactory, name: str) -> None:
    wanted = sorted(f"{name}-{number}" for number in range(MANY))
    async with connect_manager() as manager:
        await asyncio.gather(*[manager.create_queue(path, QueueDescription(max_delivery_count=4)) for path in wanted])
        queues = [queue async for queue in manager.get_queues(name.upper() + "-")]
        all_paths = [queue.path async for queue in manager.get_queues()]
    assert [queue.path for queue in queues] == wanted
    assert {queue.description.max_delivery_count for queue in queues} == {4}
    assert {queue.runtime.active_count for queue in queues} == {0}
    assert set(wanted) <= set(all_paths)
    assert len(all_paths) == len(set(all_paths))


async def test_topics_are_listed_over_several_pages(connect_manager: ManagerFactory, name: str) -> None:
    wanted = sorted(f"{name}-{number}" for number in range(MANY))
    async with connect_manager() as manager:
        await asyncio.gather(*[manager.create_topic(path) for path in wanted])
        assert [topic.path async for topic in manager.get_topics(f"{name}-")] == wanted
        assert wanted[0] not in [queue.path async for queue in manager.get_queues(name)]


async def test_subscriptions_and_rules_are_listed_over_several_pages(
    connect_manager: ManagerFactory, name: str
) -> None:
    names = sorted(f"one-{number}" for number in range(MANY))
    async with connect_manager() as manager:
        await manager.create_topic(name)
        await asyncio.gather(*[manager.create_subscription(name, each) for each in names])
        for each in names:
            await manager.create_rule(name, names[0], RuleDescription(name=each, filter=FalseFilter()))
        subscriptions = [each async for each in manager.get_subscriptions(name)]
        assert [each.name async for each in manager.get_subscriptions(name, "one-10")] == ["one-10", *names[3:6]]
        assert [rule.name async for rule in manager.get_rules(name, names[0])] == ["$Default", *names]
    assert [each.name for each in subscriptions] == names
    assert isinstance(subscriptions[0], SubscriptionInfo)
    assert (subscriptions[0].path, subscriptions[0].topic) == (f"{name}/Subscriptions/{names[0]}", name)


async def test_listing_the_children_of_a_missing_entity_raises_entity_not_found(
    connect_manager: ManagerFactory, name: str
) -> None:
    async with connect_manager() as manager:
        with pytest.raises(EntityNotFound):
            await anext(manager.get_subscriptions(name))
        with pytest.raises(EntityNotFound):
            await anext(manager.get_rules(name, "all"))


async def test_the_client_filters_by_prefix_if_the_service_does_not() -> None:
    page = atom_feed(*[atom_entry(title=title) for title in ("orders", "news", "Orders2")])
    async with run_fake_service(http_response(200, page)) as service, service.manager() as manager:
        assert [queue.path async for queue in manager.get_queues("ord")] == ["orders", "Orders2"]


async def test_a_full_page_is_followed_by_a_request_for_the_next() -> None:
    full = atom_feed(*[atom_entry(title=f"q{number}") for number in range(100)])
    async with (
        run_fake_service(http_response(200, full), http_response(200, atom_feed())) as service,
        service.manager() as manager,
    ):
        assert len([queue async for queue in manager.get_queues()]) == 100
    assert ["$skip=0&$top=100" in request.target for request in service.requests] == [True, False]
    assert "$skip=100&$top=100" in service.requests[1].target


async def test_a_short_page_with_a_next_link_is_followed_by_a_request_for_the_next() -> None:
    link = '<link rel="self" href="x"/><link rel="next" href="y"/>'
    pages = [
        http_response(200, atom_feed(link, atom_entry(title="one"))),
        http_response(200, atom_feed(atom_entry(title="two"))),
    ]
    async with run_fake_service(*pages) as service, service.manager() as manager:
        assert [queue.path async for queue in manager.get_queues()] == ["one", "two"]
    assert "$skip=1&" in service.requests[1].target
