"""Links to nodes that respond to requests: `$cbs`, and the `$management` of each entity.

A client attaches two links to a node, one to send requests and one to receive responses; both may have any name.

Owns: the choice of the link for a response, and the form of requests and responses. The node executes the requests.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from twinbus.amqp.codec.decode import DEFAULT_LIMITS
from twinbus.amqp.errors import DecodeError
from twinbus.amqp.message import Message, Properties, build, value
from twinbus.amqp.outcomes import ACCEPTED, Rejected
from twinbus.amqp.sender import Sender
from twinbus.model.errors import InvalidArgument, InvalidOperation, MalformedMessage, ServerBusy, ServiceBusError
from twinbus.server.amqp.errors import send_error, to_amqp_error
from twinbus.server.amqp.sdk_decimals import rewrite_decimals
from twinbus.server.amqp.socket_backpressure import SocketBackpressure

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import TypeAlias

    from twinbus.amqp.aio import Peer
    from twinbus.amqp.codec.composite import Composite
    from twinbus.amqp.delivery import IncomingDelivery
    from twinbus.amqp.link import Link
    from twinbus.amqp.outcomes import TransactionalState
    from twinbus.amqp.receiver import Receiver
    from twinbus.amqp.settings import Limits
    from twinbus.broker.clock import Clock
    from twinbus.broker.namespace import Transaction
    from twinbus.server.amqp.socket_backpressure import CallSoon
    from twinbus.server.amqp.transactions import Transactions

    OnReply: TypeAlias = Callable[["Response"], None]

MAX_REQUESTS_PER_TURN: Final = 32
"""How many requests per connection are executed in one turn of the event loop."""
MAX_RUNNING_RESPONSE_BYTES: Final = 2_097_152
"""The limit on the estimated total size of the responses to running requests."""


class RequestQueue:
    """The pending requests of one connection."""

    def __init__(self, peer: Peer, call_soon: CallSoon) -> None:
        """Create an empty queue."""
        self._backpressure = SocketBackpressure(peer, call_soon, self.resume)
        self._call_soon = call_soon
        self._waiting: deque[tuple[RequestLink, IncomingDelivery]] = deque()
        self._reserved_bytes = 0
        self._is_resume_scheduled = False
        self._is_running = False

    @property
    def waiting_count(self) -> int:
        """The number of requests that are not executed yet."""
        return len(self._waiting)

    def add(self, link: RequestLink, deliveries: list[IncomingDelivery]) -> None:
        """Add requests and execute them as far as possible."""
        self._waiting.extend((link, delivery) for delivery in deliveries)
        self.resume()

    def reserve(self, response_bytes: int) -> None:
        """Reserve room for the response to a request that is about to be executed."""
        self._reserved_bytes += response_bytes

    def release(self, response_bytes: int) -> None:
        """Release the room reserved for a response that is queued or delayed."""
        self._reserved_bytes -= response_bytes
        self.resume()

    def resume(self) -> None:
        """Execute requests as long as there is room for their responses."""
        if self._is_running or self._is_resume_scheduled:
            return
        self._is_running = True
        try:
            for _ in range(MAX_REQUESTS_PER_TURN):
                if (
                    not self._waiting
                    or self._reserved_bytes >= MAX_RUNNING_RESPONSE_BYTES
                    or not self._backpressure.has_room()
                ):
                    return
                link, delivery = self._waiting.popleft()
                link.execute(delivery)
        finally:
            self._is_running = False
        if self._waiting:
            self._is_resume_scheduled = True
            self._call_soon(self._on_next_turn)

    def _on_next_turn(self) -> None:
        self._is_resume_scheduled = False
        self.resume()


REQUEST_CREDIT = 100
"""How many unanswered requests a client may have."""
MAX_REQUEST_BYTES = 1_048_576
"""The maximum size of a request, large enough that the node itself can refuse a request with too many messages.

Some clients cannot use a link again after a request on the link was rejected.
"""
DEFAULT_RESPONSE_BYTES = 1_024
"""The estimated size of a response if the node gives no other estimate."""
MAX_WAITING_RESPONSE_BYTES = 4_194_304
"""The maximum size of responses that wait for the client to open its session window."""


class Request:
    """A parsed request."""

    def __init__(self, message: Message, transaction: Transaction | None = None) -> None:
        """Parse a request, which may belong to a `transaction`.

        Raise MalformedMessage if the request cannot be decoded.
        """
        self.transaction = transaction
        try:
            properties = message.properties
            self.message_id = properties.message_id if properties is not None else None
            self.reply_to = properties.reply_to if properties is not None else None
            self.properties = message.application_properties
            self.body = message.value
        except DecodeError as error:
            raise MalformedMessage(f"the request is malformed: {error.description}") from None

    def required_text(self, name: str) -> str:
        """Return a required property as text. Raise InvalidArgument if the property is missing or not a string."""
        value = self.properties.get(name) if isinstance(self.properties, dict) else None
        if not isinstance(value, str):
            raise InvalidArgument(f"the request needs a property {name!r} that is a string")
        return str(value)


class Response:
    """A response: properties, and possibly a body."""

    def __init__(self, properties: Mapping[str, object], body: object = None) -> None:
        """Create a response; `body` is an AMQP value."""
        self.properties = properties
        self.body = body


class Node(Protocol):
    """A node that responds to requests."""

    def handle(self, request: Request, on_reply: OnReply) -> None:
        """Execute a request and pass the response to `on_reply`, now or later."""

    def error_response(self, error: ServiceBusError) -> Response:
        """Return the response to a request that failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """The limits for requests to a node, and the size of the node's responses."""

    max_request_bytes: int = MAX_REQUEST_BYTES
    decode_limits: Limits = DEFAULT_LIMITS
    """Limits for decoding a request."""
    estimate_response_bytes: Callable[[Request], int] | None = None
    """A function that estimates the size of the response to a request (default: `DEFAULT_RESPONSE_BYTES`)."""


class RequestLink:
    """The server's end of a link on which a client sends requests to a node."""

    def __init__(
        self,
        link: Receiver,
        path: str,
        node: Node,
        find_reply_link: FindReplyLink,
        clock: Clock,
        request_queue: RequestQueue,
        transactions: Transactions | None = None,
        *,
        request_limits: RequestLimits | None = None,
    ) -> None:
        """Accept the link. Requests may belong to `transactions`, and wait in the connection's `request_queue`."""
        self.link = link
        self.is_sender = False
        self.path = path
        self.last_used_s = clock.monotonic_s()
        self.node = node
        self._find_reply_link = find_reply_link
        self._clock = clock
        self._transactions = transactions
        self._request_queue = request_queue
        self._pending_count = 0
        self._request_limits = request_limits or RequestLimits()
        self.rewrites_decimals = False
        """Whether decimals in messages are encoded for the Azure SDK for Python."""
        self._last_reply_link: tuple[str | None, Sender | None] = None, None
        link.accept(max_message_size=self._request_limits.max_request_bytes)
        link.keep_credit(REQUEST_CREDIT)

    @property
    def is_busy(self) -> bool:
        """Always True, because an idle link costs nothing, and clients do not expect to lose it."""
        return True

    def on_deliveries(self, deliveries: list[IncomingDelivery]) -> None:
        """Queue requests that arrived in one read."""
        self.last_used_s = self._clock.monotonic_s()
        self._request_queue.add(self, deliveries)

    def execute(self, delivery: IncomingDelivery) -> None:
        """Settle a request and execute it, unless the client has detached the link."""
        if self.link.is_over:
            return
        transaction: Transaction | None = None
        outcome: Composite = ACCEPTED
        try:
            if delivery.state is not None:
                transaction, outcome = self._join_transaction(delivery)
            request = Request(Message(delivery.payload, self._request_limits.decode_limits), transaction)
        except (DecodeError, ServiceBusError) as cause:
            error = (
                cause if isinstance(cause, ServiceBusError) else MalformedMessage(f"the request is malformed: {cause}")
            )
            _fail_transaction(transaction, error)
            self.link.settle([delivery], Rejected(error=to_amqp_error(error)))
            return
        self.link.settle([delivery], outcome)
        self._handle(request)

    def _join_transaction(self, delivery: IncomingDelivery) -> tuple[Transaction, TransactionalState]:
        if self._transactions is None:
            raise InvalidOperation("a request to this node cannot be part of a transaction")
        return self._transactions.join(delivery.state, len(delivery.payload))

    def force_detach(self, error: ServiceBusError) -> None:
        """Detach the link with an error, for example because the entity was deleted."""
        self.link.detach(error=to_amqp_error(error))

    def _reply_link_for(self, reply_to: str | None) -> Sender | None:
        """Return the link for a response, or None; usually the link that carried the previous response."""
        last_reply_to, link = self._last_reply_link
        if link is None or last_reply_to != reply_to or not link.is_attached:
            link = self._find_reply_link(self.link, reply_to)
            self._last_reply_link = reply_to, link
        return link

    def _handle(self, request: Request) -> None:
        estimate = self._request_limits.estimate_response_bytes
        reserved_bytes = estimate(request) if estimate is not None else DEFAULT_RESPONSE_BYTES

        def release() -> None:
            nonlocal reserved_bytes
            released_bytes, reserved_bytes = reserved_bytes, 0
            self._request_queue.release(released_bytes)

        def reply(response: Response) -> None:
            self._pending_count -= 1
            send(response)
            release()

        def send(response: Response) -> None:
            link = self._reply_link_for(request.reply_to)
            if link is not None and link.session.send_queue.waiting_bytes > MAX_WAITING_RESPONSE_BYTES:
                text = "too many responses are waiting: open the session window, and attach again"
                link.detach(error=to_amqp_error(ServerBusy(text)))
            elif link is not None and link.is_attached:
                properties = Properties(correlation_id=request.message_id)
                if self.rewrites_decimals:
                    _rewrite_decimals(response.body)
                body = value(response.body)
                link.send(
                    build(properties=properties, application_properties=response.properties, body=body), settled=True
                )

        self._pending_count += 1
        self._request_queue.reserve(reserved_bytes)
        try:
            if self._pending_count > REQUEST_CREDIT:
                raise ServerBusy(f"{REQUEST_CREDIT} requests are unanswered: retry after some responses have arrived")
            self.node.handle(request, reply)
        except ServiceBusError as error:
            _fail_transaction(request.transaction, error)
            refusal = self.node.error_response(error)
            send_error(self, error, lambda: reply(refusal))
            release()  # the response is small, and in a silent outage it is sent much later


def _rewrite_decimals(body: object) -> None:
    """Encode the decimals in a response's messages for the Azure SDK for Python."""
    messages = body.get("messages") if isinstance(body, dict) else None
    for item in messages if isinstance(messages, list) else ():
        item["message"] = rewrite_decimals(item["message"])


class ReplyLink:
    """The server's end of a link on which a client receives responses."""

    def __init__(self, link: Sender, path: str, clock: Clock) -> None:
        """Accept the link, and send on it without waiting for credit."""
        self.link = link
        self.path = path
        self.last_used_s = clock.monotonic_s()
        link.accept()
        link.ignores_credit = True

    @property
    def is_busy(self) -> bool:
        """Always True, as for a `RequestLink`."""
        return True


def _fail_transaction(transaction: Transaction | None, error: ServiceBusError) -> None:
    if transaction is not None:
        transaction.fail(error)


if TYPE_CHECKING:
    FindReplyLink: TypeAlias = Callable[[Receiver, str | None], Sender | None]


def find_reply_link(request_link: Receiver, reply_to: str | None) -> Sender | None:
    """Return the link to the same node, in the same session, whose target or name is `reply_to`; None if there is none.

    If `reply_to` is None, any link to the node is returned.
    """
    request_handler = request_link.context
    assert isinstance(request_handler, RequestLink)
    for link in request_link.session.links.values():
        if (
            not isinstance(link, Sender)
            or not isinstance(link.context, ReplyLink)
            or link.context.path != request_handler.path
        ):
            continue
        if reply_to is None or reply_to in (link.name, _target_address(link)):
            return link
    return None


def _target_address(link: Link) -> object:
    target = link.remote_attach.target if link.remote_attach is not None else None
    return getattr(target, "address", None)
