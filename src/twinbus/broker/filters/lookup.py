"""Which equalities a filter needs: what a dictionary can say of it before it is evaluated.

A lookup is a few properties with a value each; where none of them is equal, the filter is not true, and evaluating it
would not fail either. `a = 1 AND b > 2` has the lookup a = 1; `a = 1 OR b IN (2, 3)` has one with three terms;
`b > 2` has none.

Owns: finding lookups, and the order of evaluation that they promise: in a conjunction, what can be looked up comes
first. Without that order `1 / b = 1 AND a = 1` would fail or not, depending on who looks.
"""

from __future__ import annotations

from typing import NamedTuple

from twinbus.broker.filters.nodes import Address, And, Compare, Constant, Node, OneOf, Or, Property
from twinbus.broker.filters.values import KINDS, key_of


class Term(NamedTuple):
    """A property that has to have a value."""

    address: Address
    key: object
    """As `values.key_of` makes it."""


class Lookup(NamedTuple):
    """One of these has to be so."""

    terms: tuple[Term, ...]
    is_exact: bool
    """... and if one is, the filter is true."""


def lookups_of(node: Node) -> list[Lookup]:
    """All lookups a filter has: any one of them will do. Without any, it has to be evaluated."""
    if isinstance(node, Compare) and node.sign == "=":
        return _of_choices(node.left, (node.right,)) or _of_choices(node.right, (node.left,))
    if isinstance(node, OneOf):
        return _of_choices(node.value, node.choices)
    if isinstance(node, Or):
        return _of_alternatives(node)
    if isinstance(node, And):
        return _of_conjunction(node)
    return []


def in_order(node: And) -> list[Node]:
    """The parts in the order in which they are evaluated: equalities, what has a lookup otherwise, the others."""
    return sorted(node.parts, key=lambda part: _rank(lookups_of(part)))


def _rank(lookups: list[Lookup]) -> int:
    return 2 if not lookups else 1 - lookups[0].is_exact


def _of_choices(value: Node, choices: tuple[Node, ...]) -> list[Lookup]:
    if not isinstance(value, Property):
        return []
    keys: dict[object, None] = {}
    for choice in choices:
        if not isinstance(choice, Constant):
            return []
        if type(choice.value) in KINDS:
            keys[key_of(choice.value)] = None
    return [Lookup(tuple(Term(value.address, key) for key in keys), is_exact=True)]


def _of_alternatives(node: Or) -> list[Lookup]:
    terms: dict[Term, None] = {}
    is_exact = True
    for part in node.parts:
        found = lookups_of(part)
        if not found:
            return []
        chosen = min(found, key=lambda lookup: len(lookup.terms))
        terms.update(dict.fromkeys(chosen.terms))
        is_exact = is_exact and chosen.is_exact
    return [Lookup(tuple(terms), is_exact)]


def _of_conjunction(node: And) -> list[Lookup]:
    """Those of all equalities, which cannot fail; or of the part that is evaluated first."""
    # Each part is asked once: asked twice, and so on down the tree, a nested filter would take for ever.
    found = [lookup for lookups in sorted(map(lookups_of, node.parts), key=_rank) for lookup in lookups]
    exact = [lookup for lookup in found if lookup.is_exact]
    return [Lookup(lookup.terms, is_exact=False) for lookup in exact or found[:1]]
