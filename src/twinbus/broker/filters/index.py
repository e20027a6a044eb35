"""All rules of one topic, and those of them that a message matches.

A rule that needs some property to be equal to something lies in a dictionary under that, and costs nothing until a
message has it. A rule that is true for all messages is only listed. The others are evaluated, one after the other.

Owns: finding. That an index and evaluating one rule after the other say the same is what its tests are about.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, TypeAlias, TypeVar

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

    __slots__ = ("key", "lookup", "ordinal", "rule")

    def __init__(self, key: Key, rule: CompiledRule, ordinal: int, lookup: Lookup | None) -> None:
        """`lookup` is the one that it lies under, if any."""
        self.key = key
        self.rule = rule
        self.ordinal = ordinal
        self.lookup = lookup


if TYPE_CHECKING:
    Bucket: TypeAlias = dict[int, Entry[Key]]
    """Rules by their ordinals."""


class RuleIndex(Generic[Key]):
    """Rules, each under a key."""

    def __init__(self) -> None:
        """Empty."""
        self._entries: dict[Key, Entry[Key]] = {}
        self._always: dict[Key, tuple[Key, FilterError | None]] = {}
        """What is told of the rules that are true for all messages."""
        self._evaluated: Bucket[Key] = {}
        """Rules that have no lookup."""
        self._tables: dict[Address, dict[object, Bucket[Key]]] = {}
        """The others: by property, then by the key of its value."""
        self._next_ordinal = 0

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
        if rule.is_always:
            self._always[key] = (key, None)
        elif lookup is not None:
            for address, value in lookup.terms:
                self._tables.setdefault(address, {}).setdefault(value, {})[entry.ordinal] = entry
        elif not rule.is_never:
            self._evaluated[entry.ordinal] = entry

    def remove(self, key: Key) -> None:
        """Take a rule away; KeyError if there is none."""
        entry = self._entries.pop(key)
        self._always.pop(key, None)
        self._evaluated.pop(entry.ordinal, None)
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
        entries = self._looked_up(view)
        entries.extend(self._evaluated.values())
        if len(entries) > 1:
            entries.sort(key=_ordinal)
        last = -1
        for entry in entries:
            if entry.ordinal == last:  # found by two of its terms
                continue
            last = entry.ordinal
            if entry.lookup is not None and entry.lookup.is_exact:
                found.append((entry.key, None))
                continue
            try:
                if entry.rule.matches(view):
                    found.append((entry.key, None))
            except FilterError as error:
                found.append((entry.key, error))
        return found

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
