"""Parts (fragments) of entities whose stores belong to another process.

Owns the requests to the owner of such a part, and the message counts that the owner reported last. Every process knows
an entity's description, rules and status; the owner applies them.
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
    """A client's transaction in a part that another process owns."""

    def __init__(self, part: RemotePart) -> None:
        """Begin a transaction in a remote part."""
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
        """Settle messages when the transaction commits; return no lost locks, because a lost lock fails the commit.

        Raise StoreUnavailable if the owner is unavailable or was disconnected since the transaction began.
        """
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
        """Raise AssertionError: scheduled messages are sent to the owner as a request to `$management`."""
        raise AssertionError(records)

    def roll_back(self) -> None:
        """Roll back the transaction at the owner."""
        self._peer.send_notice(RollBack(self.number))
        self._end(is_committed=False)

    def commit(self, sends: list[TransactionSend], on_done: OnDone = ignore) -> None:
        """Commit the transaction; `on_done` is called when all changes are on disk, or with an error after rollback."""

        def handle_reply(outcome: Reply | ServiceBusError) -> None:
            error = outcome if isinstance(outcome, ServiceBusError) else None
            self._end(is_committed=error is None)
            on_done(error)

        try:
            if sends:
                self._part.entity.check_send_enabled()
            self._check_same_connection()
            self._peer.send_request(
                Commit(self.number, self._part.entity.entity_id, self._part.number, sends), handle_reply
            )
        except ServiceBusError as error:
            self.roll_back()
            on_done(error)

    def _check_same_connection(self) -> None:
        """Raise StoreUnavailable if the owner was disconnected meanwhile, and so has rolled back the transaction."""
        if self._peer.connection_number != self._connection_number:
            raise StoreUnavailable(f"{self._peer.name} was disconnected since the transaction began: it is rolled back")

    def _end(self, *, is_committed: bool) -> None:
        callbacks, self._on_settled = self._on_settled, []
        for on_settled in callbacks:
            on_settled(is_committed)


_EMPTY_RUNTIME: Final = QueueRuntime(
    active_count=0, dead_letter_count=0, size_bytes=0, created_ms=0, updated_ms=0, accessed_ms=0
)


class RemotePart(EntityPart):
    """A part of a queue, topic or subscription that another process owns."""

    def __init__(self, entity: Entity, number: int, make_area: Callable[[SubQueue], RemoteFragment]) -> None:
        """Create a part; `make_area` creates the remote fragment of a sub-queue."""
        super().__init__(entity, number)
        self._make_area = make_area
        self._main = make_area(SubQueue.MAIN)
        self._areas = {SubQueue.MAIN: self._main}
        self.last_runtime = _EMPTY_RUNTIME
        """Message counts and size that the owner reported last."""

    @property
    def main(self) -> RemoteFragment:
        """Remote fragment of the part's main sub-queue."""
        return self._main

    @property
    def owner(self) -> PeerClient:
        """The process that owns the part."""
        return self._main.owner

    @property
    def fragments(self) -> list[FragmentPort]:
        """Remote fragments of the sub-queues that this process has used."""
        return list(self._areas.values())

    def fragment_of(self, sub_queue: SubQueue) -> RemoteFragment:
        """Return the remote fragment of a sub-queue, creating it on first use."""
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
        """Send messages to the owner, which stores them."""
        assert on_batched is None
        self.entity.check_send_enabled()
        records = batch.records
        request = Send(self.entity.entity_id, self.number, records, batch.duplicate_ids)
        self._send_to_owner(request, sum([len(record) for record in records]), on_done, sequence_numbers)

    def send_via(self, records: list[bytes], destination: str, on_done: OnDone) -> None:
        """Send messages to the owner, which stores them for forwarding to another entity."""
        self.entity.check_send_enabled()
        request = SendVia(self.entity.entity_id, self.number, records, destination)
        self._send_to_owner(request, sum([len(record) for record in records]), on_done)

    def accept_forwarded(
        self, source_prefix: bytes, numbered_records: list[tuple[int, bytes]], on_done: OnDone
    ) -> None:
        """Send messages forwarded by another entity to the owner, which stores them."""
        request = AcceptForwarded(self.entity.entity_id, self.number, source_prefix, numbered_records)
        self._send_to_owner(request, sum([len(record) for _, record in numbered_records]), on_done)

    def check_can_store(self, size: int) -> None:  # noqa: ARG002
        """Raise an error if, as far as this process knows, sending is disabled or the store accepts no messages.

        Only the owner can check the size.
        """
        self.entity.check_send_enabled()
        self._main.check_accepts_sends()

    def _send_to_owner(
        self, request: Request, size: int, on_done: OnDone, sequence_numbers: list[int] | None = None
    ) -> None:
        """Send a request of `size` bytes to the owner; `on_done` is called when the messages are on disk."""
        store = self._main.store
        store.check_accepts_sends()

        def handle_reply(outcome: Reply | ServiceBusError) -> None:
            store.pending_bytes -= size
            if isinstance(outcome, ServiceBusError):
                on_done(outcome)
                return
            if sequence_numbers is not None and isinstance(outcome, Numbers):
                sequence_numbers.extend(outcome.numbers)
            on_done(None)

        self.owner.send_request(request, handle_reply)
        store.pending_bytes += size

    def begin_transaction(self, intake: MessageIntake) -> RemoteTransaction:  # noqa: ARG002
        """Begin the part of a transaction that the owner carries out."""
        return RemoteTransaction(self)

    def load(self, on_done: Callable[[ServiceBusError | None], None]) -> None:
        """Report success at once: only the owner loads messages."""
        on_done(None)

    def runtime(self) -> QueueRuntime:
        """Return the message counts and size that the owner reported last."""
        return replace(self.last_runtime, is_available=self.last_runtime.is_available and self._main.is_available)


class RemotePartFactory(PartFactory):
    """Factory of parts whose store belongs to another process."""

    def __init__(self, store: RemoteStore, time_services: TimeServices) -> None:
        """Create a factory of parts in a remote store."""
        self._store = store
        self._time_services = time_services

    def make_queue_part(self, queue: Queue, number: int) -> EntityPart:
        """Create a part of a queue."""
        return self._make_part(queue, number, has_sessions=queue.description.requires_session)

    def make_topic_part(self, topic: Topic, number: int) -> EntityPart:
        """Create a part of a topic."""
        return self._make_part(topic, number, has_sessions=False)

    def make_subscription_part(
        self,
        subscription: Subscription,
        topic_part: EntityPart,
        subscription_key: str,  # noqa: ARG002
    ) -> EntityPart:
        """Create a part of a subscription, with the number of the topic's part."""
        return self._make_part(subscription, topic_part.number, has_sessions=subscription.description.requires_session)

    def _make_part(self, entity: Entity, number: int, *, has_sessions: bool) -> RemotePart:
        def make_area(sub_queue: SubQueue) -> RemoteFragment:
            address = (entity.entity_id, number, SUB_QUEUES.index(sub_queue))
            with_sessions = has_sessions and sub_queue is SubQueue.MAIN
            return RemoteFragment(address, self._store, time_services=self._time_services, has_sessions=with_sessions)

        return RemotePart(entity, number, make_area)
