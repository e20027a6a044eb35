"""A rule that costs too much, alone or with the other rules of its topic, is refused; existing rules stay."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.broker.topic_harness import sql_rule
from tests.server.catalogue.recording_catalogue_service import open_catalogue_service
from twinbus.broker.filters.rule import compile_rule
from twinbus.model.errors import QuotaExceeded
from twinbus.model.topic import SubscriptionDescription, TopicDescription

if TYPE_CHECKING:
    from pathlib import Path

    from tests.server.catalogue.recording_catalogue_service import RecordingCatalogueService

ONE, OTHER = "news/Subscriptions/one", "news/Subscriptions/other"
PATTERN = "text LIKE '%a_b%'"
COST = compile_rule(sql_rule(PATTERN)).total_cost


async def create_two_subscriptions(service: RecordingCatalogueService) -> None:
    await service.create("news", TopicDescription())
    await service.create_subscription("news", "one", SubscriptionDescription())
    await service.create_subscription("news", "other", SubscriptionDescription())


async def test_a_rule_that_costs_too_much_is_refused(tmp_path: Path) -> None:
    async with open_catalogue_service(tmp_path, max_rule_cost=2 * COST) as service:
        await create_two_subscriptions(service)
        await service.create_rule(ONE, sql_rule(f"{PATTERN} OR {PATTERN}"))
        with pytest.raises(QuotaExceeded, match=rf"the rule 'dear' takes up to {3 * COST:,} units .* {2 * COST:,}"):
            await service.create_rule(ONE, sql_rule(" OR ".join([PATTERN] * 3), name="dear"))
        with pytest.raises(QuotaExceeded):
            await service.update_rule(ONE, sql_rule(" OR ".join([PATTERN] * 3)))
        with pytest.raises(QuotaExceeded):
            await service.create_subscription(
                "news", "third", SubscriptionDescription(), sql_rule(" OR ".join([PATTERN] * 3))
            )


async def test_the_costs_of_all_rules_of_a_topic_are_added_up(tmp_path: Path) -> None:
    async with open_catalogue_service(tmp_path, max_topic_rule_cost=2 * COST + 5) as service:
        await create_two_subscriptions(service)
        await service.create_rule(ONE, sql_rule(PATTERN, name="a"))
        await service.create_rule(OTHER, sql_rule(PATTERN, name="b"))
        for subscription in (ONE, OTHER):
            with pytest.raises(QuotaExceeded, match=r"the rules of 'news' .* 'c' takes .*: delete or simplify"):
                await service.create_rule(subscription, sql_rule(PATTERN, name="c"))
        with pytest.raises(QuotaExceeded):
            await service.create_subscription("news", "third", SubscriptionDescription(), sql_rule(PATTERN))
        await service.delete_rule(ONE, "a")
        await service.create_rule(OTHER, sql_rule(PATTERN, name="c"))
        await service.update_rule(OTHER, sql_rule("text LIKE 'c%'", name="c"))
        await service.create_rule(ONE, sql_rule(PATTERN, name="d"))
        await service.create("others", TopicDescription())
        await service.create_subscription("others", "one", SubscriptionDescription(), sql_rule(PATTERN))


async def test_existing_rules_above_the_limit_are_kept_and_can_be_made_cheaper(tmp_path: Path) -> None:
    async with open_catalogue_service(tmp_path) as service:
        await create_two_subscriptions(service)
        for name in ("a", "b", "c"):
            await service.create_rule(ONE, sql_rule(f"{PATTERN} OR {PATTERN}", name=name))
    async with open_catalogue_service(tmp_path, max_rule_cost=COST, max_topic_rule_cost=COST) as service:
        assert set(service.find(ONE).rules) == {"$default", "a", "b", "c"}
        await service.update_rule(ONE, sql_rule(PATTERN, name="a"))
        with pytest.raises(QuotaExceeded):
            await service.create_rule(ONE, sql_rule("n > 1", name="d"))
        await service.delete_rule(ONE, "b")


async def test_two_thousand_simple_rules_stay_below_the_default_limit(tmp_path: Path) -> None:
    async with open_catalogue_service(tmp_path) as service:
        cost = service._check_rule_cost(sql_rule("kind = 'order' AND region LIKE '%-eu-%' AND size > 3"))  # noqa: SLF001
        assert 2_000 * cost < service._limits.max_topic_rule_cost  # noqa: SLF001
