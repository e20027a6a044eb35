"""Compiled filters agree with the reference evaluator."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings

from tests.broker.filters.messages import sql, stored
from tests.broker.filters.reference_evaluator import ERROR, FALSE, TRUE, UNKNOWN, Tree, possible_outcomes, text_of
from tests.broker.filters.strategies import filters, messages
from twinbus.broker.filters.errors import FilterError
from twinbus.broker.filters.message_view import MessageView


def evaluate(expression: str, record: bytes) -> str:
    try:
        return TRUE if sql(expression).matches(MessageView(record)) else FALSE
    except FilterError:
        return ERROR


@settings(max_examples=600, deadline=None)
@given(filters, messages)
def test_any_filter_agrees_with_the_reference_on_any_message(tree: Tree, message: dict[str, Any]) -> None:
    expected = {FALSE if outcome == UNKNOWN else outcome for outcome in possible_outcomes(tree, message)}
    assert evaluate(text_of(tree), stored(message)) in expected


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        (("compare", "=", ("property", "a"), ("constant", 1)), {TRUE}),
        (("compare", "=", ("property", "x"), ("constant", 1)), {UNKNOWN}),
        (("compare", "/", ("property", "a"), ("constant", 1)), None),
        (("compare", "=", ("chain", ("property", "a"), [("/", ("constant", 0))]), ("constant", 1)), {ERROR}),
    ],
)
def test_the_reference_evaluator_distinguishes_outcomes(tree: Tree, expected: set[str] | None) -> None:
    if expected is None:
        with pytest.raises(KeyError):
            possible_outcomes(tree, {"a": 1})
    else:
        assert possible_outcomes(tree, {"a": 1}) == expected
