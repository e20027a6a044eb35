"""The rule index finds the same rules as evaluating them one by one, with fewer evaluations."""

from __future__ import annotations

from itertools import product
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.broker.filters.messages import sql, stored
from tests.broker.filters.reference_evaluator import Tree, text_of
from tests.broker.filters.strategies import equalities, filters, messages, random_tree
from twinbus.amqp.types import Int, UInt
from twinbus.broker.filters.errors import FilterError
from twinbus.broker.filters.message_view import MessageView
from twinbus.broker.filters.rule import CompiledRule, compile_rule
from twinbus.broker.filters.rule_index import RuleIndex
from twinbus.model.rule import CorrelationFilter, FalseFilter, RuleDescription, TrueFilter, Value

Matches = list[tuple[int, str | None]]


def match_one_by_one(rules: dict[int, CompiledRule], record: bytes) -> Matches:
    """Match rule by rule, in the order of the index: rules that match all messages first."""
    always: Matches = []
    others: Matches = []
    for key, rule in rules.items():
        try:
            if rule.matches(MessageView(record)):
                (always if rule.is_always_true else others).append((key, None))
        except FilterError as error:
            others.append((key, str(error)))
    return always + others


def match_with_index(index: RuleIndex[int], record: bytes) -> Matches:
    return [(key, str(error) if error is not None else None) for key, error in index.match(MessageView(record))]


def correlation(label: str | None, color: int | None) -> CompiledRule:
    properties = {"a": Value("int", str(color))} if color is not None else {}
    return compile_rule(RuleDescription(name="r", filter=CorrelationFilter(label=label, properties=properties)))


fixed = st.sampled_from(
    [compile_rule(RuleDescription(name="r", filter=rule_filter)) for rule_filter in (TrueFilter(), FalseFilter())]
)
rules = st.one_of(
    (equalities | filters).map(lambda tree: sql(text_of(tree))),
    fixed,
    st.builds(correlation, st.sampled_from([None, "x", "y"]), st.sampled_from([None, 0, 1, 7])),
)
steps = st.lists(st.tuples(st.integers(0, 7), st.none() | rules), min_size=1, max_size=14)


@settings(max_examples=200, deadline=None)
@given(steps, st.lists(st.tuples(messages, st.sampled_from([None, "x"])), min_size=1, max_size=4))
def test_the_index_finds_the_same_rules_as_one_by_one(
    steps: list[tuple[int, CompiledRule | None]], sent: list[tuple[dict[str, Any], str | None]]
) -> None:
    index: RuleIndex[int] = RuleIndex()
    kept: dict[int, CompiledRule] = {}
    for key, rule in steps:
        kept.pop(key, None)
        if rule is not None:
            index.put(key, rule)
            kept[key] = rule
        elif key in index:
            index.remove(key)
        for message, label in sent:
            record = stored(message, subject=label)
            assert match_with_index(index, record) == match_one_by_one(kept, record)
    assert len(index) == len(kept)


@pytest.mark.parametrize("seed", range(20))
def test_the_index_finds_the_same_rules_as_one_by_one_if_many_nearly_match(seed: int) -> None:
    random = Random(seed)
    kept = {number: sql(text_of(random_tree(random))) for number in range(40)}
    index: RuleIndex[int] = RuleIndex()
    for key, rule in kept.items():
        index.put(key, rule)
    for values in product([None, 0, Int(1), "a", True], repeat=3):
        record = stored(dict(zip("abc", values, strict=True)))
        assert match_with_index(index, record) == match_one_by_one(kept, record)


@settings(max_examples=150, deadline=None)
@given(st.lists(equalities | filters, min_size=1, max_size=5), messages)
def test_the_index_finds_the_same_rules_if_rules_name_many_properties(
    trees: list[Tree], message: dict[str, Any]
) -> None:
    kept = {number: sql(f"other{number} = 1") for number in range(40)}
    kept |= {100 + number: sql(text_of(tree)) for number, tree in enumerate(trees)}
    index: RuleIndex[int] = RuleIndex()
    for key, rule in kept.items():
        index.put(key, rule)
    record = stored({**message, "Other7": 1})
    assert match_with_index(index, record) == match_one_by_one(kept, record)


def test_an_emptied_index_keeps_nothing() -> None:
    index: RuleIndex[str] = RuleIndex()
    for expression in ("a = 1 OR b = 2", "a IN (1, 2, 3)", "a > 1", "1 = 1", "1 = 2", "a = 1 AND b = 2"):
        index.put(expression, sql(expression))
    for expression in list(index):
        index.remove(expression)
    assert vars(index) == {**vars(RuleIndex()), "_next_ordinal": 6}
    with pytest.raises(KeyError):
        index.remove("a > 1")


@pytest.mark.parametrize(
    "pattern",
    [
        "region = 'r{}'",
        "'r{}' = region",
        "region IN ('r{}', 's{}')",
        "region = 'r{}' OR sys.Label = 'l{}'",
        "kind = 'order' AND region = 'r{}' AND size > 1",
        "size > 1 AND (region = 'r{}' AND size < 9 OR region = 's{}')",
        "number = {} AND p('kind') = 'order'",
        "sys.Label = 'l{}'",
        "property{} = 1",
    ],
)
def test_rules_whose_equality_does_not_hold_are_not_evaluated(pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluated: list[CompiledRule] = []
    evaluate = CompiledRule.matches

    def watch(rule: CompiledRule, view: MessageView) -> bool:
        evaluated.append(rule)
        return evaluate(rule, view)

    monkeypatch.setattr(CompiledRule, "matches", watch)
    index: RuleIndex[int] = RuleIndex()
    for number in range(300):
        index.put(number, sql(pattern.format(number, number)))
    record = stored(
        {"region": "r123", "kind": "order", "size": 5, "number": UInt(123), "Property123": Int(1)}, subject="l123"
    )
    assert index.match(MessageView(record)) == [(123, None)]
    assert len(evaluated) <= 2


def test_rules_come_in_order_with_those_for_all_messages_first() -> None:
    index: RuleIndex[str] = RuleIndex()
    for expression in ("a > 1", "b = 2", "1 = 1", "a = 5", "2 = 2", "b < 7"):
        index.put(expression, sql(expression))
    index.put("b = 2", sql("b = 2"))
    keys = [key for key, _ in index.match(MessageView(stored({"a": 5, "b": 2})))]
    assert keys == ["1 = 1", "2 = 2", "a > 1", "a = 5", "b < 7", "b = 2"]


def test_a_failing_rule_does_not_prevent_others_from_matching() -> None:
    index: RuleIndex[str] = RuleIndex()
    for expression in ("a / 0 = 1", "a = 1", "b / 0 = 1 AND a = 1", "b / 0 = 1 AND a = 2"):
        index.put(expression, sql(expression))
    errors = {key: str(error) for key, error in index.match(MessageView(stored({"a": 1, "b": 1})))}
    assert errors == {
        "a / 0 = 1": "division by zero",
        "a = 1": "None",
        "b / 0 = 1 AND a = 1": "division by zero",
    }
