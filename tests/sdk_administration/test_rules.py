"""Rules: create, get, list, update and delete, with filters and actions of every kind."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import pytest
from azure.core.exceptions import HttpResponseError, ResourceExistsError, ResourceNotFoundError
from azure.servicebus.management import (
    CorrelationRuleFilter,
    FalseRuleFilter,
    SqlRuleAction,
    SqlRuleFilter,
    TrueRuleFilter,
)

if TYPE_CHECKING:
    from tests.sdk_administration.admin import AdministrationClient

VALUES: dict[str, Any] = {
    "text": "str <1> & 'two'",
    "small": 2,
    "large": 2_147_483_650,
    "negative": -7,
    "real": 1.25,
    "truth": True,
    "lie": False,
    "time": dt.datetime(2026, 7, 5, 11, 12, 13, tzinfo=dt.UTC),
    "span": dt.timedelta(days=1, hours=2, seconds=3),
}
CORRELATION_FIELDS = {
    "correlation_id": "c",
    "message_id": "m",
    "to": "t",
    "reply_to": "r",
    "label": "l",
    "session_id": "s",
    "reply_to_session_id": "rs",
    "content_type": "text/plain",
}


@pytest.fixture
def subscription(admin: AdministrationClient, topic: str) -> str:
    admin.create_subscription(topic, "all")
    return "all"


def test_a_new_subscription_has_one_rule_that_matches_every_message(
    admin: AdministrationClient, topic: str, subscription: str
) -> None:
    [rule] = admin.list_rules(topic, subscription)
    assert rule.name == "$Default"
    assert type(rule.filter) is TrueRuleFilter
    assert rule.filter.sql_expression == "1=1"
    assert rule.action is None
    assert abs(rule.created_at_utc - dt.datetime.now(dt.UTC)) < dt.timedelta(minutes=1)
    assert admin.get_rule(topic, subscription, "$Default").name == "$Default"


def test_a_sql_filter_is_returned_with_its_parameters(
    admin: AdministrationClient, topic: str, subscription: str
) -> None:
    parameters = {f"@{name}": value for name, value in VALUES.items()}
    expression = " OR ".join(f"priority = {name}" for name in parameters)
    created = admin.create_rule(topic, subscription, "urgent", filter=SqlRuleFilter(expression, parameters))
    for rule in (created, admin.get_rule(topic, subscription, "URGENT"), admin.list_rules(topic, subscription)[1]):
        assert type(rule.filter) is SqlRuleFilter
        assert rule.filter.sql_expression == expression
        assert rule.filter.parameters == parameters
        assert [type(value) for value in rule.filter.parameters.values()] == [type(v) for v in parameters.values()]
        assert rule.action is None


def test_a_correlation_filter_is_returned_with_its_properties(
    admin: AdministrationClient, topic: str, subscription: str
) -> None:
    correlation_filter = CorrelationRuleFilter(**CORRELATION_FIELDS, properties=VALUES)
    created = admin.create_rule(topic, subscription, "ours", filter=correlation_filter)
    for rule in (created, admin.get_rule(topic, subscription, "ours"), admin.list_rules(topic, subscription)[1]):
        assert type(rule.filter) is CorrelationRuleFilter
        assert {name: getattr(rule.filter, name) for name in CORRELATION_FIELDS} == CORRELATION_FIELDS
        assert rule.filter.properties == VALUES


@pytest.mark.parametrize("kind", [TrueRuleFilter, FalseRuleFilter])
def test_a_true_or_false_filter_keeps_its_type(
    admin: AdministrationClient, topic: str, subscription: str, kind: type[Any]
) -> None:
    admin.create_rule(topic, subscription, "same", filter=kind())
    assert type(admin.get_rule(topic, subscription, "same").filter) is kind


def test_an_action_is_returned_with_its_parameters(admin: AdministrationClient, topic: str, subscription: str) -> None:
    action = SqlRuleAction("SET priority = @one; REMOVE old", {"@one": 1})
    admin.create_rule(topic, subscription, "set", action=action)
    rule = admin.get_rule(topic, subscription, "set")
    assert rule.action.sql_expression == action.sql_expression
    assert rule.action.parameters == {"@one": 1}
    assert type(rule.filter) is TrueRuleFilter


def test_rules_are_listed_in_the_order_of_their_creation(
    admin: AdministrationClient, topic: str, subscription: str
) -> None:
    for name in ("z", "a", "m"):
        admin.create_rule(topic, subscription, name)
    admin.delete_rule(topic, subscription, "A")
    assert [rule.name for rule in admin.list_rules(topic, subscription)] == ["$Default", "z", "m"]
    with pytest.raises(ResourceNotFoundError):
        admin.get_rule(topic, subscription, "a")


def test_an_update_replaces_the_filter_and_the_action(
    admin: AdministrationClient, topic: str, subscription: str
) -> None:
    created = admin.create_rule(topic, subscription, "one", filter=SqlRuleFilter("a = 1"))
    created.filter = CorrelationRuleFilter(label="x", properties={"n": 1})
    created.action = SqlRuleAction("SET b = 2")
    admin.update_rule(topic, subscription, created)
    updated = admin.get_rule(topic, subscription, "one")
    assert (updated.filter.label, updated.filter.properties) == ("x", {"n": 1})
    assert updated.action.sql_expression == "SET b = 2"
    assert updated.created_at_utc == created.created_at_utc
    updated.action = None
    admin.update_rule(topic, subscription, updated, filter=TrueRuleFilter())
    last = admin.get_rule(topic, subscription, "one")
    assert (type(last.filter), last.action) == (TrueRuleFilter, None)


@pytest.mark.parametrize(
    ("invalid_filter", "reason"),
    [
        (SqlRuleFilter("a = = 1"), r"line 1, column 5: found .=., expected"),
        (SqlRuleFilter("a ="), "column 4"),
        (SqlRuleFilter("a = @missing"), "@missing"),
        (SqlRuleFilter("a = 'x" + "y" * 1024 + "'"), "it can have 1024"),
    ],
)
def test_an_invalid_filter_expression_is_refused_with_its_position(
    admin: AdministrationClient, topic: str, subscription: str, invalid_filter: SqlRuleFilter, reason: str
) -> None:
    with pytest.raises(HttpResponseError, match=f"(?s){reason}") as caught:
        admin.create_rule(topic, subscription, "bad", filter=invalid_filter)
    assert caught.value.status_code == 400
    rule = admin.get_rule(topic, subscription, "$Default")
    with pytest.raises(HttpResponseError, match=f"(?s){reason}"):
        admin.update_rule(topic, subscription, rule, filter=invalid_filter)
    assert [rule.name for rule in admin.list_rules(topic, subscription)] == ["$Default"]


def test_an_invalid_action_is_refused_with_its_position(
    admin: AdministrationClient, topic: str, subscription: str
) -> None:
    with pytest.raises(HttpResponseError, match="column 1") as caught:
        admin.create_rule(topic, subscription, "bad", action=SqlRuleAction("JUMP high"))
    assert caught.value.status_code == 400


def test_existing_missing_and_invalid_rule_names_are_refused(
    admin: AdministrationClient, topic: str, subscription: str
) -> None:
    with pytest.raises(ResourceExistsError):
        admin.create_rule(topic, subscription, "$default")
    with pytest.raises(ResourceNotFoundError):
        admin.delete_rule(topic, subscription, "missing")
    rule = admin.create_rule(topic, subscription, "one")
    admin.delete_rule(topic, subscription, "one")
    with pytest.raises(ResourceNotFoundError):
        admin.update_rule(topic, subscription, rule)
    for name in ("a b", "x" * 51, "-"):
        with pytest.raises(HttpResponseError) as caught:
            admin.create_rule(topic, subscription, name)
        assert caught.value.status_code == 400
    with pytest.raises(ResourceNotFoundError):
        admin.create_rule(topic, "missing", "one")
