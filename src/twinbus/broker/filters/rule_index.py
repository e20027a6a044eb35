"""All rules of one topic, and those of them that a message matches.

A rule that needs some property to be equal to something lies in a dictionary under that, and costs nothing until a
message has it. A rule that is true for all messages is only listed. The others are evaluated, one after the other.

Owns: finding. That an index and evaluating one rule after the other say the same is what its tests are about.
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
"""What its owner knows a rule by."""
_MAX_SCANNED_PROPERTIES: Final = 32
"""Properties named by rules, up to which looking at each is cheaper than asking a message which ones it has."""
PAIR_BITS: Final = 1
"""Walking over two properties of a message costs about one unit."""
MATCH_COST: Final = 1
"""Units for a match without evaluation: listing it, and writing the copy that comes of it, take about as long."""


class IndexedRule(Generic[Key]):
    """One rule in the index."""

    __slots__ = ("fixed_cost", "is_exact", "key", "lookup", "ordinal", "rule", "variable_cost")

    def __init__(self, key: Key, rule: CompiledRule, ordinal: int, lookup: EqualityLookup | None) -> None:
        """`lookup` is the one that it lies under, if any."""
        self.key = key
        self.rule = rule
        self.ordinal = ordinal
        self.lookup = lookup
        self.is_exact = lookup is not None and lookup.is_exact
        """A message under whose property it is found matches: there is nothing to evaluate."""
        self.fixed_cost, self.variable_cost = (MATCH_COST, 0) if self.is_exact else rule.cost


if TYPE_CHECKING:
    RulesByOrdinal: TypeAlias = dict[int, IndexedRule[Key]]
    """Rules by their ordinals."""
    Matches: TypeAlias = list[tuple[IndexedRule[Key], FilterError | None]]
    """Rules that match, or fail with an error."""


class IncrementalMatch(Generic[Key]):
    """Finding the rules that one message matches, some at a time."""

    __slots__ = ("_entries", "_next", "_size", "matches", "remaining_cost", "view")

    def __init__(
        self, view: MessageView, entries: list[IndexedRule[Key]], matches: Matches[Key], remaining_cost: int
    ) -> None:
        """`found` are those that match in any case, `entries` those that are left; to evaluate these costs `units`."""
        self.view = view
        self.matches = matches
        self.remaining_cost = remaining_cost
        self._entries = entries
        self._size = min(len(view.record), FULL_SIZE)
        self._next = 0

    def advance(self, budget: int) -> int:
        """Evaluate until so many units are used up. Returns what is left of them, which may be less than nothing."""
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
        """None is left."""
        return self._next == len(self._entries)


class RuleIndex(Generic[Key]):
    """Rules, each under a key."""

    def __init__(self) -> None:
        """Empty."""
        self._entries: dict[Key, IndexedRule[Key]] = {}
        self._always_true: dict[Key, tuple[IndexedRule[Key], FilterError | None]] = {}
        """What is told of the rules that are true for all messages."""
        self._fixed_cost = 0
        """What all of `_evaluated` cost, as `cost` has it."""
        self._variable_cost = 0
        self._unindexed: RulesByOrdinal[Key] = {}
        """Rules that have no lookup."""
        self._by_property: dict[PropertyKey, dict[object, RulesByOrdinal[Key]]] = {}
        """The others: by property, then by the key of its value."""
        self._next_ordinal = 0
        self.action_count = 0
        """How many rules have an action."""
        self.last_cost = 0
        """What the last `match_within` cost, in units."""

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Key]:
        return iter(self._entries)

    def __contains__(self, key: Key) -> bool:
        return key in self._entries

    def put(self, key: Key, rule: CompiledRule) -> None:
        """Add a rule behind all others; one with the same key goes."""
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
            for address, value in lookup.terms:
                self._by_property.setdefault(address, {}).setdefault(value, {})[entry.ordinal] = entry
        elif not rule.is_never_true:
            self._unindexed[entry.ordinal] = entry
            self._fixed_cost += entry.fixed_cost
            self._variable_cost += entry.variable_cost

    def remove(self, key: Key) -> None:
        """Take a rule away; KeyError if there is none."""
        entry = self._entries.pop(key)
        self.action_count -= entry.rule.action is not None
        self._always_true.pop(key, None)
        if self._unindexed.pop(entry.ordinal, None) is not None:
            self._fixed_cost -= entry.fixed_cost
            self._variable_cost -= entry.variable_cost
        for address, value in entry.lookup.terms if entry.lookup is not None else ():
            table = self._by_property[address]
            del table[value][entry.ordinal]
            if not table[value]:
                del table[value]
            if not table:
                del self._by_property[address]

    def match(self, view: MessageView) -> list[tuple[Key, FilterError | None]]:
        """The rules that a message matches, or fails, with the error then.

        First those that are true for all messages, then the others, both in the order in which they were put.
        """
        found = list(self._always_true.values())
        _evaluate(self._with_unindexed(self._find_candidates(view)), view, found)
        return [(entry.key, error) for entry, error in found]

    def match_within(self, view: MessageView, budget: int) -> Matches[Key] | None:
        """The same, all at once, with what is known of the rules; None if that costs more than so many units."""
        entries = self._find_candidates(view) if self._by_property else []
        units = self._cost(view, entries) if entries or self._variable_cost else self._fixed_cost
        if units > budget:
            return None
        found = list(self._always_true.values())
        if entries or self._unindexed:
            _evaluate(self._with_unindexed(entries), view, found)
        self.last_cost = units + (view.scanned_properties >> PAIR_BITS)
        return found

    def begin_match(self, view: MessageView) -> IncrementalMatch[Key]:
        """The same in steps: what comes of it is about the rules that are there now."""
        entries = list(dict.fromkeys(self._find_candidates(view)))  # one may be found by several of its terms
        units = self._cost(view, entries)
        return IncrementalMatch(view, self._with_unindexed(entries), list(self._always_true.values()), units)

    def _cost(self, view: MessageView, candidates: list[IndexedRule[Key]]) -> int:
        """What it costs to evaluate rules that were looked up, and all others."""
        units, sized = self._fixed_cost, self._variable_cost
        for entry in candidates:
            units += entry.fixed_cost
            sized += entry.variable_cost
        return units + (sized * min(len(view.record), FULL_SIZE) >> SIZE_BITS) if sized else units

    def _with_unindexed(self, candidates: list[IndexedRule[Key]]) -> list[IndexedRule[Key]]:
        """These and all that have no lookup, in the order in which they were put."""
        if self._unindexed:
            candidates.extend(self._unindexed.values())
        if len(candidates) > 1:
            candidates.sort(key=_ordinal_of)
        return candidates

    def _find_candidates(self, view: MessageView) -> list[IndexedRule[Key]]:
        entries: list[IndexedRule[Key]] = []
        tables = self._by_property
        for address in self._property_keys(view):
            value = view.value(address)
            if value is None:
                continue
            bucket = tables[address].get(index_key(value))
            if bucket is not None:
                entries.extend(bucket.values())
        return entries

    def _property_keys(self, view: MessageView) -> list[PropertyKey]:
        """The properties to look at: those that rules name, or where these are many, those that the message has."""
        tables = self._by_property
        if len(tables) <= _MAX_SCANNED_PROPERTIES:
            return list(tables)
        return [
            address for address in (*range(len(SYSTEM_PROPERTIES)), *view.user_property_keys()) if address in tables
        ]

    def _bucket_size(self, lookup: EqualityLookup) -> tuple[int, int]:
        """How many rules lie under a lookup already: two conditions are better spread over many values than one."""
        tables = self._by_property
        crowds = [len(tables.get(address, {}).get(value, ())) for address, value in lookup.terms]
        return max(crowds, default=0), len(crowds)


def _evaluate(entries: list[IndexedRule[Key]], view: MessageView, matches: Matches[Key]) -> None:
    """Add those rules to `found` that match, or fail."""
    last = -1
    for entry in entries:
        if entry.ordinal == last:  # found by two of its terms
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
