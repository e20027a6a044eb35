"""A fragment that another process has.

Owns: nothing but the way to it. To the rest of the broker it is a fragment without messages: whoever receives from it,
settles or looks goes by `line`, `settlement` and `browsing`, which ask the owner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.broker.fragment import Fragment
from twinbus.broker.remote.browsing import RemoteBrowsing
from twinbus.broker.remote.line import RemoteLine, RemoteSessions
from twinbus.broker.remote.settlement import TAG_BYTES, RemoteSettlement

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from twinbus.broker.clock import Times
    from twinbus.broker.fragment import Policy
    from twinbus.broker.locks import TokenSource
    from twinbus.broker.remote.calls import Place
    from twinbus.broker.remote.journal import RemoteJournal
    from twinbus.model.errors import ServiceBusError


class RemoteFragment(Fragment):
    """One fragment, seen from another process."""

    def __init__(
        self,
        prefix: bytes,
        journal: RemoteJournal,
        policy: Policy,
        *,
        times: Times,
        tokens: TokenSource,
        place: Place,
        has_sessions: bool = False,
    ) -> None:
        """`place` is how its owner knows it."""
        super().__init__(prefix, journal, policy, times=times, tokens=tokens)
        self.owner = journal.owner
        self.place = place
        if has_sessions:
            self.sessions = RemoteSessions(self)
        self.line = self.sessions or RemoteLine(self)
        self.settlement = RemoteSettlement(self)
        self.browsing = RemoteBrowsing(self)

    def lock_numbers(self, tags: Iterable[bytes]) -> list[int]:
        """Only the owner knows which locks there are: to it a lock's number is its tag."""
        return [int.from_bytes(tag) if len(tag) == TAG_BYTES else 0 for tag in tags]

    def load(self, done: Callable[[ServiceBusError | None], None]) -> None:
        """There is nothing to be read here."""
        done(None)

    def settled_down(self) -> None:
        """An outage that was rehearsed is over."""
        self.line.dispatch()
