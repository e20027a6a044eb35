"""A rule that costs too much, alone or with the others of its topic, is refused; those that are there stay."""

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


async def subscribe(keeper: RecordingCatalogueService) -> None:
    await keeper.create("news", TopicDescription())
    await keeper.create_subscription("news", "one", SubscriptionDescription())
    await keeper.create_subscription("news", "other", SubscriptionDescription())


async def test_a_rule_that_costs_too_much_is_refused(tmp_path: Path) -> None:
    async with open_catalogue_service(tmp_path, max_rule_cost=2 * COST) as keeper:
        await subscribe(keeper)
        await keeper.create_rule(ONE, sql_rule(f"{PATTERN} OR {PATTERN}"))
        with pytest.raises(QuotaExceeded, match=rf"the rule 'dear' takes up to {3 * COST:,} units .* {2 * COST:,}"):
            await keeper.create_rule(ONE, sql_rule(" OR ".join([PATTERN] * 3), name="dear"))
        with pytest.raises(QuotaExceeded):
            await keeper.update_rule(ONE, sql_rule(" OR ".join([PATTERN] * 3)))
        with pytest.raises(QuotaExceeded):
            await keeper.create_subscription(
                "news", "third", SubscriptionDescription(), sql_rule(" OR ".join([PATTERN] * 3))
            )


async def test_the_rules_of_a_topic_are_added_up(tmp_path: Path) -> None:
    async with open_catalogue_service(tmp_path, max_topic_rule_cost=2 * COST + 5) as keeper:
        await subscribe(keeper)
        await keeper.create_rule(ONE, sql_rule(PATTERN, name="a"))
        await keeper.create_rule(OTHER, sql_rule(PATTERN, name="b"))
        for subscription in (ONE, OTHER):
            with pytest.raises(QuotaExceeded, match=r"the rules of 'news' .* 'c' takes .*: delete or simplify"):
                await keeper.create_rule(subscription, sql_rule(PATTERN, name="c"))
        with pytest.raises(QuotaExceeded):
            await keeper.create_subscription("news", "third", SubscriptionDescription(), sql_rule(PATTERN))
        await keeper.delete_rule(ONE, "a")
        await keeper.create_rule(OTHER, sql_rule(PATTERN, name="c"))
        await keeper.update_rule(OTHER, sql_rule("text LIKE 'c%'", name="c"))
        await keeper.create_rule(ONE, sql_rule(PATTERN, name="d"))
        await keeper.create("others", TopicDescription())
        await keeper.create_subscription("others", "one", SubscriptionDescription(), sql_rule(PATTERN))


async def test_rules_that_cost_more_already_are_kept_and_may_come_to_cost_less(tmp_path: Path) -> None:
    async with open_catalogue_service(tmp_path) as keeper:
        await subscribe(keeper)
        for name in ("a", "b", "c"):
            await keeper.create_rule(ONE, sql_rule(f"{PATTERN} OR {PATTERN}", name=name))
    async with open_catalogue_service(tmp_path, max_rule_cost=COST, max_topic_rule_cost=COST) as keeper:
        assert set(keeper.find(ONE).rules) == {"$default", "a", "b", "c"}
        await keeper.update_rule(ONE, sql_rule(PATTERN, name="a"))
        with pytest.raises(QuotaExceeded):
            await keeper.create_rule(ONE, sql_rule("n > 1", name="d"))
        await keeper.delete_rule(ONE, "b")


async def test_two_thousand_plain_rules_cost_little(tmp_path: Path) -> None:
    async with open_catalogue_service(tmp_path) as keeper:
        cost = keeper._check_rule_cost(sql_rule("kind = 'order' AND region LIKE '%-eu-%' AND size > 3"))  # noqa: SLF001
        assert 2_000 * cost < keeper._limits.max_topic_rule_cost  # noqa: SLF001
