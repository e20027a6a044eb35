"""Equalities that a filter requires, so that a dictionary can rule the filter out before it is evaluated.

A lookup is a set of terms `property = value`. If a message satisfies none of the terms, the filter is not true and its
evaluation cannot fail. `a = 1 AND b > 2` has the lookup a = 1; `a = 1 OR b IN (2, 3)` has one lookup with three terms;
`b > 2` has no lookup.

Owns the search for lookups, and the evaluation order that lookups rely on: operands of a conjunction that have a lookup
are evaluated first. Without this order, evaluating `1 / b = 1 AND a = 1` could fail for a message for which the index
skips the rule.
"""

from __future__ import annotations

from typing import NamedTuple

from twinbus.broker.filters.syntax_tree import And, Comparison, Constant, In, Node, Or, Property, PropertyKey
from twinbus.broker.filters.values import KINDS, index_key


class EqualityTerm(NamedTuple):
    """Condition that a property equals a value."""

    property_key: PropertyKey
    value_key: object
    """Value as converted by `values.index_key`."""


class EqualityLookup(NamedTuple):
    """Terms of which at least one must hold for the filter to be true."""

    terms: tuple[EqualityTerm, ...]
    is_exact: bool
    """Whether the filter is true if at least one term holds."""


def find_lookups(node: Node) -> list[EqualityLookup]:
    """Return the lookups of a filter, each of which is enough to index the filter.

    The list is empty if the filter must always be evaluated.
    """
    if isinstance(node, Comparison) and node.op == "=":
        return _choices_lookups(node.left, (node.right,)) or _choices_lookups(node.right, (node.left,))
    if isinstance(node, In):
        return _choices_lookups(node.value, node.choices)
    if isinstance(node, Or):
        return _or_lookups(node)
    if isinstance(node, And):
        return _and_lookups(node)
    return []


def evaluation_order(node: And) -> list[Node]:
    """Return the operands in evaluation order: exact lookups first, then other lookups, then the remaining operands."""
    return sorted(node.operands, key=lambda operand: _rank(find_lookups(operand)))


def _rank(lookups: list[EqualityLookup]) -> int:
    return 2 if not lookups else 1 - lookups[0].is_exact


def _choices_lookups(value: Node, choices: tuple[Node, ...]) -> list[EqualityLookup]:
    if not isinstance(value, Property):
        return []
    keys: dict[object, None] = {}
    for choice in choices:
        if not isinstance(choice, Constant):
            return []
        if type(choice.value) in KINDS:
            keys[index_key(choice.value)] = None
    return [EqualityLookup(tuple(EqualityTerm(value.key, key) for key in keys), is_exact=True)]


def _or_lookups(node: Or) -> list[EqualityLookup]:
    terms: dict[EqualityTerm, None] = {}
    is_exact = True
    for operand in node.operands:
        lookups = find_lookups(operand)
        if not lookups:
            return []
        smallest = min(lookups, key=lambda lookup: len(lookup.terms))
        terms.update(dict.fromkeys(smallest.terms))
        is_exact = is_exact and smallest.is_exact
    return [EqualityLookup(tuple(terms), is_exact)]


def _and_lookups(node: And) -> list[EqualityLookup]:
    """Return the lookups of all exact operands, which cannot fail, or else of the operand that is evaluated first."""
    # Calling find_lookups twice per operand would take time exponential in the depth of the tree.
    candidates = [lookup for lookups in sorted(map(find_lookups, node.operands), key=_rank) for lookup in lookups]
    exact = [lookup for lookup in candidates if lookup.is_exact]
    return [EqualityLookup(lookup.terms, is_exact=False) for lookup in exact or candidates[:1]]
