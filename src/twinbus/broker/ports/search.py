"""Criteria and results of a message search in a fragment.

Owns the criteria and the result of one request. `broker.fragment.message_search` searches.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from typing import TypeAlias

    from twinbus.broker.filters.rule import CompiledRule
    from twinbus.model.errors import ServiceBusError

    OnFound: TypeAlias = Callable[["SearchResult | ServiceBusError"], None]

ACTIVE: Final = "active"
DEFERRED: Final = "deferred"
SCHEDULED: Final = "scheduled"
STATES: Final = (ACTIVE, DEFERRED, SCHEDULED)


@dataclass(frozen=True, slots=True)
class SearchCriteria:
    """What to search for, and how far."""

    from_sequence: int
    states: Collection[str]
    rule: CompiledRule | None
    """The filter; None finds all messages."""
    max_messages: int
    max_scanned: int
    max_bytes: int


@dataclass(slots=True)
class SearchResult:
    """The messages found, and where to continue."""

    next_sequence: int
    """The first sequence number that was not searched."""
    end_sequence: int = 0
    """The sequence number after that of the last message in the fragment."""
    messages: list[bytes] = field(default_factory=list)
    scanned_count: int = 0

    @property
    def is_finished(self) -> bool:
        """Whether all messages of the fragment were searched."""
        return self.next_sequence >= self.end_sequence
