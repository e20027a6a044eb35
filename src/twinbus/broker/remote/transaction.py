"""A transaction on an entity, or a part of one, that another process has.

Owns: the way to its owner, which has the locks that are to be settled. What is sent in it stays here until it is
committed, and goes there with the commit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.broker.remote.calls import Commit, RollBack, SetApart
from twinbus.broker.remote.settlement import encoded, tags_of
from twinbus.model.errors import ServiceBusError, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from twinbus.broker.fragment import Fragment
    from twinbus.broker.journal import Answered
    from twinbus.broker.remote.calls import Answer, Sent
    from twinbus.broker.remote.part import RemotePart
    from twinbus.broker.settlement import How


class RemoteTransaction:
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
        fragment: Fragment,
        numbers: list[int],
        how: How,
        properties: Mapping[str, object] | None,
        told: Callable[[bool], None],
    ) -> None:
        """Settle messages that are locked; one whose lock is lost fails the commit. StoreUnavailable."""
        fragment.journal.check_works()
        self._check_known()
        self._told.append(told)
        call = SetApart(self.number, fragment.place, tags_of(numbers), how.value, encoded(properties))  # type: ignore[attr-defined]
        self._owner.tell(call)

    def roll_back(self) -> None:
        """Nothing of it is done."""
        self._owner.tell(RollBack(self.number))
        self._end(is_done=False)

    def commit(self, sent: list[Sent], answer: Answered) -> None:
        """Do all of it; `answer` hears when it is on disk, or why nothing of it was done."""

        def told(outcome: Answer | ServiceBusError) -> None:
            error = outcome if isinstance(outcome, ServiceBusError) else None
            self._end(is_done=error is None)
            answer(error)

        try:
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
