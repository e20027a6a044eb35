"""A fragment that another process owns.

Owns: nothing but the way to it: receivers, settlements and readers ask the owner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.broker.ports.fragment import FragmentPort
from twinbus.broker.ports.peer_protocol import Managed
from twinbus.broker.remote.browsing import RemoteBrowsing
from twinbus.broker.remote.line import RemoteDispatch
from twinbus.broker.remote.settlement import TAG_BYTES, RemoteSettlement
from twinbus.model.errors import ServiceBusError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from twinbus.broker.clock import Times
    from twinbus.broker.ports.fragment import ManagementRequest
    from twinbus.broker.ports.peer_protocol import Answer, Place
    from twinbus.broker.remote.journal import RemoteStore
    from twinbus.broker.remote.owner import Owner


class RemoteFragment(FragmentPort):
    """One fragment, as another process than its owner sees it."""

    def __init__(self, place: Place, store: RemoteStore, *, times: Times, has_sessions: bool = False) -> None:
        """`place` is how its owner knows it."""
        super().__init__(place[1], times, has_sessions=has_sessions)
        self.store = store
        self.place = place
        self._line = RemoteDispatch(self)
        self._settlement = RemoteSettlement(self)
        self._browsing = RemoteBrowsing(self)

    @property
    def line(self) -> RemoteDispatch:
        """Who receives from it."""
        return self._line

    @property
    def settlement(self) -> RemoteSettlement:
        """The ends of its locks."""
        return self._settlement

    @property
    def browsing(self) -> RemoteBrowsing:
        """Looking at its messages."""
        return self._browsing

    @property
    def owner(self) -> Owner:
        """The process that owns it."""
        return self.store.owner

    @property
    def is_available(self) -> bool:
        """Whether its store works, as far as is known."""
        return self.store.trouble is None

    @property
    def takes_sends(self) -> bool:
        """Whether its store takes messages, as far as is known."""
        return self.store.takes_sends

    def check_works(self) -> None:
        """Raise StoreUnavailable if its store does not work, as far as is known."""
        self.store.check_works()

    def check_takes_sends(self) -> None:
        """Raise StoreUnavailable or ServerBusy if its store takes no messages, as far as is known."""
        self.store.check_takes_sends()

    def lock_numbers(self, tags: Iterable[bytes]) -> list[int]:
        """Return tags as numbers: only the owner knows which locks there are."""
        return [int.from_bytes(tag) if len(tag) == TAG_BYTES else 0 for tag in tags]

    @property
    def admits_later(self) -> bool:
        """Whether the owner is connected, and will admit a receiver."""
        return self.owner.is_there

    @property
    def reserves_credit(self) -> bool:
        """Credit that is lent to the owner cannot be offered to others."""
        return True

    def manage(self, request: ManagementRequest, act: Callable[[], None]) -> None:  # noqa: ARG002
        """Have a request carried out by the owner. StoreUnavailable."""
        reply = request.reply

        def told(answer: Answer | ServiceBusError) -> None:
            if isinstance(answer, Managed):
                reply(answer.response)
            else:
                assert isinstance(answer, ServiceBusError)
                reply(answer)

        call = request.kind(self.place, request.arguments(), request.client, request.transaction)
        self.owner.ask(call, told)
