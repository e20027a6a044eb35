"""Requests from one other process for the fragments of this process.

Owns: the consumers, browsers and transactions of that process, which are closed when it disconnects. The broker carries
out these requests in the same way as requests from clients connected to this process.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from twinbus.amqp.codec.decode import decode
from twinbus.amqp.codec.encode import encode
from twinbus.broker.fragment.message_browser import BrowseCursor
from twinbus.broker.namespace import Transaction
from twinbus.broker.ports import peer_protocol as calls
from twinbus.broker.ports.incoming_batch import IncomingBatch
from twinbus.broker.ports.peer_protocol import (
    SUB_QUEUES,
    CapacityErrors,
    Done,
    FragmentRuntime,
    GetRuntimes,
    LockedMessage,
    ManagementResponse,
    Numbers,
    PeekedMessages,
    Runtimes,
    ScheduleMessages,
    UpdateDisposition,
    error_name,
    failure_reply,
)
from twinbus.broker.ports.settlement import Disposition, lock_lost_error
from twinbus.broker.remote.part import RemotePart
from twinbus.broker.remote.remote_consumer import RemoteBrowseReader, RemoteConsumer, RemoteConsumerGroup
from twinbus.model.errors import ServiceBusError, StoreUnavailable
from twinbus.model.path import canonical_key
from twinbus.server.amqp.management import transactional_operations
from twinbus.server.amqp.management.arguments import Arguments
from twinbus.server.amqp.management.fragment_routing import OPERATION_BY_MESSAGE
from twinbus.server.amqp.management.request_context import RequestContext
from twinbus.server.amqp.management.responses import failure

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.entities.part import EntityPart
    from twinbus.broker.fragment.fragment import Fragment
    from twinbus.broker.namespace import Namespace, Queue, Subscription, Topic
    from twinbus.broker.ports.callbacks import OnDone
    from twinbus.broker.ports.consumer import Consumer
    from twinbus.broker.ports.peer_protocol import FragmentAddress, ManagementCall, Reply, Request
    from twinbus.model.path import SubQueue
    from twinbus.server.amqp.request_link import Response
    from twinbus.server.catalogue.administration import Administration

    SendReply: TypeAlias = Callable[[int, Reply], None]
    OnReply: TypeAlias = Callable[[Reply], None]
    HandleStatus: TypeAlias = Callable[[bytes, Callable[[bytes], None]], None]
    HandleManagement: TypeAlias = Callable[["PeerServer", calls.ManagementCall, OnReply], None]

_TRANSACTIONAL_OPERATIONS: Final = {
    ScheduleMessages: transactional_operations.schedule,
    UpdateDisposition: transactional_operations.update_disposition,
}


def handle_management(
    administration: Administration, peer_server: PeerServer, request: ManagementCall, on_reply: Callable[[Reply], None]
) -> None:
    """Carry out a management request from another process on a fragment, and reply with the response."""

    def reply(response: Response) -> None:
        on_reply(ManagementResponse(encode([dict(response.properties), response.body])))

    entity, number, sub_queue = request.address
    try:
        peer_server.part(entity, number)
        context = RequestContext(
            peer_server.namespace,
            administration,
            peer_server.entity(entity),
            SUB_QUEUES[sub_queue],
            partial(peer_server.find_session_holder, request.client_id),
            partial(peer_server.owns_consumer, request.client_id),
            fragment_number=number,
        )
        context.entity.record_access(peer_server.namespace.clock)
        body = cast("dict[Any, Any]", decode(request.arguments)[0])
        arguments = Arguments(body, max_id_characters=peer_server.namespace.limits.max_id_characters)
        if request.transaction_id:
            _TRANSACTIONAL_OPERATIONS[type(request)](
                context, arguments, peer_server.transaction(request.transaction_id), reply
            )
        else:
            OPERATION_BY_MESSAGE[type(request)](context, arguments, reply)
    except ServiceBusError as error:
        if request.transaction_id:
            peer_server.transaction(request.transaction_id).fail(error)
        reply(failure(error))


NOTICE_ID: Final = 0


def no_status(_request: bytes, _on_reply: Callable[[bytes], None]) -> None:
    """Refuse a request of the JSON API, because this process does not answer such requests yet."""
    raise StoreUnavailable("the broker process is still starting: try again")


class PeerServer:
    """The server side of the connection from one other process."""

    def __init__(
        self,
        namespace: Namespace,
        send_reply: SendReply,
        handle_management: HandleManagement,
        handle_status: HandleStatus = no_status,
    ) -> None:
        """Create a server that replies with `send_reply`.

        Management requests are passed to `handle_management`, requests of the JSON API to `handle_status`.
        """
        self.namespace = namespace
        self._send_reply = send_reply
        self._handle_management = handle_management
        self._entities_by_id: dict[int, Queue | Topic | Subscription] = {}
        self._consumers: dict[int, RemoteConsumer] = {}
        self._readers: dict[int, tuple[RemoteBrowseReader, BrowseCursor]] = {}
        self._groups: dict[int, RemoteConsumerGroup] = {}
        """Consumer groups by link id."""
        self._group_of_consumer: dict[int, RemoteConsumerGroup] = {}
        """Consumer groups by consumer id."""
        self._transactions: dict[int, Transaction] = {}
        self._request_handlers: dict[type, Callable[[Any, OnReply], None]] = {
            calls.Send: self._send,
            calls.CheckCapacity: self._check_capacity,
            calls.SendVia: self._send_via,
            calls.AcceptForwarded: self._accept_forwarded,
            calls.Settle: self._settle,
            calls.Peek: self._peek,
            calls.FindByEnqueuedTime: self._find_by_enqueued_time,
            calls.GetLogRange: self._get_log_range,
            calls.FindLockedMessage: self._find_locked_message,
            calls.RenewLock: self._renew_lock,
            calls.GetRuntimes: self._get_runtimes,
            calls.GetStatus: lambda request, on_reply: handle_status(
                request.content, lambda content: on_reply(calls.Status(content))
            ),
            calls.AttachConsumer: self._attach_consumer,
            calls.AttachBrowser: self._attach_browser,
            calls.Commit: self._commit,
            calls.ReturnMessages: self._return_messages,
            calls.Barrier: lambda _request, on_reply: on_reply(Done()),
        }
        for kind in calls.ManagementCall.__subclasses__():
            self._request_handlers[kind] = partial(handle_management, self)
        self._notice_handlers: dict[type, Callable[[Any], None]] = {
            calls.GrantCredit: self._grant_credit,
            calls.Detach: self._detach,
            calls.ConfirmDelivered: self._confirm_delivered,
            calls.SettleInTransaction: self._settle_in_transaction,
            calls.RollBack: self._roll_back,
        }

    def receive(self, request_id: int, request: Request) -> None:
        """Carry out a request and reply with its result, or handle a notice."""
        handle_notice = self._notice_handlers.get(type(request))
        if handle_notice is not None:
            handle_notice(request)
            return

        def send_reply(reply: Reply) -> None:
            self._send_reply(request_id, reply)

        try:
            self._request_handlers[type(request)](request, send_reply)
        except ServiceBusError as error:
            send_reply(failure_reply(error))

    def close(self) -> None:
        """Roll back the transactions, detach the consumers and close the browsers of a disconnected process."""
        for transaction in self._transactions.values():
            transaction.roll_back()
        for consumer in list(self._consumers.values()):
            self._detach_consumer(consumer)
        for _, browser in self._readers.values():
            browser.close()

    # --- lookups ------------------------------------------------------------------------------------------------------

    def entity(self, entity_id: int) -> Queue | Topic | Subscription:
        """Return the entity with this id.

        Raise StoreUnavailable if there is none: the two processes apply catalogue changes at different times.
        """
        entities = self.namespace.entities
        known = self._entities_by_id.get(entity_id)
        if known is None or entities.get(canonical_key(known.path)) is not known:
            self._entities_by_id = {entity.entity_id: entity for entity in entities.values()}
            known = self._entities_by_id.get(entity_id)
        if known is None:
            raise StoreUnavailable("the entity is just being created or deleted: try again")
        return known

    def part(self, entity_id: int, number: int) -> EntityPart:
        """Return part `number` of an entity. Raise StoreUnavailable if another process owns the part."""
        part = self.entity(entity_id).parts[number]
        if isinstance(part, RemotePart):
            raise StoreUnavailable(f"another process owns fragment {number} of '{part.entity.path}': try again")
        return part

    def fragment(self, address: FragmentAddress) -> Fragment:
        """Return the fragment at an address."""
        entity, number, sub_queue = address
        return self.part(entity, number).fragment_of(calls.SUB_QUEUES[sub_queue]).local

    def find_session_holder(
        self, client_id: int, source: Queue | Subscription, session_id: bytes
    ) -> RemoteConsumer | None:
        """Return the consumer with which a client of the other process holds a session, or None."""
        fragments = local_fragments(source, calls.SUB_QUEUES[0])
        holders = (
            consumer
            for consumer in self._consumers.values()
            if consumer.client_id == client_id
            and consumer.session_lock is not None
            and consumer.session_lock.session_id == session_id
            and not consumer.session_lock.has_ended
        )
        return next((consumer for consumer in holders if consumer.fragment in fragments), None)

    def owns_consumer(self, client_id: int, consumer: Consumer) -> bool:
        """Return whether a consumer belongs to client `client_id` of the other process."""
        if not isinstance(consumer, RemoteConsumerGroup) or self._groups.get(consumer.link_id) is not consumer:
            return False
        return consumer.client_id == client_id

    def transaction(self, transaction_id: int) -> Transaction:
        """Return a transaction of the other process; the first request in a transaction begins it."""
        transaction = self._transactions.get(transaction_id)
        if transaction is None:
            transaction = self._transactions[transaction_id] = Transaction(self.namespace.intake)
        return transaction

    # --- sending ------------------------------------------------------------------------------------------------------

    def _send(self, request: calls.Send, on_reply: OnReply) -> None:
        part, numbers = self.part(request.entity_id, request.fragment), cast("list[int]", [])
        batch = IncomingBatch()
        batch.records, batch.duplicate_ids = request.records, request.identities
        part.send(
            batch, lambda error: on_reply(failure_reply(error) if error is not None else Numbers(numbers)), numbers
        )
        self._touch_entity(request.entity_id)

    def _check_capacity(self, request: calls.CheckCapacity, on_reply: OnReply) -> None:
        refusals: dict[int, tuple[str, str]] = {}
        for number, size in request.sizes_by_fragment.items():
            try:
                self.part(request.entity_id, number).check_can_store(size)
            except ServiceBusError as error:
                refusals[number] = (error_name(error), str(error))
        on_reply(CapacityErrors(refusals))

    def _send_via(self, request: calls.SendVia, on_reply: OnReply) -> None:
        self.part(request.entity_id, request.fragment).send_via(
            request.records, request.destination, _done_or_failed(on_reply)
        )

    def _accept_forwarded(self, request: calls.AcceptForwarded, on_reply: OnReply) -> None:
        self.part(request.entity_id, request.fragment).accept_forwarded(
            request.source_prefix, request.numbered_records, _done_or_failed(on_reply)
        )

    def _touch_entity(self, entity_id: int) -> None:
        self._entities_by_id[entity_id].record_access(self.namespace.clock)

    # --- receiving ----------------------------------------------------------------------------------------------------

    def _attach_consumer(self, request: calls.AttachConsumer, on_reply: OnReply) -> None:
        sub_queue = calls.SUB_QUEUES[request.address[2]]
        source = cast("Queue | Subscription", self.entity(request.address[0]))
        fragment = self.fragment(request.address)
        source.check_not_forwarded(sub_queue)
        group = self._groups.get(request.link_id)
        if group is None:
            group = RemoteConsumerGroup(request.link_id, request.client_id, source.exclusive_receiver_of(sub_queue))
            entity_path, fragments = f"{source.path}{sub_queue.value}", local_fragments(source, sub_queue)
            group.attach(entity_path, request.epoch, fragments, if_free=request.if_free)
        consumer = RemoteConsumer(
            request.consumer_id,
            fragment,
            client_id=request.client_id,
            receive_and_delete=request.receive_and_delete,
            notify=notice_sender(self._send_reply),
        )
        self._groups[request.link_id] = group
        group.consumers.add(consumer)
        self._consumers[request.consumer_id] = consumer
        self._group_of_consumer[request.consumer_id] = group
        try:
            _add_consumer(consumer, request.session_id)
        except ServiceBusError:
            self._detach_consumer(consumer)
            raise
        source.record_access(self.namespace.clock)
        on_reply(Done())

    def _grant_credit(self, request: calls.GrantCredit) -> None:
        consumer = self._consumers.get(request.consumer_id)
        if consumer is not None:
            consumer.grant_credit(request.credit)
            return
        browse = self._readers.get(request.consumer_id)
        if browse is not None:
            _grant_browse_credit(*browse, request.credit)

    def _detach(self, request: calls.Detach) -> None:
        consumer = self._consumers.get(request.consumer_id)
        if consumer is not None:
            self._detach_consumer(consumer, request.received_count)
        browse = self._readers.pop(request.consumer_id, None)
        if browse is not None:
            browse[1].close()

    def _detach_consumer(self, consumer: RemoteConsumer, received_count: int | None = None) -> None:
        del self._consumers[consumer.consumer_id]
        consumer.detach(received_count)
        group = self._group_of_consumer.pop(consumer.consumer_id)
        group.consumers.discard(consumer)
        if not group.consumers:
            group.detach()
            del self._groups[group.link_id]

    def _return_messages(self, request: calls.ReturnMessages, on_reply: OnReply) -> None:
        consumer = self._consumers.get(request.consumer_id)
        if consumer is not None:
            consumer.return_messages(request.sequence_numbers, _done_or_failed(on_reply))
        else:
            on_reply(Done())

    def _confirm_delivered(self, notice: calls.ConfirmDelivered) -> None:
        consumer = self._consumers.get(notice.consumer_id)
        if consumer is not None:
            consumer.confirm_delivered(notice.delivered_count)

    def _settle(self, request: calls.Settle, on_reply: OnReply) -> None:
        fragment = self.fragment(request.address)
        numbers = fragment.lock_numbers(request.lock_tokens)
        if request.disposition == Disposition.RECLAIM.value:
            fragment.settlement.reclaim(numbers)
            on_reply(calls.LocksLost([]))
            return

        def on_settled(error: ServiceBusError | None) -> None:
            on_reply(failure_reply(error) if error is not None else calls.LocksLost(lost_indexes))

        lost = fragment.settlement.settle(
            Disposition(request.disposition), numbers, on_settled, _decode_properties(request.properties)
        )
        lost_numbers = set(lost)
        lost_indexes = [index for index, number in enumerate(numbers) if number in lost_numbers]
        if len(lost_indexes) == len(numbers):
            on_reply(calls.LocksLost(lost_indexes))  # nothing was settled, so `on_settled` is never called

    # --- browsing and counters ----------------------------------------------------------------------------------------

    def _attach_browser(self, request: calls.AttachBrowser, on_reply: OnReply) -> None:
        reader = RemoteBrowseReader(request.consumer_id, notice_sender(self._send_reply))
        fragment, reads = self.fragment(request.address), self.namespace.read_limiter
        browser = BrowseCursor(
            fragment,
            reader,
            request.first_sequence,
            request.last_sequence,
            ends_at_last=request.is_bounded,
            read_limiter=reads,
        )
        self._readers[request.consumer_id] = (reader, browser)
        on_reply(Done())

    def _peek(self, request: calls.Peek, on_reply: OnReply) -> None:
        fragment = self.fragment(request.address)

        def done(page: list[bytes] | ServiceBusError) -> None:
            on_reply(
                failure_reply(page)
                if isinstance(page, ServiceBusError)
                else PeekedMessages(page, fragment.message_table.last_enqueued_ms)
            )

        fragment.browser.peek(
            request.from_sequence, request.count, request.max_bytes, done, deferred_only=request.deferred_only
        )

    def _find_by_enqueued_time(self, request: calls.FindByEnqueuedTime, on_reply: OnReply) -> None:
        def done(sequence: int | ServiceBusError) -> None:
            on_reply(failure_reply(sequence) if isinstance(sequence, ServiceBusError) else Numbers([sequence]))

        self.fragment(request.address).browser.find_by_enqueued_time(request.enqueued_ms, done)

    def _get_log_range(self, request: calls.GetLogRange, on_reply: OnReply) -> None:
        table = self.fragment(request.address).message_table
        on_reply(Numbers([table.low_watermark, table.committed.next_sequence]))

    def _find_locked_message(self, request: calls.FindLockedMessage, on_reply: OnReply) -> None:
        fragment = self.fragment(request.address)
        (number,) = fragment.lock_numbers([request.lock_token])

        def done(locked: tuple[int, str | None] | ServiceBusError) -> None:
            on_reply(failure_reply(locked) if isinstance(locked, ServiceBusError) else LockedMessage(*locked))

        fragment.settlement.find_locked_message(number, done)

    def _renew_lock(self, request: calls.RenewLock, on_reply: OnReply) -> None:
        fragment = self.fragment(request.address)
        (number,) = fragment.lock_numbers([request.lock_token])
        on_reply(Numbers([fragment.settlement.renew(number)]))

    def _get_runtimes(self, request: GetRuntimes, on_reply: OnReply) -> None:
        runtimes: list[FragmentRuntime] = []
        for entity_id in request.entity_ids:
            with suppress(StoreUnavailable):
                entity = self.entity(entity_id)
                runtimes += [_fragment_runtime(part) for part in entity.parts if not isinstance(part, RemotePart)]
        on_reply(Runtimes(runtimes))

    # --- transactions -------------------------------------------------------------------------------------------------

    def _settle_in_transaction(self, request: calls.SettleInTransaction) -> None:
        transaction = self.transaction(request.transaction_id)
        try:
            fragment = self.fragment(request.address)
            part = self.part(*request.address[:2])
            numbers, disposition = fragment.lock_numbers(request.lock_tokens), Disposition(request.disposition)
            if transaction.settle(part, fragment, numbers, disposition, _decode_properties(request.properties)):
                raise lock_lost_error()
        except ServiceBusError as error:
            transaction.fail(error)

    def _commit(self, request: calls.Commit, on_reply: OnReply) -> None:
        transaction = self.transaction(request.transaction_id)
        del self._transactions[request.transaction_id]
        try:
            target = self.part(request.entity_id, request.fragment)
            for payload, message_format, destination in request.sends:
                transaction.send(target, payload, message_format, destination)
        except ServiceBusError as error:
            transaction.fail(error)
        transaction.commit(_done_or_failed(on_reply))

    def _roll_back(self, request: calls.RollBack) -> None:
        transaction = self._transactions.pop(request.transaction_id, None)
        if transaction is not None:
            transaction.roll_back()


def notice_sender(send_reply: SendReply) -> OnReply:
    """Return a function that sends notices, which are not replies to a request."""
    return lambda notice: send_reply(NOTICE_ID, notice)


def _add_consumer(consumer: RemoteConsumer, session_id: bytes | None) -> None:
    """Attach a consumer to its fragment, or to the session `session_id` (None: the next available session)."""
    fragment = consumer.fragment
    if not fragment.has_sessions:
        fragment.dispatcher.add(consumer)
    elif session_id is None:
        fragment.dispatcher.accept_next_session(consumer, consumer.on_session_granted)
    else:
        fragment.dispatcher.accept_session(consumer, session_id, consumer.on_session_granted)


def _done_or_failed(on_reply: OnReply) -> OnDone:
    return lambda error: on_reply(failure_reply(error) if error is not None else Done())


def _grant_browse_credit(reader: RemoteBrowseReader, browser: BrowseCursor, credit: int) -> None:
    """Grant credit to a browser, and report when it has drained the available messages."""
    reader.grant_credit(credit)

    def drained() -> None:
        reader.on_drained()
        browser.advance()

    browser.drain(drained)


def _decode_properties(encoded: bytes) -> dict[str, object]:
    return cast("dict[str, object]", decode(encoded)[0]) if encoded else {}


def local_fragments(source: Queue | Subscription, sub_queue: SubQueue) -> list[Fragment]:
    """Return the fragments of an entity that belong to this process."""
    return [part.fragment_of(sub_queue).local for part in source.parts if not isinstance(part, RemotePart)]


def _fragment_runtime(part: EntityPart) -> FragmentRuntime:
    """Return the counters of a part, with the last access time of its entity."""
    runtime = replace(part.runtime(), accessed_ms=part.entity.accessed_ms)
    values = {field.name: getattr(runtime, field.name) for field in fields(runtime)}
    return FragmentRuntime(part.entity.entity_id, part.number, values)
