"""A transaction on an entity, or a part of one, that another process has.

Owns: the way to its owner, which has the locks that are to be settled. What is sent in it stays here until it is
committed, and goes there with the commit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.broker.ports.fragment import TransactionPort
from twinbus.broker.ports.peer_protocol import Commit, RollBack, SetApart
from twinbus.broker.remote.fragment import RemoteFragment
from twinbus.broker.remote.settlement import encoded, tags_of
from twinbus.model.callbacks import ignore
from twinbus.model.errors import ServiceBusError, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from twinbus.broker.ports.callbacks import Answered
    from twinbus.broker.ports.fragment import FragmentPort
    from twinbus.broker.ports.peer_protocol import Answer, Sent
    from twinbus.broker.ports.settlement import How
    from twinbus.broker.remote.part import RemotePart


class RemoteTransaction(TransactionPort):
    """What one client wants done together, elsewhere."""

    def __init__(self, part: RemotePart) -> None:
        """Bound to a part that another process owns."""
        self._part = part
        self._owner = part.owner
        self._life = part.owner.life
        self.number = part.owner.next_number()
        self._told: list[Callable[[bool], None]] = []

    def settle(
        self,
        fragment: FragmentPort,
        numbers: list[int],
        how: How,
        properties: Mapping[str, object] | None,
        told: Callable[[bool], None],
    ) -> list[int]:
        """Settle messages at the commit; a lock that is lost fails the commit. StoreUnavailable."""
        assert isinstance(fragment, RemoteFragment)
        fragment.check_works()
        self._check_known()
        self._told.append(told)
        self._owner.tell(SetApart(self.number, fragment.place, tags_of(numbers), how.value, encoded(properties)))
        return []

    def schedule(self, records: list[bytes]) -> list[int]:
        """Scheduled messages are carried to the owner as a request to `$management`."""
        raise AssertionError(records)

    def roll_back(self) -> None:
        """Nothing of it is done."""
        self._owner.tell(RollBack(self.number))
        self._end(is_done=False)

    def commit(self, sent: list[Sent], answer: Answered = ignore) -> None:
        """Do all of it; `answer` hears when it is on disk, or why nothing of it was done."""

        def told(outcome: Answer | ServiceBusError) -> None:
            error = outcome if isinstance(outcome, ServiceBusError) else None
            self._end(is_done=error is None)
            answer(error)

        try:
            if sent:
                self._part.entity.check_sends()
            self._check_known()
            self._owner.ask(Commit(self.number, self._part.entity.entity_id, self._part.number, sent), told)
        except ServiceBusError as error:
            self.roll_back()
            answer(error)

    def _check_known(self) -> None:
        """StoreUnavailable if its owner has gone since it began, also if that is there again: it has rolled it back."""
        if self._owner.life != self._life:
            raise StoreUnavailable(f"{self._owner.name} was away since the transaction began: it is rolled back there")

    def _end(self, *, is_done: bool) -> None:
        waiting, self._told = self._told, []
        for told in waiting:
            told(is_done)
