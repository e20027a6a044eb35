"""Lists go on for as many pages as there are."""

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


async def test_queues_over_more_than_a_page(connect_manager: ManagerFactory, name: str) -> None:
    wanted = sorted(f"{name}-{number}" for number in range(MANY))
    async with connect_manager() as manager:
        await asyncio.gather(*[manager.create_queue(path, QueueDescription(max_delivery_count=4)) for path in wanted])
        found = [queue async for queue in manager.get_queues(name.upper() + "-")]
        everything = [queue.path async for queue in manager.get_queues()]
    assert [queue.path for queue in found] == wanted
    assert {queue.description.max_delivery_count for queue in found} == {4}
    assert {queue.runtime.active_count for queue in found} == {0}
    assert set(wanted) <= set(everything)
    assert len(everything) == len(set(everything))


async def test_topics_over_more_than_a_page(connect_manager: ManagerFactory, name: str) -> None:
    wanted = sorted(f"{name}-{number}" for number in range(MANY))
    async with connect_manager() as manager:
        await asyncio.gather(*[manager.create_topic(path) for path in wanted])
        assert [topic.path async for topic in manager.get_topics(f"{name}-")] == wanted
        assert wanted[0] not in [queue.path async for queue in manager.get_queues(name)]


async def test_subscriptions_and_rules_over_more_than_a_page(connect_manager: ManagerFactory, name: str) -> None:
    names = sorted(f"one-{number}" for number in range(MANY))
    async with connect_manager() as manager:
        await manager.create_topic(name)
        await asyncio.gather(*[manager.create_subscription(name, one) for one in names])
        for one in names:
            await manager.create_rule(name, names[0], RuleDescription(name=one, filter=FalseFilter()))
        found = [one async for one in manager.get_subscriptions(name)]
        assert [one.name async for one in manager.get_subscriptions(name, "one-10")] == ["one-10", *names[3:6]]
        assert [rule.name async for rule in manager.get_rules(name, names[0])] == ["$Default", *names]
    assert [one.name for one in found] == names
    assert isinstance(found[0], SubscriptionInfo)
    assert (found[0].path, found[0].topic) == (f"{name}/Subscriptions/{names[0]}", name)


async def test_what_is_not_there_has_no_list(connect_manager: ManagerFactory, name: str) -> None:
    async with connect_manager() as manager:
        with pytest.raises(EntityNotFound):
            await anext(manager.get_subscriptions(name))
        with pytest.raises(EntityNotFound):
            await anext(manager.get_rules(name, "all"))


async def test_a_service_that_knows_no_prefix_lists_all_and_the_rest_is_left_out() -> None:
    page = atom_feed(*[atom_entry(title=title) for title in ("orders", "news", "Orders2")])
    async with run_fake_service(http_response(200, page)) as service, service.manager() as manager:
        assert [queue.path async for queue in manager.get_queues("ord")] == ["orders", "Orders2"]


async def test_a_page_that_is_full_is_followed_by_another() -> None:
    full = atom_feed(*[atom_entry(title=f"q{number}") for number in range(100)])
    async with (
        run_fake_service(http_response(200, full), http_response(200, atom_feed())) as service,
        service.manager() as manager,
    ):
        assert len([queue async for queue in manager.get_queues()]) == 100
    assert ["$skip=0&$top=100" in asked.target for asked in service.requests] == [True, False]
    assert "$skip=100&$top=100" in service.requests[1].target


async def test_a_short_page_that_names_the_next_is_followed_by_it() -> None:
    link = '<link rel="self" href="x"/><link rel="next" href="y"/>'
    pages = [
        http_response(200, atom_feed(link, atom_entry(title="one"))),
        http_response(200, atom_feed(atom_entry(title="two"))),
    ]
    async with run_fake_service(*pages) as service, service.manager() as manager:
        assert [queue.path async for queue in manager.get_queues()] == ["one", "two"]
    assert "$skip=1&" in service.requests[1].target
