"""Which equalities a filter needs: what a dictionary can say of it before it is evaluated.

A lookup is a few properties with a value each; where none of them is equal, the filter is not true, and evaluating it
would not fail either. `a = 1 AND b > 2` has the lookup a = 1; `a = 1 OR b IN (2, 3)` has one with three terms;
`b > 2` has none.

Owns: finding lookups, and the order of evaluation that they promise: in a conjunction, what can be looked up comes
first. Without that order `1 / b = 1 AND a = 1` would fail or not, depending on who looks.
"""

from __future__ import annotations

from typing import NamedTuple

from twinbus.broker.filters.syntax_tree import And, Comparison, Constant, In, Node, Or, Property, PropertyKey
from twinbus.broker.filters.values import KINDS, index_key


class EqualityTerm(NamedTuple):
    """A property that has to have a value."""

    property_key: PropertyKey
    value_key: object
    """As `values.key_of` makes it."""


class EqualityLookup(NamedTuple):
    """One of these has to be so."""

    terms: tuple[EqualityTerm, ...]
    is_exact: bool
    """... and if one is, the filter is true."""


def find_lookups(node: Node) -> list[EqualityLookup]:
    """All lookups a filter has: any one of them will do. Without any, it has to be evaluated."""
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
    """The parts in the order in which they are evaluated: equalities, what has a lookup otherwise, the others."""
    return sorted(node.operands, key=lambda part: _rank(find_lookups(part)))


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
    for part in node.operands:
        found = find_lookups(part)
        if not found:
            return []
        chosen = min(found, key=lambda lookup: len(lookup.terms))
        terms.update(dict.fromkeys(chosen.terms))
        is_exact = is_exact and chosen.is_exact
    return [EqualityLookup(tuple(terms), is_exact)]


def _and_lookups(node: And) -> list[EqualityLookup]:
    """Those of all equalities, which cannot fail; or of the part that is evaluated first."""
    # Each part is asked once: asked twice, and so on down the tree, a nested filter would take for ever.
    found = [lookup for lookups in sorted(map(find_lookups, node.operands), key=_rank) for lookup in lookups]
    exact = [lookup for lookup in found if lookup.is_exact]
    return [EqualityLookup(lookup.terms, is_exact=False) for lookup in exact or found[:1]]
