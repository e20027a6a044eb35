"""Parts of entities whose stores belong to another process.

Owns: carrying what is sent to such a part to its owner, and what the owner said last that the part holds. Descriptions,
rules and status are known in every process, and applied by the owner.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from twinbus.broker.entities.part import EntityPart
from twinbus.broker.entities.part_factory import PartFactory
from twinbus.broker.ports.fragment import TransactionPort
from twinbus.broker.ports.peer_protocol import (
    SUB_QUEUES,
    AcceptForwarded,
    Commit,
    Numbers,
    RollBack,
    Send,
    SendVia,
    SettleInTransaction,
)
from twinbus.broker.remote.fragment import RemoteFragment
from twinbus.broker.remote.settlement import encode_properties, lock_tokens
from twinbus.model.callbacks import ignore
from twinbus.model.errors import ServiceBusError, StoreUnavailable
from twinbus.model.path import SubQueue
from twinbus.model.queue import QueueRuntime

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from twinbus.broker.clock import TimeServices
    from twinbus.broker.entities.entity import Entity
    from twinbus.broker.entities.queue import Queue
    from twinbus.broker.entities.subscription import Subscription
    from twinbus.broker.entities.topic import Topic
    from twinbus.broker.intake.message_intake import MessageIntake
    from twinbus.broker.ports.callbacks import OnDone
    from twinbus.broker.ports.fragment import FragmentPort
    from twinbus.broker.ports.incoming_batch import IncomingBatch
    from twinbus.broker.ports.peer_protocol import Reply, Request, TransactionSend
    from twinbus.broker.ports.settlement import Disposition
    from twinbus.broker.remote.peer_client import PeerClient, RemoteStore


class RemoteTransaction(TransactionPort):
    """What one client wants done together, elsewhere."""

    def __init__(self, part: RemotePart) -> None:
        """Bound to a part that another process owns."""
        self._part = part
        self._peer = part.owner
        self._connection_number = part.owner.connection_number
        self.number = part.owner.next_id()
        self._on_settled: list[Callable[[bool], None]] = []

    def settle(
        self,
        fragment: FragmentPort,
        lock_numbers: list[int],
        disposition: Disposition,
        properties: Mapping[str, object] | None,
        on_settled: Callable[[bool], None],
    ) -> list[int]:
        """Settle messages at the commit; a lock that is lost fails the commit. StoreUnavailable."""
        assert isinstance(fragment, RemoteFragment)
        fragment.check_available()
        self._check_same_connection()
        self._on_settled.append(on_settled)
        self._peer.send_notice(
            SettleInTransaction(
                self.number,
                fragment.address,
                lock_tokens(lock_numbers),
                disposition.value,
                encode_properties(properties),
            )
        )
        return []

    def schedule(self, records: list[bytes]) -> list[int]:
        """Scheduled messages are carried to the owner as a request to `$management`."""
        raise AssertionError(records)

    def roll_back(self) -> None:
        """Nothing of it is done."""
        self._peer.send_notice(RollBack(self.number))
        self._end(is_committed=False)

    def commit(self, sends: list[TransactionSend], on_done: OnDone = ignore) -> None:
        """Do all of it; `answer` hears when it is on disk, or why nothing of it was done."""

        def told(outcome: Reply | ServiceBusError) -> None:
            error = outcome if isinstance(outcome, ServiceBusError) else None
            self._end(is_committed=error is None)
            on_done(error)

        try:
            if sends:
                self._part.entity.check_send_enabled()
            self._check_same_connection()
            self._peer.send_request(Commit(self.number, self._part.entity.entity_id, self._part.number, sends), told)
        except ServiceBusError as error:
            self.roll_back()
            on_done(error)

    def _check_same_connection(self) -> None:
        """StoreUnavailable if its owner has gone since it began, also if that is there again: it has rolled it back."""
        if self._peer.connection_number != self._connection_number:
            raise StoreUnavailable(f"{self._peer.name} was away since the transaction began: it is rolled back there")

    def _end(self, *, is_committed: bool) -> None:
        waiting, self._on_settled = self._on_settled, []
        for told in waiting:
            told(is_committed)


_EMPTY_RUNTIME: Final = QueueRuntime(
    active_count=0, dead_letter_count=0, size_bytes=0, created_ms=0, updated_ms=0, accessed_ms=0
)


class RemotePart(EntityPart):
    """A part of a queue, topic or subscription that another process owns."""

    def __init__(self, entity: Entity, number: int, make_area: Callable[[SubQueue], RemoteFragment]) -> None:
        """Made by the namespace; `make` makes an area of it."""
        super().__init__(entity, number)
        self._make_area = make_area
        self._main = make_area(SubQueue.MAIN)
        self._areas = {SubQueue.MAIN: self._main}
        self.last_runtime = _EMPTY_RUNTIME
        """What it held when its owner was last asked."""

    @property
    def main(self) -> RemoteFragment:
        """Its messages."""
        return self._main

    @property
    def owner(self) -> PeerClient:
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
            area = self._areas[sub_queue] = self._make_area(sub_queue)
            area.is_suspended = self.entity.outage is not None
        return area

    def send(
        self,
        batch: IncomingBatch,
        on_done: OnDone,
        sequence_numbers: list[int] | None = None,
        on_batched: Callable[[], None] | None = None,
    ) -> None:
        """Have messages stored by the owner."""
        assert on_batched is None
        self.entity.check_send_enabled()
        records = batch.records
        call = Send(self.entity.entity_id, self.number, records, batch.duplicate_ids)
        self._send_to_owner(call, sum([len(record) for record in records]), on_done, sequence_numbers)

    def send_via(self, records: list[bytes], destination: str, on_done: OnDone) -> None:
        """Have messages stored by the owner that go on to another entity."""
        self.entity.check_send_enabled()
        call = SendVia(self.entity.entity_id, self.number, records, destination)
        self._send_to_owner(call, sum([len(record) for record in records]), on_done)

    def accept_forwarded(
        self, source_prefix: bytes, numbered_records: list[tuple[int, bytes]], on_done: OnDone
    ) -> None:
        """Have messages stored by the owner that another entity forwards."""
        call = AcceptForwarded(self.entity.entity_id, self.number, source_prefix, numbered_records)
        self._send_to_owner(call, sum([len(record) for _, record in numbered_records]), on_done)

    def check_can_store(self, size: int) -> None:  # noqa: ARG002
        """Raise what a send would raise, as far as that is known here; its size is known to the owner."""
        self.entity.check_send_enabled()
        self._main.check_accepts_sends()

    def _send_to_owner(
        self, request: Request, size: int, on_done: OnDone, sequence_numbers: list[int] | None = None
    ) -> None:
        """Have something stored by the owner; `answer` is called when it is on disk."""
        store = self._main.store
        store.check_accepts_sends()

        def told(outcome: Reply | ServiceBusError) -> None:
            store.pending_bytes -= size
            if isinstance(outcome, ServiceBusError):
                on_done(outcome)
                return
            if sequence_numbers is not None and isinstance(outcome, Numbers):
                sequence_numbers.extend(outcome.numbers)
            on_done(None)

        self.owner.send_request(request, told)
        store.pending_bytes += size

    def begin_transaction(self, intake: MessageIntake) -> RemoteTransaction:  # noqa: ARG002
        """Begin the part of a transaction that the owner carries out."""
        return RemoteTransaction(self)

    def load(self, on_done: Callable[[ServiceBusError | None], None]) -> None:
        """Read nothing: the owner does."""
        on_done(None)

    def runtime(self) -> QueueRuntime:
        """Return what it held when its owner was last asked."""
        return replace(self.last_runtime, is_available=self.last_runtime.is_available and self._main.is_available)


class RemotePartFactory(PartFactory):
    """Makes parts in a store that belongs to another process."""

    def __init__(self, store: RemoteStore, time_services: TimeServices) -> None:
        """`store` is what this process knows of the store."""
        self._store = store
        self._time_services = time_services

    def make_queue_part(self, queue: Queue, number: int) -> EntityPart:
        """Make a part of a queue."""
        return self._make_part(queue, number, has_sessions=queue.description.requires_session)

    def make_topic_part(self, topic: Topic, number: int) -> EntityPart:
        """Make a part of a topic."""
        return self._make_part(topic, number, has_sessions=False)

    def make_subscription_part(
        self,
        subscription: Subscription,
        topic_part: EntityPart,
        subscription_key: str,  # noqa: ARG002
    ) -> EntityPart:
        """Make a part of a subscription; the owner has the part of the topic."""
        return self._make_part(subscription, topic_part.number, has_sessions=subscription.description.requires_session)

    def _make_part(self, entity: Entity, number: int, *, has_sessions: bool) -> RemotePart:
        def make_area(sub_queue: SubQueue) -> RemoteFragment:
            place = (entity.entity_id, number, SUB_QUEUES.index(sub_queue))
            with_sessions = has_sessions and sub_queue is SubQueue.MAIN
            return RemoteFragment(place, self._store, time_services=self._time_services, has_sessions=with_sessions)

        return RemotePart(entity, number, make_area)
