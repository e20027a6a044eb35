"""AND, OR and NOT of true, false and unknown, as documented for Service Bus."""

from __future__ import annotations

import pytest

from tests.broker.filters.messages import matches, stored

MESSAGE = stored({"yes": 1, "no": 0})
TERMS = {"T": "yes = 1", "F": "no = 1", "U": "missing = 1"}
AND = {"TT": "T", "TF": "F", "TU": "U", "FT": "F", "FF": "F", "FU": "F", "UT": "U", "UF": "F", "UU": "U"}
OR = {"TT": "T", "TF": "T", "TU": "T", "FT": "T", "FF": "F", "FU": "U", "UT": "T", "UF": "U", "UU": "U"}
NOT = {"T": "F", "F": "T", "U": "U"}


def truth_of(expression: str) -> str:
    """Evaluate an expression and its negation: if it is unknown, neither matches."""
    is_true, is_false = matches(expression, MESSAGE), matches(f"NOT ({expression})", MESSAGE)
    assert not (is_true and is_false)
    return "T" if is_true else "F" if is_false else "U"


@pytest.mark.parametrize(("terms", "expected"), AND.items())
def test_and(terms: str, expected: str) -> None:
    assert truth_of(f"{TERMS[terms[0]]} AND {TERMS[terms[1]]}") == expected


@pytest.mark.parametrize(("terms", "expected"), OR.items())
def test_or(terms: str, expected: str) -> None:
    assert truth_of(f"{TERMS[terms[0]]} OR {TERMS[terms[1]]}") == expected


@pytest.mark.parametrize(("term", "expected"), NOT.items())
def test_not(term: str, expected: str) -> None:
    assert truth_of(f"NOT {TERMS[term]}") == expected


@pytest.mark.parametrize(("constant", "expected"), [("1 = 1", "T"), ("1 = 2", "F"), ("1 = NULL", "U")])
def test_constants_follow_the_same_logic(constant: str, expected: str) -> None:
    for letter, term in TERMS.items():
        assert truth_of(f"{constant} AND {term}") == AND[expected + letter]
        assert truth_of(f"{term} OR {constant}") == OR[letter + expected]
    assert truth_of(f"NOT {constant}") == NOT[expected]
