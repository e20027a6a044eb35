"""A topic can have a limited number of rules with an action; existing rules above the limit stay."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.broker.topic_harness import sql_rule
from tests.server.catalogue.recording_catalogue_service import open_catalogue_service
from twinbus.model.errors import QuotaExceeded
from twinbus.model.topic import SubscriptionDescription, TopicDescription

if TYPE_CHECKING:
    from pathlib import Path

    from tests.server.catalogue.recording_catalogue_service import RecordingCatalogueService

ONE, OTHER = "news/Subscriptions/one", "news/Subscriptions/other"
ACTION = "SET x = 1"


async def create_two_subscriptions(service: RecordingCatalogueService) -> None:
    await service.create("news", TopicDescription())
    await service.create_subscription("news", "one", SubscriptionDescription())
    await service.create_subscription("news", "other", SubscriptionDescription())


async def test_rules_with_an_action_are_limited_over_all_subscriptions_of_a_topic(tmp_path: Path) -> None:
    async with open_catalogue_service(tmp_path, max_topic_actions=2) as service:
        await create_two_subscriptions(service)
        await service.create_rule(ONE, sql_rule("", ACTION, name="a"))
        await service.create_rule(OTHER, sql_rule("", ACTION, name="b"))
        with pytest.raises(QuotaExceeded, match=r"'news' has 2 rules with an action, .* 2 \(max_topic_actions\).*'c'"):
            await service.create_rule(ONE, sql_rule("", ACTION, name="c"))
        with pytest.raises(QuotaExceeded):
            await service.create_subscription("news", "third", SubscriptionDescription(), sql_rule("", ACTION))
        with pytest.raises(QuotaExceeded):
            await service.update_rule(ONE, sql_rule("", ACTION, name="$Default"))
        await service.update_rule(ONE, sql_rule("", "SET x = 2", name="a"))
        await service.create_rule(ONE, sql_rule("n = 1", name="plain"))
        await service.delete_rule(OTHER, "b")
        await service.create_rule(ONE, sql_rule("", ACTION, name="c"))
        await service.create("others", TopicDescription())
        await service.create_subscription("others", "one", SubscriptionDescription(), sql_rule("", ACTION))


async def test_existing_rules_above_the_limit_are_kept(tmp_path: Path) -> None:
    async with open_catalogue_service(tmp_path) as service:
        await create_two_subscriptions(service)
        for name in ("a", "b", "c"):
            await service.create_rule(ONE, sql_rule("", ACTION, name=name))
    async with open_catalogue_service(tmp_path, max_topic_actions=1) as service:
        assert set(service.find(ONE).rules) == {"$default", "a", "b", "c"}
        await service.update_rule(ONE, sql_rule("", "SET x = 2", name="a"))
        with pytest.raises(QuotaExceeded):
            await service.create_rule(ONE, sql_rule("", ACTION, name="d"))
