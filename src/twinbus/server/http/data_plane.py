"""Messages over HTTP: send, receive, settle.

    POST   /orders/messages                     send a message, or a batch of messages
    POST   /orders/messages/head?timeout=60     receive a message under a lock
    DELETE /orders/messages/head?timeout=60     receive and delete a message
    PUT    /orders/messages/17/<lock token>     unlock a message
    POST   /orders/messages/17/<lock token>     renew the lock on a message
    DELETE /orders/messages/17/<lock token>     complete a message

Owns: the handlers of these requests and their status codes. `broker_properties` and `custom_properties` convert JSON
and headers; the broker stores and delivers the messages.
"""

from __future__ import annotations

import asyncio
import re
import uuid
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import quote

import msgspec
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from twinbus.amqp.message import Message
from twinbus.broker.ports.fragment import lock_token_of
from twinbus.broker.ports.incoming_batch import IncomingBatch
from twinbus.broker.ports.multi_fragment_receiver import MultiFragmentReceiver
from twinbus.broker.ports.outage import SilentOutage
from twinbus.broker.ports.settlement import lock_lost_error
from twinbus.model import path
from twinbus.model.atom.value_formats import PARTITIONING_SINCE
from twinbus.model.errors import (
    InvalidArgument,
    MessageLockLost,
    MessageTooLarge,
    NotAllowed,
    ServiceBusError,
)
from twinbus.model.path import SubQueue
from twinbus.server.http import broker_properties, custom_properties, limits
from twinbus.server.http.broker_properties import BrokerProperties, decode_json
from twinbus.server.http.call import Caller
from twinbus.server.http.completion import wait_for_result, wait_until_done
from twinbus.server.http.error_responses import ResourceNotFound
from twinbus.server.http.limits import DEFAULT_LIMITS, HttpLimits
from twinbus.server.http.message_receiver import DeletingResponse, HttpReceiver, PendingDeletion
from twinbus.server.http.routes import Route
from twinbus.server.usage.counter import looks_like_ping

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.namespace import Namespace, Queue, Subscription, Topic
    from twinbus.broker.ports.callbacks import OnDone
    from twinbus.broker.ports.consumer import Delivery
    from twinbus.broker.ports.fragment import FragmentPort
    from twinbus.server.http.call import Call
    from twinbus.server.http.routes import Handler
    from twinbus.server.http.usage_meter import HttpUsageMeter
    from twinbus.server.usage.counter import UsageCounter

ResponseT = TypeVar("ResponseT", bound=Response)
BATCH_MEDIA_TYPE: Final = "application/vnd.microsoft.servicebus.json"
DEFAULT_WAIT_S: Final = 60
MAX_ENCODED_PER_TURN: Final = 100
"""How many messages in a batch are encoded before yielding to the event loop: about a millisecond's work."""
_ENTITY_PATTERN: Final = r"(?P<entity>(?!\$).{1,600}?)"
_SECONDS_PATTERN: Final = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")


class LockNotFound(MessageLockLost):
    """No message has the id and lock token in the request: 404 over HTTP."""

    status = 404


class BatchItem(msgspec.Struct, rename="pascal"):
    """One message in a batch."""

    body: str = ""
    broker_properties: BrokerProperties = msgspec.field(default_factory=BrokerProperties)
    user_properties: dict[str, str | int | float | bool | None] = msgspec.field(default_factory=dict)


class DataPlane:
    """Handlers that send, receive and settle messages over HTTP."""

    def __init__(self, namespace: Namespace, usage_meter: HttpUsageMeter, limits: HttpLimits = DEFAULT_LIMITS) -> None:
        """Create the handlers. The caller's token is checked before a handler in `routes` is called."""
        self._namespace = namespace
        self._usage_meter = usage_meter
        self._limits = limits
        self.routes: tuple[Route, ...] = (
            _entity_route("/messages", "Send", POST=_delay_if_silent(self._send)),
            _entity_route(
                "/messages/head",
                "Listen",
                POST=_delay_if_silent(self._peek_lock),
                DELETE=_delay_if_silent(self._receive_and_delete),
            ),
            _entity_route(
                "/messages/(?P<id>.{1,256}?)/(?P<token>[^/]{1,64})",
                "Listen",
                PUT=self._unlock,
                POST=self._renew,
                DELETE=self._complete,
            ),
        )

    # --- sending ------------------------------------------------------------------------------------------------------

    async def _send(self, call: Call) -> Response:
        address = self._address(call)
        target = self._namespace.find_sendable(address.entity)
        _check_version(call, target)
        if address.sub_queue is not SubQueue.MAIN:
            raise NotAllowed(f"cannot send to the dead-letter queue '{call.entity}': send to its entity")
        with self._usage_meter.counter(call, target.path) as counter:
            try:
                await self._send_to(target, call, counter)
            except ServiceBusError:
                counter.failed_sends += 1
                raise
        return Response(status_code=201)

    async def _send_to(self, target: Queue | Topic, call: Call, counter: UsageCounter) -> None:
        max_bytes = target.description.max_message_kb * 1024
        content = await limits.read_body(
            call.request, max_bytes=max_bytes, timeout_s=self._limits.body_timeout_s, too_large_error=MessageTooLarge
        )
        target.check_send_enabled()  # after the body, because a disconnect is not noticed while it is unread
        media_type = call.request.headers.get("content-type")
        if media_type is not None and media_type.split(";")[0].strip().lower() == BATCH_MEDIA_TYPE:
            payloads = await self._encode_batch(content, max_bytes)
        else:
            payloads = [self._encode(call, content, media_type)]
        pings = await self._store(target, payloads, max_bytes)
        counter.pings += pings
        counter.add_sends([payload for payload in payloads if not looks_like_ping(payload)] if pings else payloads)

    def _encode(self, call: Call, content: bytes, media_type: str | None) -> bytes:
        headers = Caller.from_scope(call.request.scope).raw_headers
        values = [value for name, value in headers if name.lower() == b"brokerproperties"]
        if len(values) > 1:
            raise InvalidArgument("there are several BrokerProperties headers: send only one")
        properties = BrokerProperties.from_header(values[0]) if values else BrokerProperties()
        properties.content_type = properties.content_type or media_type
        return properties.encode_message(content, custom_properties.from_headers(headers), self._now_ms())

    async def _encode_batch(self, content: bytes, max_bytes: int) -> list[bytes]:
        items = decode_json(content, list[BatchItem], "the batch")
        limit = self._namespace.limits.max_batch_messages
        if not 0 < len(items) <= limit:
            raise InvalidArgument(f"a batch of {len(items)} messages; it can have 1 to {limit}")
        payloads: list[bytes] = []
        size = 0
        for number, item in enumerate(items):
            if number % MAX_ENCODED_PER_TURN == MAX_ENCODED_PER_TURN - 1:
                await asyncio.sleep(0)
            custom = custom_properties.check_json_values(item.user_properties)
            payloads.append(item.broker_properties.encode_message(item.body.encode(), custom, self._now_ms()))
            size += len(payloads[-1])
            if size > max_bytes:
                raise MessageTooLarge(f"the messages have more than the {max_bytes} bytes that a batch can have")
        return payloads

    async def _store(self, target: Queue | Topic, payloads: list[bytes], max_bytes: int) -> int:
        """Store the messages, and return how many of them were pings."""
        batch, now_ms = IncomingBatch(), self._now_ms()
        for number, payload in enumerate(payloads):
            if len(payload) > max_bytes:
                raise MessageTooLarge(
                    f"a message of {len(payload)} bytes, its properties included; it can have {max_bytes}"
                )
            if number % MAX_ENCODED_PER_TURN == MAX_ENCODED_PER_TURN - 1:
                await asyncio.sleep(0)
            self._namespace.intake.add_to(batch, payload, 0, now_ms, target.validation_policy)
        target.record_access(self._namespace.clock)
        pings = batch.ping_count
        await wait_until_done(lambda on_done: target.send(batch, on_done))
        return pings

    # --- receiving ----------------------------------------------------------------------------------------------------

    async def _peek_lock(self, call: Call) -> Response:
        _, _, delivery = await self._receive(call)
        if delivery is None:
            return Response(status_code=204)
        token = uuid.UUID(bytes=lock_token_of(delivery[1]))
        message = Message(delivery[0])
        response = _message_response(Response, message, token, status=201)
        entity, number = quote(call.entity, safe="/$"), broker_properties.sequence_number_of(message)
        response.headers["location"] = f"{call.base}/{entity}/messages/{number}/{token}"
        return response

    async def _receive_and_delete(self, call: Call) -> Response:
        source, fragments, delivery = await self._receive(call)
        if delivery is None:
            return Response(status_code=204)
        response, caller = (
            _message_response(DeletingResponse, Message(delivery[0]), None, status=200),
            Caller.from_scope(call.request.scope),
        )
        fragment = MultiFragmentReceiver(fragments).fragment_of_tag(delivery[1])
        response.deletion = PendingDeletion(source, fragment, delivery, caller, self._namespace.begin_transaction())
        return response

    async def _receive(self, call: Call) -> tuple[Queue | Subscription, list[FragmentPort], Delivery | None]:
        wait_s = self._requested_wait_s(call)
        source, sub_queue, fragments = await self._find_receivable(call)
        source.check_receive_enabled()
        source.check_not_forwarded(sub_queue)
        source.exclusive_receiver_of(sub_queue).check_free(call.entity)
        source.record_access(self._namespace.clock)
        with self._usage_meter.counter(call, f"{source.path}{sub_queue.value}") as counter:
            try:
                delivery = await HttpReceiver(fragments, Caller.from_scope(call.request.scope), call.recheck).receive(
                    wait_s
                )
            except ClientDisconnect:
                counter.empty_receives += 1
                raise
            if delivery is not None:
                counter.add_receives([delivery])
            else:
                counter.empty_receives += 1
        if delivery is None:
            _check_available(fragments)
            source.check_outage()
        return source, fragments, delivery

    def _requested_wait_s(self, call: Call) -> float:
        text = call.request.query_params.get("timeout", str(DEFAULT_WAIT_S))
        if not _SECONDS_PATTERN.fullmatch(text):
            raise InvalidArgument(f"timeout is {text!r:.40}; it has to be a number of seconds, and not negative")
        return min(float(text), self._limits.max_wait_s)

    # --- settling -----------------------------------------------------------------------------------------------------

    async def _unlock(self, call: Call) -> Response:
        fragment, number = await self._find_lock(call)
        return await _settle_lock(lambda on_done: fragment.settlement.abandon([number], on_done))

    async def _renew(self, call: Call) -> Response:
        fragment, number = await self._find_lock(call, is_renewal=True)
        try:
            await wait_for_result(partial(fragment.settlement.renew_lock, number))
        except MessageLockLost as error:
            raise LockNotFound(str(error)) from None
        return Response()

    async def _complete(self, call: Call) -> Response:
        fragment, number = await self._find_lock(call)
        return await _settle_lock(lambda on_done: fragment.settlement.complete([number], on_done))

    async def _find_lock(self, call: Call, *, is_renewal: bool = False) -> tuple[FragmentPort, int]:
        """Return the fragment and number of the lock in the request's path. Raise LockNotFound if there is none."""
        source, sub_queue, fragments = await self._find_receivable(call)
        with self._usage_meter.counter(call, f"{source.path}{sub_queue.value}") as counter:
            if is_renewal:
                counter.renewals += 1
            else:
                counter.settlements += 1
        try:
            token = uuid.UUID(call.names["token"])
        except ValueError:
            raise InvalidArgument(f"{call.names['token']!r:.80} is not a lock token: it must be a GUID") from None
        fragment = MultiFragmentReceiver(fragments).fragment_of_tag(token.bytes)
        (number,) = fragment.lock_numbers([token.bytes])
        message_id = call.names["id"]
        if not await _locks_message(fragment, number, message_id):
            raise LockNotFound(f"the lock is not on the message {message_id!r:.140}")
        source.record_access(self._namespace.clock)
        return fragment, number

    # --- shared -------------------------------------------------------------------------------------------------------

    def _address(self, call: Call) -> path.Address:
        address = path.parse_address(call.entity)
        if address.is_management:
            raise ResourceNotFound(f"'{call.entity:.300}' has no messages")
        return address

    async def _find_receivable(self, call: Call) -> tuple[Queue | Subscription, SubQueue, list[FragmentPort]]:
        address = self._address(call)
        source, sub_queue = self._namespace.find_receivable(address.entity), address.sub_queue
        _check_version(call, source)
        fragments = source.fragments_of(sub_queue)
        if fragments[0].has_sessions:
            raise NotAllowed(f"'{call.entity}' requires sessions, which HTTP does not support: receive over AMQP")
        # These requests need no body. Read any body to the end, because a disconnect is not noticed while a body is
        # unread.
        await limits.read_body(call.request, max_bytes=0, timeout_s=self._limits.body_timeout_s)
        _check_available(fragments)
        return source, sub_queue, fragments

    def _now_ms(self) -> int:
        return self._namespace.clock.wall_ms()


def _entity_route(suffix: str, right: str, **handlers: Handler) -> Route:
    """Return a route below an entity. Other methods fall through, because an entity's path may end with the suffix."""
    pattern = re.compile(_ENTITY_PATTERN + suffix, re.IGNORECASE | re.DOTALL)
    return Route(pattern, handlers, right, scope_group="entity", falls_through=True)


def _delay_if_silent(handler: Handler) -> Handler:
    """Return a handler that withholds its error response until a rehearsed outage of the kind `silent` ends."""

    async def handle(call: Call) -> Response:
        try:
            return await handler(call)
        except SilentOutage as silence:
            caller, ended = Caller.from_scope(call.request.scope), asyncio.get_running_loop().create_future()
            silence.outage.defer_reply(ended, lambda: ended.set_result(None))
            await asyncio.wait([ended, caller.closed, caller.respond_now], return_when=asyncio.FIRST_COMPLETED)
            silence.outage.discard_replies(ended)
            if caller.closed.done():
                raise ClientDisconnect from None
            raise

    return handle


def _message_response(
    response_type: type[ResponseT], message: Message, token: uuid.UUID | None, status: int
) -> ResponseT:
    response = response_type(broker_properties.body_of(message), status_code=status)
    content_type = broker_properties.content_type_of(message)
    if content_type is not None:
        response.headers["content-type"] = content_type
    response.raw_headers.append((b"BrokerProperties", broker_properties.to_header(message, token)))
    response.raw_headers.extend(custom_properties.to_headers(message))
    return response


def _check_version(call: Call, entity: Queue | Topic | Subscription) -> None:
    """Raise InvalidArgument if the entity is partitioned and the api-version does not support partitioning."""
    if entity.is_partitioned and not call.knows_partitioning:
        raise InvalidArgument(f"'{entity.path}' is partitioned: it needs api-version {PARTITIONING_SINCE} or later")


def _check_available(fragments: list[FragmentPort]) -> None:
    """Raise an error if no fragment is available, so that an outage does not look like an empty queue."""
    if not any(fragment.is_available for fragment in fragments):
        fragments[0].check_loaded()
        fragments[0].check_available()


async def _settle_lock(settle: Callable[[OnDone], list[int]]) -> Response:
    lost: list[int] = []

    def start(on_done: OnDone) -> None:
        lost.extend(settle(on_done))
        if lost:  # the lock has just expired, so `on_done` is never called
            raise LockNotFound(str(lock_lost_error()))

    try:
        await wait_until_done(start)
    except MessageLockLost as error:  # reported by the process that owns the fragment
        raise LockNotFound(str(error)) from None
    return Response()


async def _locks_message(fragment: FragmentPort, lock_number: int, id_or_sequence_number: str) -> bool:
    """Return whether a lock belongs to the message with this sequence number or id.

    Raise LockNotFound if the lock has expired.
    """
    try:
        sequence, message_id = await wait_for_result(partial(fragment.settlement.find_locked_message, lock_number))
    except MessageLockLost as error:
        raise LockNotFound(str(error)) from None
    return id_or_sequence_number in (str(sequence), message_id)
