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


class Entry(Generic[Key]):
    """One rule in the index."""

    __slots__ = ("is_exact", "key", "lookup", "ordinal", "rule")

    def __init__(self, key: Key, rule: CompiledRule, ordinal: int, lookup: Lookup | None) -> None:
        """`lookup` is the one that it lies under, if any."""
        self.key = key
        self.rule = rule
        self.ordinal = ordinal
        self.lookup = lookup
        self.is_exact = lookup is not None and lookup.is_exact
        """A message under whose property it is found matches: there is nothing to evaluate."""


if TYPE_CHECKING:
    Bucket: TypeAlias = dict[int, Entry[Key]]
    """Rules by their ordinals."""
    Found: TypeAlias = list[tuple[Entry[Key], FilterError | None]]
    """Rules that match, or fail with an error."""


class Matching(Generic[Key]):
    """Finding the rules that one message matches: all at once, or some at a time."""

    __slots__ = ("_entries", "_next", "_size", "found", "units", "view")

    def __init__(self, view: View, entries: list[Entry[Key]], found: Found[Key], units: int, size: int) -> None:
        """`found` are those that match in any case, `entries` those that are left; to evaluate these costs `units`."""
        self.view = view
        self.found = found
        self.units = units
        self._entries = entries
        self._size = size
        self._next = 0

    def finish(self) -> None:
        """Evaluate all that are left."""
        found, view, last = self.found, self.view, -1
        for entry in self._entries[self._next :] if self._next else self._entries:
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
        self.units, self._next = 0, len(self._entries)

    def go_on(self, allowance: int) -> int:
        """Evaluate until so many units are used up. Returns what is left of them, which may be less than nothing."""
        entries, view, size = self._entries, self.view, self._size
        while self._next < len(entries) and allowance > 0:
            entry = entries[self._next]
            self._next += 1
            if self._next > 1 and entry.ordinal == entries[self._next - 2].ordinal:
                continue
            if not entry.is_exact:
                units = entry.rule.cost.fixed + (entry.rule.cost.sized * size >> SIZE_BITS)
                allowance -= units
                self.units -= units
            try:
                if entry.is_exact or entry.rule.matches(view):
                    self.found.append((entry, None))
            except FilterError as error:
                self.found.append((entry, error))
        return allowance

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
            self._fixed += rule.cost.fixed
            self._sized += rule.cost.sized

    def remove(self, key: Key) -> None:
        """Take a rule away; KeyError if there is none."""
        entry = self._entries.pop(key)
        self.actions -= entry.rule.action is not None
        self._always.pop(key, None)
        if self._evaluated.pop(entry.ordinal, None) is not None:
            self._fixed -= entry.rule.cost.fixed
            self._sized -= entry.rule.cost.sized
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
        matching = self.begin(view)
        matching.finish()
        return [(entry.key, error) for entry, error in matching.found]

    def begin(self, view: View) -> Matching[Key]:
        """The same in steps: what comes of it is about the rules that are there now."""
        size = min(len(view.record), FULL_SIZE)
        entries = self._looked_up(view)
        units = self._fixed + (self._sized * size >> SIZE_BITS)
        for entry in entries:
            if not entry.is_exact:
                units += entry.rule.cost.fixed + (entry.rule.cost.sized * size >> SIZE_BITS)
        entries.extend(self._evaluated.values())
        if len(entries) > 1:
            entries.sort(key=_ordinal)
        return Matching(view, entries, list(self._always.values()), units, size)

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


def _ordinal(entry: Entry[Key]) -> int:
    return entry.ordinal
