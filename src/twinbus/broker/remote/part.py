"""Parts of entities whose stores belong to another process.

Owns: carrying what is sent to such a part to its owner, and what the owner said last that the part holds. Descriptions,
rules and status are known in every process, and applied by the owner.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from twinbus.broker.part import Part
from twinbus.broker.part_factory import PartFactory
from twinbus.broker.ports.fragment import TransactionPort
from twinbus.broker.ports.peer_protocol import SUB_QUEUES, Arrive, Commit, Numbers, RollBack, Send, SendOn, SetApart
from twinbus.broker.remote.fragment import RemoteFragment
from twinbus.broker.remote.settlement import encoded, tags_of
from twinbus.model.callbacks import ignore
from twinbus.model.errors import ServiceBusError, StoreUnavailable
from twinbus.model.path import SubQueue
from twinbus.model.queue import QueueRuntime

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from twinbus.broker.clock import Times
    from twinbus.broker.entity import Entity
    from twinbus.broker.intake import Intake
    from twinbus.broker.ports.callbacks import Answered
    from twinbus.broker.ports.fragment import FragmentPort
    from twinbus.broker.ports.incoming import Parcel
    from twinbus.broker.ports.peer_protocol import Answer, Call, Sent
    from twinbus.broker.ports.settlement import How
    from twinbus.broker.queue import Queue
    from twinbus.broker.remote.owner import Owner, RemoteStore
    from twinbus.broker.subscription import Subscription
    from twinbus.broker.topic import Topic


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


_NOTHING: Final = QueueRuntime(
    active_count=0, dead_letter_count=0, size_bytes=0, created_ms=0, updated_ms=0, accessed_ms=0
)


class RemotePart(Part):
    """A part of a queue, topic or subscription that another process owns."""

    def __init__(self, entity: Entity, number: int, make: Callable[[SubQueue], RemoteFragment]) -> None:
        """Made by the namespace; `make` makes an area of it."""
        super().__init__(entity, number)
        self._make = make
        self._main = make(SubQueue.MAIN)
        self._areas = {SubQueue.MAIN: self._main}
        self.known = _NOTHING
        """What it held when its owner was last asked."""

    @property
    def main(self) -> RemoteFragment:
        """Its messages."""
        return self._main

    @property
    def owner(self) -> Owner:
        """The process that owns it."""
        return self._main.owner

    @property
    def fragments(self) -> list[FragmentPort]:
        """Those of its areas that are used here."""
        return list(self._areas.values())

    def fragment_of(self, sub_queue: SubQueue) -> RemoteFragment:
        """Return the area that receivers take messages from."""
        area = self._areas.get(sub_queue)
        if area is None:
            area = self._areas[sub_queue] = self._make(sub_queue)
            area.is_held_back = self.entity.outage is not None
        return area

    def send(
        self,
        parcel: Parcel,
        answer: Answered,
        numbers: list[int] | None = None,
        beside: Callable[[], None] | None = None,
    ) -> None:
        """Have messages stored by the owner."""
        assert beside is None
        self.entity.check_sends()
        records = parcel.records
        call = Send(self.entity.entity_id, self.number, records, parcel.ids)
        self._carry(call, sum([len(record) for record in records]), answer, numbers)

    def send_on(self, records: list[bytes], destination: str, answer: Answered) -> None:
        """Have messages stored by the owner that go on to another entity."""
        self.entity.check_sends()
        call = SendOn(self.entity.entity_id, self.number, records, destination)
        self._carry(call, sum([len(record) for record in records]), answer)

    def take_arrivals(self, source: bytes, items: list[tuple[int, bytes]], answer: Answered) -> None:
        """Have messages stored by the owner that another entity forwards."""
        call = Arrive(self.entity.entity_id, self.number, source, items)
        self._carry(call, sum([len(record) for _, record in items]), answer)

    def check_takes(self, size: int) -> None:  # noqa: ARG002
        """Raise what a send would raise, as far as that is known here; its size is known to the owner."""
        self.entity.check_sends()
        self._main.check_takes_sends()

    def _carry(self, call: Call, size: int, answer: Answered, numbers: list[int] | None = None) -> None:
        """Have something stored by the owner; `answer` is called when it is on disk."""
        store = self._main.store
        store.check_takes_sends()

        def told(outcome: Answer | ServiceBusError) -> None:
            store.pending_bytes -= size
            if isinstance(outcome, ServiceBusError):
                answer(outcome)
                return
            if numbers is not None and isinstance(outcome, Numbers):
                numbers.extend(outcome.numbers)
            answer(None)

        self.owner.ask(call, told)
        store.pending_bytes += size

    def begin_transaction(self, intake: Intake) -> RemoteTransaction:  # noqa: ARG002
        """Begin the part of a transaction that the owner carries out."""
        return RemoteTransaction(self)

    def load(self, done: Callable[[ServiceBusError | None], None]) -> None:
        """Read nothing: the owner does."""
        done(None)

    def runtime(self) -> QueueRuntime:
        """Return what it held when its owner was last asked."""
        return replace(self.known, is_available=self.known.is_available and self._main.is_available)


class RemotePartFactory(PartFactory):
    """Makes parts in a store that belongs to another process."""

    def __init__(self, store: RemoteStore, times: Times) -> None:
        """`store` is what this process knows of the store."""
        self._store = store
        self._times = times

    def make_queue_part(self, queue: Queue, number: int) -> Part:
        """Make a part of a queue."""
        return self._make(queue, number, has_sessions=queue.description.requires_session)

    def make_topic_part(self, topic: Topic, number: int) -> Part:
        """Make a part of a topic."""
        return self._make(topic, number, has_sessions=False)

    def make_subscription_part(self, subscription: Subscription, topic_part: Part, name: str) -> Part:  # noqa: ARG002
        """Make a part of a subscription; the owner has the part of the topic."""
        return self._make(subscription, topic_part.number, has_sessions=subscription.description.requires_session)

    def _make(self, entity: Entity, number: int, *, has_sessions: bool) -> RemotePart:
        def make_area(sub_queue: SubQueue) -> RemoteFragment:
            place = (entity.entity_id, number, SUB_QUEUES.index(sub_queue))
            with_sessions = has_sessions and sub_queue is SubQueue.MAIN
            return RemoteFragment(place, self._store, times=self._times, has_sessions=with_sessions)

        return RemotePart(entity, number, make_area)
