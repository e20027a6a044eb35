"""Index of all rules of one topic, which finds the rules that match a message.

A rule that requires a property to equal a value is indexed by property and value, and costs nothing until a message has
this value. Rules that are always true are listed without evaluation. All other rules are evaluated one by one.

Owns the search. A search always has the same result as an evaluation of every rule in turn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, TypeAlias, TypeVar

from twinbus.broker.filters.cost import FULL_SIZE, SIZE_BITS
from twinbus.broker.filters.errors import FilterError
from twinbus.broker.filters.system_properties import SYSTEM_PROPERTIES
from twinbus.broker.filters.values import index_key

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    from twinbus.broker.filters.equality_lookup import EqualityLookup
    from twinbus.broker.filters.message_view import MessageView
    from twinbus.broker.filters.rule import CompiledRule
    from twinbus.broker.filters.syntax_tree import PropertyKey

Key = TypeVar("Key", bound="Hashable")
"""Key by which the owner of the index identifies a rule."""
_MAX_SCANNED_PROPERTIES: Final = 32
"""Up to this number of indexed properties, reading each indexed property is cheaper than listing the message's
properties."""
PAIR_BITS: Final = 1
"""Right shift that converts a number of scanned properties to cost units: scanning two properties costs about one
unit."""
MATCH_COST: Final = 1
"""Cost of a match without evaluation: adding the match and writing the copy take about one unit."""


class IndexedRule(Generic[Key]):
    """A rule in the index, with its key, its ordinal and its cost."""

    __slots__ = ("fixed_cost", "is_exact", "key", "lookup", "ordinal", "rule", "variable_cost")

    def __init__(self, key: Key, rule: CompiledRule, ordinal: int, lookup: EqualityLookup | None) -> None:
        """Create an entry; `lookup` is the lookup under which the rule is indexed, if any."""
        self.key = key
        self.rule = rule
        self.ordinal = ordinal
        self.lookup = lookup
        self.is_exact = lookup is not None and lookup.is_exact
        """Whether every message found by the lookup matches without evaluation."""
        self.fixed_cost, self.variable_cost = (MATCH_COST, 0) if self.is_exact else rule.cost


if TYPE_CHECKING:
    RulesByOrdinal: TypeAlias = dict[int, IndexedRule[Key]]
    """Rules by ordinal."""
    Matches: TypeAlias = list[tuple[IndexedRule[Key], FilterError | None]]
    """Rules that match, each with None, and rules whose evaluation failed, each with its error."""


class IncrementalMatch(Generic[Key]):
    """Search for the rules that match one message, in steps of limited cost."""

    __slots__ = ("_entries", "_next", "_size", "matches", "remaining_cost", "view")

    def __init__(
        self, view: MessageView, entries: list[IndexedRule[Key]], matches: Matches[Key], remaining_cost: int
    ) -> None:
        """Start with the rules in `matches`, which are always true; evaluating `entries` costs `remaining_cost`."""
        self.view = view
        self.matches = matches
        self.remaining_cost = remaining_cost
        self._entries = entries
        self._size = min(len(view.record), FULL_SIZE)
        self._next = 0

    def advance(self, budget: int) -> int:
        """Evaluate rules until their cost reaches `budget`; return the unused budget, which may be negative."""
        entries, size, start = self._entries, self._size, self._next
        if self.remaining_cost <= budget:
            units, end = self.remaining_cost, len(entries)
        else:
            units, end = 0, start
            while end < len(entries) and units < budget:
                entry = entries[end]
                units += entry.fixed_cost + (entry.variable_cost * size >> SIZE_BITS)
                end += 1
        _evaluate(entries[start:end], self.view, self.matches)
        self.remaining_cost -= units
        self._next = end
        return budget - units

    @property
    def is_done(self) -> bool:
        """Whether all rules were evaluated."""
        return self._next == len(self._entries)


class RuleIndex(Generic[Key]):
    """Rules of one topic by key, in the order in which they were added."""

    def __init__(self) -> None:
        """Create an empty index."""
        self._entries: dict[Key, IndexedRule[Key]] = {}
        self._always_true: dict[Key, tuple[IndexedRule[Key], FilterError | None]] = {}
        """Ready-made matches for the rules that are always true."""
        self._fixed_cost = 0
        """Fixed cost of all rules in `_unindexed`; `_variable_cost` is their variable cost."""
        self._variable_cost = 0
        self._unindexed: RulesByOrdinal[Key] = {}
        """Rules without a lookup, which must be evaluated for every message."""
        self._by_property: dict[PropertyKey, dict[object, RulesByOrdinal[Key]]] = {}
        """Indexed rules, by property and then by `index_key` of its value."""
        self._next_ordinal = 0
        self.action_count = 0
        """Number of rules that have an action."""
        self.last_cost = 0
        """Cost of the last successful `match_within`, in units."""

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Key]:
        return iter(self._entries)

    def __contains__(self, key: Key) -> bool:
        return key in self._entries

    def put(self, key: Key, rule: CompiledRule) -> None:
        """Add a rule after all others, replacing a rule with the same key."""
        if key in self._entries:
            self.remove(key)
        lookup = min(rule.lookups, key=self._bucket_size, default=None)
        entry = IndexedRule(key, rule, self._next_ordinal, lookup)
        self._next_ordinal += 1
        self._entries[key] = entry
        self.action_count += rule.action is not None
        if rule.is_always_true:
            self._always_true[key] = (entry, None)
        elif lookup is not None:
            for property_key, value in lookup.terms:
                self._by_property.setdefault(property_key, {}).setdefault(value, {})[entry.ordinal] = entry
        elif not rule.is_never_true:
            self._unindexed[entry.ordinal] = entry
            self._fixed_cost += entry.fixed_cost
            self._variable_cost += entry.variable_cost

    def remove(self, key: Key) -> None:
        """Remove a rule; raise KeyError if the index has no rule with this key."""
        entry = self._entries.pop(key)
        self.action_count -= entry.rule.action is not None
        self._always_true.pop(key, None)
        if self._unindexed.pop(entry.ordinal, None) is not None:
            self._fixed_cost -= entry.fixed_cost
            self._variable_cost -= entry.variable_cost
        for property_key, value in entry.lookup.terms if entry.lookup is not None else ():
            rules_by_value = self._by_property[property_key]
            del rules_by_value[value][entry.ordinal]
            if not rules_by_value[value]:
                del rules_by_value[value]
            if not rules_by_value:
                del self._by_property[property_key]

    def match(self, view: MessageView) -> list[tuple[Key, FilterError | None]]:
        """Return the keys of the rules that match a message, or whose evaluation failed.

        The key of a matching rule comes with None, the key of a failed rule comes with the error.
        Rules that are always true come first, then all other rules, both in the order in which they were added.
        """
        matches = list(self._always_true.values())
        _evaluate(self._with_unindexed(self._find_candidates(view)), view, matches)
        return [(entry.key, error) for entry, error in matches]

    def match_within(self, view: MessageView, budget: int) -> Matches[Key] | None:
        """Return the matching rules, like `match`, or None if the evaluation would cost more than `budget` units."""
        entries = self._find_candidates(view) if self._by_property else []
        units = self._cost(view, entries) if entries or self._variable_cost else self._fixed_cost
        if units > budget:
            return None
        matches = list(self._always_true.values())
        if entries or self._unindexed:
            _evaluate(self._with_unindexed(entries), view, matches)
        self.last_cost = units + (view.scanned_properties >> PAIR_BITS)
        return matches

    def begin_match(self, view: MessageView) -> IncrementalMatch[Key]:
        """Start a search in steps, which considers the rules that are in the index now."""
        entries = list(dict.fromkeys(self._find_candidates(view)))  # several terms may find the same rule
        units = self._cost(view, entries)
        return IncrementalMatch(view, self._with_unindexed(entries), list(self._always_true.values()), units)

    def _cost(self, view: MessageView, candidates: list[IndexedRule[Key]]) -> int:
        """Return the cost of evaluating the candidates and all rules without a lookup."""
        units, variable = self._fixed_cost, self._variable_cost
        for entry in candidates:
            units += entry.fixed_cost
            variable += entry.variable_cost
        return units + (variable * min(len(view.record), FULL_SIZE) >> SIZE_BITS) if variable else units

    def _with_unindexed(self, candidates: list[IndexedRule[Key]]) -> list[IndexedRule[Key]]:
        """Return the candidates and all rules without a lookup, in the order in which they were added to the index."""
        if self._unindexed:
            candidates.extend(self._unindexed.values())
        if len(candidates) > 1:
            candidates.sort(key=_ordinal_of)
        return candidates

    def _find_candidates(self, view: MessageView) -> list[IndexedRule[Key]]:
        entries: list[IndexedRule[Key]] = []
        tables = self._by_property
        for property_key in self._property_keys(view):
            value = view.value(property_key)
            if value is None:
                continue
            bucket = tables[property_key].get(index_key(value))
            if bucket is not None:
                entries.extend(bucket.values())
        return entries

    def _property_keys(self, view: MessageView) -> list[PropertyKey]:
        """Return the indexed properties; if there are many, return only those that the message may have."""
        tables = self._by_property
        if len(tables) <= _MAX_SCANNED_PROPERTIES:
            return list(tables)
        return [key for key in (*range(len(SYSTEM_PROPERTIES)), *view.user_property_keys()) if key in tables]

    def _bucket_size(self, lookup: EqualityLookup) -> tuple[int, int]:
        """Return a sort key: the size of the lookup's largest bucket, then its number of terms."""
        tables = self._by_property
        sizes = [len(tables.get(property_key, {}).get(value, ())) for property_key, value in lookup.terms]
        return max(sizes, default=0), len(sizes)


def _evaluate(entries: list[IndexedRule[Key]], view: MessageView, matches: Matches[Key]) -> None:
    """Add to `matches` the rules that match, or whose evaluation fails."""
    last = -1
    for entry in entries:
        if entry.ordinal == last:  # a duplicate, found by another term of the same rule
            continue
        last = entry.ordinal
        if entry.is_exact:
            matches.append((entry, None))
            continue
        try:
            if entry.rule.matches(view):
                matches.append((entry, None))
        except FilterError as error:
            matches.append((entry, error))


def _ordinal_of(entry: IndexedRule[Key]) -> int:
    return entry.ordinal
