"""Rules are made of filters and actions of every kind, looked at, listed, changed and deleted."""

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
CORRELATED = {
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


def test_a_new_subscription_has_one_rule_that_is_true_for_every_message(
    admin: AdministrationClient, topic: str, subscription: str
) -> None:
    [rule] = admin.list_rules(topic, subscription)
    assert rule.name == "$Default"
    assert type(rule.filter) is TrueRuleFilter
    assert rule.filter.sql_expression == "1=1"
    assert rule.action is None
    assert abs(rule.created_at_utc - dt.datetime.now(dt.UTC)) < dt.timedelta(minutes=1)
    assert admin.get_rule(topic, subscription, "$Default").name == "$Default"


def test_a_filter_in_sql_comes_back_with_its_parameters(
    admin: AdministrationClient, topic: str, subscription: str
) -> None:
    parameters = {f"@{name}": value for name, value in VALUES.items()}
    expression = " OR ".join(f"priority = {name}" for name in parameters)
    made = admin.create_rule(topic, subscription, "urgent", filter=SqlRuleFilter(expression, parameters))
    for rule in (made, admin.get_rule(topic, subscription, "URGENT"), admin.list_rules(topic, subscription)[1]):
        assert type(rule.filter) is SqlRuleFilter
        assert rule.filter.sql_expression == expression
        assert rule.filter.parameters == parameters
        assert [type(value) for value in rule.filter.parameters.values()] == [type(v) for v in parameters.values()]
        assert rule.action is None


def test_a_filter_by_correlation_comes_back_with_its_properties(
    admin: AdministrationClient, topic: str, subscription: str
) -> None:
    wanted = CorrelationRuleFilter(**CORRELATED, properties=VALUES)
    made = admin.create_rule(topic, subscription, "ours", filter=wanted)
    for rule in (made, admin.get_rule(topic, subscription, "ours"), admin.list_rules(topic, subscription)[1]):
        assert type(rule.filter) is CorrelationRuleFilter
        assert {name: getattr(rule.filter, name) for name in CORRELATED} == CORRELATED
        assert rule.filter.properties == VALUES


@pytest.mark.parametrize("kind", [TrueRuleFilter, FalseRuleFilter])
def test_a_filter_that_is_always_the_same_stays_of_its_kind(
    admin: AdministrationClient, topic: str, subscription: str, kind: type[Any]
) -> None:
    admin.create_rule(topic, subscription, "same", filter=kind())
    assert type(admin.get_rule(topic, subscription, "same").filter) is kind


def test_an_action_comes_back_with_its_parameters(admin: AdministrationClient, topic: str, subscription: str) -> None:
    action = SqlRuleAction("SET priority = @one; REMOVE old", {"@one": 1})
    admin.create_rule(topic, subscription, "set", action=action)
    rule = admin.get_rule(topic, subscription, "set")
    assert rule.action.sql_expression == action.sql_expression
    assert rule.action.parameters == {"@one": 1}
    assert type(rule.filter) is TrueRuleFilter


def test_rules_are_listed_in_the_order_of_their_making(
    admin: AdministrationClient, topic: str, subscription: str
) -> None:
    for name in ("z", "a", "m"):
        admin.create_rule(topic, subscription, name)
    admin.delete_rule(topic, subscription, "A")
    assert [rule.name for rule in admin.list_rules(topic, subscription)] == ["$Default", "z", "m"]
    with pytest.raises(ResourceNotFoundError):
        admin.get_rule(topic, subscription, "a")


def test_an_update_puts_another_rule_in_its_place(admin: AdministrationClient, topic: str, subscription: str) -> None:
    made = admin.create_rule(topic, subscription, "one", filter=SqlRuleFilter("a = 1"))
    made.filter = CorrelationRuleFilter(label="x", properties={"n": 1})
    made.action = SqlRuleAction("SET b = 2")
    admin.update_rule(topic, subscription, made)
    found = admin.get_rule(topic, subscription, "one")
    assert (found.filter.label, found.filter.properties) == ("x", {"n": 1})
    assert found.action.sql_expression == "SET b = 2"
    assert found.created_at_utc == made.created_at_utc
    found.action = None
    admin.update_rule(topic, subscription, found, filter=TrueRuleFilter())
    last = admin.get_rule(topic, subscription, "one")
    assert (type(last.filter), last.action) == (TrueRuleFilter, None)


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        (SqlRuleFilter("a = = 1"), r"line 1, column 5: found .=., expected"),
        (SqlRuleFilter("a ="), "column 4"),
        (SqlRuleFilter("a = @missing"), "@missing"),
        (SqlRuleFilter("a = 'x" + "y" * 1024 + "'"), "it can have 1024"),
    ],
)
def test_an_expression_that_is_none_is_refused_with_the_place(
    admin: AdministrationClient, topic: str, subscription: str, wanted: SqlRuleFilter, told: str
) -> None:
    with pytest.raises(HttpResponseError, match=f"(?s){told}") as caught:
        admin.create_rule(topic, subscription, "bad", filter=wanted)
    assert caught.value.status_code == 400
    rule = admin.get_rule(topic, subscription, "$Default")
    with pytest.raises(HttpResponseError, match=f"(?s){told}"):
        admin.update_rule(topic, subscription, rule, filter=wanted)
    assert [rule.name for rule in admin.list_rules(topic, subscription)] == ["$Default"]


def test_an_action_that_is_none_is_refused_with_the_place(
    admin: AdministrationClient, topic: str, subscription: str
) -> None:
    with pytest.raises(HttpResponseError, match="column 1") as caught:
        admin.create_rule(topic, subscription, "bad", action=SqlRuleAction("JUMP high"))
    assert caught.value.status_code == 400


def test_a_name_that_is_taken_or_missing_or_none_at_all(
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
