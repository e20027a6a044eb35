"""An index finds what evaluating one rule after the other finds, without doing so."""

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

Found = list[tuple[int, str | None]]


def one_by_one(rules: dict[int, CompiledRule], record: bytes) -> Found:
    """The same, told in the same order: rules for all messages first."""
    always: Found = []
    others: Found = []
    for key, rule in rules.items():
        try:
            if rule.matches(MessageView(record)):
                (always if rule.is_always_true else others).append((key, None))
        except FilterError as error:
            others.append((key, str(error)))
    return always + others


def looked_up(index: RuleIndex[int], record: bytes) -> Found:
    return [(key, str(error) if error is not None else None) for key, error in index.match(MessageView(record))]


def correlation(label: str | None, color: int | None) -> CompiledRule:
    properties = {"a": Value("int", str(color))} if color is not None else {}
    return compile_rule(RuleDescription(name="r", filter=CorrelationFilter(label=label, properties=properties)))


fixed = st.sampled_from(
    [compile_rule(RuleDescription(name="r", filter=found)) for found in (TrueFilter(), FalseFilter())]
)
rules = st.one_of(
    (equalities | filters).map(lambda tree: sql(text_of(tree))),
    fixed,
    st.builds(correlation, st.sampled_from([None, "x", "y"]), st.sampled_from([None, 0, 1, 7])),
)
steps = st.lists(st.tuples(st.integers(0, 7), st.none() | rules), min_size=1, max_size=14)


@settings(max_examples=200, deadline=None)
@given(steps, st.lists(st.tuples(messages, st.sampled_from([None, "x"])), min_size=1, max_size=4))
def test_it_finds_what_one_by_one_finds(
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
            assert looked_up(index, record) == one_by_one(kept, record)
    assert len(index) == len(kept)


@pytest.mark.parametrize("seed", range(20))
def test_it_finds_what_one_by_one_finds_of_rules_that_nearly_match(seed: int) -> None:
    random = Random(seed)
    kept = {number: sql(text_of(random_tree(random))) for number in range(40)}
    index: RuleIndex[int] = RuleIndex()
    for key, rule in kept.items():
        index.put(key, rule)
    for values in product([None, 0, Int(1), "a", True], repeat=3):
        record = stored(dict(zip("abc", values, strict=True)))
        assert looked_up(index, record) == one_by_one(kept, record)


@settings(max_examples=150, deadline=None)
@given(st.lists(equalities | filters, min_size=1, max_size=5), messages)
def test_it_finds_the_same_where_rules_name_many_properties(trees: list[Tree], message: dict[str, Any]) -> None:
    kept = {number: sql(f"other{number} = 1") for number in range(40)}
    kept |= {100 + number: sql(text_of(tree)) for number, tree in enumerate(trees)}
    index: RuleIndex[int] = RuleIndex()
    for key, rule in kept.items():
        index.put(key, rule)
    record = stored({**message, "Other7": 1})
    assert looked_up(index, record) == one_by_one(kept, record)


def test_an_index_that_was_emptied_keeps_nothing() -> None:
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


def test_rules_come_in_the_order_in_which_they_were_put_those_for_all_messages_first() -> None:
    index: RuleIndex[str] = RuleIndex()
    for expression in ("a > 1", "b = 2", "1 = 1", "a = 5", "2 = 2", "b < 7"):
        index.put(expression, sql(expression))
    index.put("b = 2", sql("b = 2"))
    found = [key for key, _ in index.match(MessageView(stored({"a": 5, "b": 2})))]
    assert found == ["1 = 1", "2 = 2", "a > 1", "a = 5", "b < 7", "b = 2"]


def test_a_rule_that_fails_does_not_keep_the_others_from_matching() -> None:
    index: RuleIndex[str] = RuleIndex()
    for expression in ("a / 0 = 1", "a = 1", "b / 0 = 1 AND a = 1", "b / 0 = 1 AND a = 2"):
        index.put(expression, sql(expression))
    found = {key: str(error) for key, error in index.match(MessageView(stored({"a": 1, "b": 1})))}
    assert found == {
        "a / 0 = 1": "a division by zero",
        "a = 1": "None",
        "b / 0 = 1 AND a = 1": "a division by zero",
    }
