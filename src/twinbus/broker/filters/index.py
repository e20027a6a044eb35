"""All rules of one topic, and those of them that a message matches.

A rule that needs some property to be equal to something lies in a dictionary under that, and costs nothing until a
message has it. A rule that is true for all messages is only listed. The others are evaluated, one after the other.

Owns: finding. That an index and evaluating one rule after the other say the same is what its tests are about.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, TypeAlias, TypeVar

from twinbus.broker.filters.cost import FULL_SIZE, SIZE_BITS
from twinbus.broker.filters.errors import FilterError
from twinbus.broker.filters.system import SYSTEM
from twinbus.broker.filters.values import key_of

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    from twinbus.broker.filters.lookup import Lookup
    from twinbus.broker.filters.nodes import Address
    from twinbus.broker.filters.rule import CompiledRule
    from twinbus.broker.filters.view import View

Key = TypeVar("Key", bound="Hashable")
"""What its owner knows a rule by."""
_FEW: Final = 32
"""Properties named by rules, up to which looking at each is cheaper than asking a message which ones it has."""
PAIR_BITS: Final = 1
"""Walking over two properties of a message costs about one unit."""
OF_MATCH: Final = 1
"""Units for a match without evaluation: listing it, and writing the copy that comes of it, take about as long."""


class Entry(Generic[Key]):
    """One rule in the index."""

    __slots__ = ("fixed", "is_exact", "key", "lookup", "ordinal", "rule", "sized")

    def __init__(self, key: Key, rule: CompiledRule, ordinal: int, lookup: Lookup | None) -> None:
        """`lookup` is the one that it lies under, if any."""
        self.key = key
        self.rule = rule
        self.ordinal = ordinal
        self.lookup = lookup
        self.is_exact = lookup is not None and lookup.is_exact
        """A message under whose property it is found matches: there is nothing to evaluate."""
        self.fixed, self.sized = (OF_MATCH, 0) if self.is_exact else rule.cost


if TYPE_CHECKING:
    Bucket: TypeAlias = dict[int, Entry[Key]]
    """Rules by their ordinals."""
    Found: TypeAlias = list[tuple[Entry[Key], FilterError | None]]
    """Rules that match, or fail with an error."""


class Matching(Generic[Key]):
    """Finding the rules that one message matches, some at a time."""

    __slots__ = ("_entries", "_next", "_size", "found", "units", "view")

    def __init__(self, view: View, entries: list[Entry[Key]], found: Found[Key], units: int) -> None:
        """`found` are those that match in any case, `entries` those that are left; to evaluate these costs `units`."""
        self.view = view
        self.found = found
        self.units = units
        self._entries = entries
        self._size = min(len(view.record), FULL_SIZE)
        self._next = 0

    def go_on(self, allowance: int) -> int:
        """Evaluate until so many units are used up. Returns what is left of them, which may be less than nothing."""
        entries, size, start = self._entries, self._size, self._next
        if self.units <= allowance:
            units, end = self.units, len(entries)
        else:
            units, end = 0, start
            while end < len(entries) and units < allowance:
                entry = entries[end]
                units += entry.fixed + (entry.sized * size >> SIZE_BITS)
                end += 1
        _evaluate(entries[start:end], self.view, self.found)
        self.units -= units
        self._next = end
        return allowance - units

    @property
    def is_done(self) -> bool:
        """None is left."""
        return self._next == len(self._entries)


class RuleIndex(Generic[Key]):
    """Rules, each under a key."""

    def __init__(self) -> None:
        """Empty."""
        self._entries: dict[Key, Entry[Key]] = {}
        self._always: dict[Key, tuple[Entry[Key], FilterError | None]] = {}
        """What is told of the rules that are true for all messages."""
        self._fixed = 0
        """What all of `_evaluated` cost, as `cost` has it."""
        self._sized = 0
        self._evaluated: Bucket[Key] = {}
        """Rules that have no lookup."""
        self._tables: dict[Address, dict[object, Bucket[Key]]] = {}
        """The others: by property, then by the key of its value."""
        self._next_ordinal = 0
        self.actions = 0
        """How many rules have an action."""
        self.spent = 0
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
        lookup = min(rule.lookups, key=self._crowd, default=None)
        entry = Entry(key, rule, self._next_ordinal, lookup)
        self._next_ordinal += 1
        self._entries[key] = entry
        self.actions += rule.action is not None
        if rule.is_always:
            self._always[key] = (entry, None)
        elif lookup is not None:
            for address, value in lookup.terms:
                self._tables.setdefault(address, {}).setdefault(value, {})[entry.ordinal] = entry
        elif not rule.is_never:
            self._evaluated[entry.ordinal] = entry
            self._fixed += entry.fixed
            self._sized += entry.sized

    def remove(self, key: Key) -> None:
        """Take a rule away; KeyError if there is none."""
        entry = self._entries.pop(key)
        self.actions -= entry.rule.action is not None
        self._always.pop(key, None)
        if self._evaluated.pop(entry.ordinal, None) is not None:
            self._fixed -= entry.fixed
            self._sized -= entry.sized
        for address, value in entry.lookup.terms if entry.lookup is not None else ():
            table = self._tables[address]
            del table[value][entry.ordinal]
            if not table[value]:
                del table[value]
            if not table:
                del self._tables[address]

    def match(self, view: View) -> list[tuple[Key, FilterError | None]]:
        """The rules that a message matches, or fails, with the error then.

        First those that are true for all messages, then the others, both in the order in which they were put.
        """
        found = list(self._always.values())
        _evaluate(self._in_order(self._looked_up(view)), view, found)
        return [(entry.key, error) for entry, error in found]

    def match_within(self, view: View, allowance: int) -> Found[Key] | None:
        """The same, all at once, with what is known of the rules; None if that costs more than so many units."""
        entries = self._looked_up(view) if self._tables else []
        units = self._units(view, entries) if entries or self._sized else self._fixed
        if units > allowance:
            return None
        found = list(self._always.values())
        if entries or self._evaluated:
            _evaluate(self._in_order(entries), view, found)
        self.spent = units + (view.pairs >> PAIR_BITS)
        return found

    def begin(self, view: View) -> Matching[Key]:
        """The same in steps: what comes of it is about the rules that are there now."""
        entries = list(dict.fromkeys(self._looked_up(view)))  # one may be found by several of its terms
        units = self._units(view, entries)
        return Matching(view, self._in_order(entries), list(self._always.values()), units)

    def _units(self, view: View, looked_up: list[Entry[Key]]) -> int:
        """What it costs to evaluate rules that were looked up, and all others."""
        units, sized = self._fixed, self._sized
        for entry in looked_up:
            units += entry.fixed
            sized += entry.sized
        return units + (sized * min(len(view.record), FULL_SIZE) >> SIZE_BITS) if sized else units

    def _in_order(self, looked_up: list[Entry[Key]]) -> list[Entry[Key]]:
        """These and all that have no lookup, in the order in which they were put."""
        if self._evaluated:
            looked_up.extend(self._evaluated.values())
        if len(looked_up) > 1:
            looked_up.sort(key=_ordinal)
        return looked_up

    def _looked_up(self, view: View) -> list[Entry[Key]]:
        entries: list[Entry[Key]] = []
        tables = self._tables
        for address in self._addresses(view):
            value = view.value(address)
            if value is None:
                continue
            bucket = tables[address].get(key_of(value))
            if bucket is not None:
                entries.extend(bucket.values())
        return entries

    def _addresses(self, view: View) -> list[Address]:
        """The properties to look at: those that rules name, or where these are many, those that the message has."""
        tables = self._tables
        if len(tables) <= _FEW:
            return list(tables)
        return [address for address in (*range(len(SYSTEM)), *view.names()) if address in tables]

    def _crowd(self, lookup: Lookup) -> tuple[int, int]:
        """How many rules lie under a lookup already: two conditions are better spread over many values than one."""
        tables = self._tables
        crowds = [len(tables.get(address, {}).get(value, ())) for address, value in lookup.terms]
        return max(crowds, default=0), len(crowds)


def _evaluate(entries: list[Entry[Key]], view: View, found: Found[Key]) -> None:
    """Add those rules to `found` that match, or fail."""
    last = -1
    for entry in entries:
        if entry.ordinal == last:  # found by two of its terms
            continue
        last = entry.ordinal
        if entry.is_exact:
            found.append((entry, None))
            continue
        try:
            if entry.rule.matches(view):
                found.append((entry, None))
        except FilterError as error:
            found.append((entry, error))


def _ordinal(entry: Entry[Key]) -> int:
    return entry.ordinal
