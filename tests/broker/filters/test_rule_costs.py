"""The cost of a rule follows from its text, and decides how its evaluation is spread over turns."""

from __future__ import annotations

from typing import Any

import pytest

from tests.broker.messages import message
from tests.broker.topic_harness import sql_rule
from twinbus.broker.filters.cost import FULL_SIZE
from twinbus.broker.filters.message_view import MessageView
from twinbus.broker.filters.rule import compile_rule
from twinbus.broker.filters.rule_index import RuleIndex
from twinbus.broker.message_record import MessageHeader, make_plain_record
from twinbus.model.rule import CorrelationFilter, RuleDescription, TrueFilter, Value


def cost(expression: str, action: str | None = None) -> int:
    return compile_rule(sql_rule(expression, action)).total_cost


def view(size: int = 0, **properties: Any) -> MessageView:  # noqa: ANN401
    return MessageView(make_plain_record(MessageHeader(), message(b"x" * size, **properties), 0))


@pytest.mark.parametrize(
    ("cheap", "expensive"),
    [
        ("a = 1", "a = 1 OR b > 2"),
        ("a LIKE 'abc%'", "a LIKE '%abc%'"),
        ("a LIKE '%b%'", "a LIKE '%a_b%'"),
        ("a LIKE '%a_b%'", "a LIKE '%a_b%' OR c LIKE '%a_b%'"),
        ("a LIKE '%a_b%'", "a LIKE '%a_b_c%'"),
        ("a LIKE '%a_b%'", "a LIKE b"),
        ("a IN (1, 2)", "a IN (1, 2, b, c)"),
        ("a = b", "a + b = c"),
        ("a > 1", "NOT (a > 1 AND b > 1)"),
        ("a > 1", "p(b) > 1"),
    ],
)
def test_slower_filters_cost_more(cheap: str, expensive: str) -> None:
    assert cost(cheap) < cost(expensive)


def test_the_cost_of_an_action_grows_with_its_statements() -> None:
    assert cost("a = 1") < cost("a = 1", "SET b = 1") < cost("a = 1", "SET b = 1; REMOVE c")


def test_true_filters_and_correlation_filters_are_cheap() -> None:
    values = {"a": Value("string", "x"), "b": Value("int", "1")}
    correlation = RuleDescription(name="r", filter=CorrelationFilter(properties=values))
    assert compile_rule(RuleDescription(name="r", filter=TrueFilter())).total_cost == 1
    assert compile_rule(correlation).total_cost == 2


def test_evaluated_rules_count_towards_the_cost() -> None:
    index: RuleIndex[str] = RuleIndex()
    assert index.begin_match(view()).remaining_cost == 0
    index.put("large", compile_rule(sql_rule("a LIKE '%a_b%'")))
    small, large = index.begin_match(view(100)).remaining_cost, index.begin_match(view(FULL_SIZE)).remaining_cost
    assert 1 <= small < large == cost("a LIKE '%a_b%'")
    index.put("looked-up", compile_rule(sql_rule("b = 1 AND a LIKE '%a_b%'")))
    assert index.begin_match(view(FULL_SIZE)).remaining_cost == large
    assert index.begin_match(view(FULL_SIZE, b=1)).remaining_cost > 2 * large
    index.remove("large")
    index.remove("looked-up")
    assert index.begin_match(view(FULL_SIZE, b=1)).remaining_cost == 0


def test_rules_found_without_evaluation_count_towards_the_cost() -> None:
    index: RuleIndex[int] = RuleIndex()
    for number in range(2_000):
        index.put(number, compile_rule(sql_rule("b = 1")))
    assert index.begin_match(view(b=2)).remaining_cost == 0
    assert index.match_within(view(b=1), 1_999) is None
    assert index.match_within(view(b=1), 2_000) is not None
    assert index.last_cost >= 2_000
    matching = index.begin_match(view(b=1))
    assert matching.advance(500) == 0
    assert len(matching.matches) == 500


def test_matching_in_steps_finds_the_same_rules() -> None:
    index: RuleIndex[str] = RuleIndex()
    for key, expression in {
        "all": "",
        "exact": "n = 1",
        "two-terms": "n = 1 OR m = 1",
        "one": "n > 0",
        "none": "n > 5",
        "fails": "1 / (n - 1) = 1",
        "last": "n < 5 AND m IS NOT NULL",
    }.items():
        index.put(key, compile_rule(sql_rule(expression, name=key)))
    at_once = [(key, str(error)) for key, error in index.match(view(n=1, m=1))]
    within = index.match_within(view(n=1, m=1), 1_000)
    assert within is not None
    assert [(entry.key, str(error)) for entry, error in within] == at_once
    assert index.match_within(view(n=1, m=1), 2) is None
    for allowance in range(1, 8):
        matching = index.begin_match(view(n=1, m=1))
        steps = 0
        while not matching.is_done:
            before = matching.remaining_cost
            left = matching.advance(allowance)
            assert matching.remaining_cost == before - (allowance - left) >= 0
            steps += 1
        assert [(entry.key, str(error)) for entry, error in matching.matches] == at_once
        assert matching.remaining_cost == 0
        assert steps == 1 or allowance < 8
