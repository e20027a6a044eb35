"""Nodes that answer requests: `$cbs`, and the `$management` of each entity.

A client has two links to a node, one to send requests on and one to receive the answers; both may have any name. Owns:
which link an answer goes to, and the form of requests and answers. What is asked is the node's affair.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from twinbus.amqp.decode import DEFAULT_LIMITS
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

    from twinbus.amqp.composite import Composite
    from twinbus.amqp.delivery import IncomingDelivery
    from twinbus.amqp.link import Link
    from twinbus.amqp.outcomes import TransactionalState
    from twinbus.amqp.receiver import Receiver
    from twinbus.amqp.settings import Limits
    from twinbus.broker.clock import Clock
    from twinbus.broker.namespace import Transaction
    from twinbus.server.amqp.transactions import Transactions

    OnReply: TypeAlias = Callable[["Response"], None]
    from twinbus.amqp.aio import Peer
    from twinbus.server.amqp.socket_backpressure import CallSoon

MAX_REQUESTS_PER_TURN: Final = 32
"""Requests of one connection in one turn of the loop."""
MAX_RUNNING_RESPONSE_BYTES: Final = 2_097_152
"""Answers that may be on their way to being sent, as large as they may become."""


class RequestQueue:
    """The requests of one connection."""

    def __init__(self, peer: Peer, call_soon: CallSoon) -> None:
        """Nothing was asked yet."""
        self._backpressure = SocketBackpressure(peer, call_soon, self.resume)
        self._call_soon = call_soon
        self._waiting: deque[tuple[RequestLink, IncomingDelivery]] = deque()
        self._reserved_bytes = 0
        self._is_resume_scheduled = False
        self._is_running = False

    @property
    def waiting_count(self) -> int:
        """Requests that are not executed yet."""
        return len(self._waiting)

    def add(self, link: RequestLink, deliveries: list[IncomingDelivery]) -> None:
        """Requests have come."""
        self._waiting.extend((link, delivery) for delivery in deliveries)
        self.resume()

    def reserve(self, response_bytes: int) -> None:
        """A request is executed whose answer may have so many bytes."""
        self._reserved_bytes += response_bytes

    def release(self, response_bytes: int) -> None:
        """Its answer is queued, or will be long in coming."""
        self._reserved_bytes -= response_bytes
        self.resume()

    def resume(self) -> None:
        """Execute requests, as far as their answers have room."""
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
"""Requests a client may have unanswered."""
MAX_REQUEST_BYTES = 1_048_576
"""A request holds messages, or more of them than can be taken: it is the node that says so, since some clients cannot
use a link again on which one was rejected."""
DEFAULT_RESPONSE_BYTES = 1_024
"""What an answer has unless its node says otherwise, about."""
MAX_WAITING_RESPONSE_BYTES = 4_194_304
"""Answers that may wait for a client to open its session's window."""


class Request:
    """One request, read."""

    def __init__(self, message: Message, transaction: Transaction | None = None) -> None:
        """`transaction` is what it is part of, if it is. MalformedMessage where it cannot be read."""
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
        """A property that must be there, as text."""
        found = self.properties.get(name) if isinstance(self.properties, dict) else None
        if not isinstance(found, str):
            raise InvalidArgument(f"the request has no property {name!r} that is a string")
        return str(found)


class Response:
    """What is answered: properties, and perhaps a body."""

    def __init__(self, properties: Mapping[str, object], body: object = None) -> None:
        """`body` is an AMQP value."""
        self.properties = properties
        self.body = body


class Node(Protocol):
    """What answers."""

    def handle(self, request: Request, on_reply: OnReply) -> None:
        """Answer a request, now or later."""

    def error_response(self, error: ServiceBusError) -> Response:
        """The answer to a request that failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """What a node takes as a request, and what it answers."""

    max_request_bytes: int = MAX_REQUEST_BYTES
    decode_limits: Limits = DEFAULT_LIMITS
    """For what is decoded of a request."""
    estimate_response_bytes: Callable[[Request], int] | None = None
    """About how many bytes the answer to a request may have; `ANSWER_BYTES` where nothing is said."""


class RequestLink:
    """A link on which requests come, with the node they are for."""

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
        """Accept the link. `transactions` are those that a request may be part of; `queue` is the connection's."""
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
        """Write decimals in messages as the Azure SDK for Python reads them."""
        self._last_reply_link: tuple[str | None, Sender | None] = None, None
        link.accept(max_message_size=self._request_limits.max_request_bytes)
        link.keep_credit(REQUEST_CREDIT)

    @property
    def is_busy(self) -> bool:
        """It costs nothing while nobody asks, and clients do not expect to lose it."""
        return True

    def on_deliveries(self, deliveries: list[IncomingDelivery]) -> None:
        """Requests that came in one read."""
        self.last_used_s = self._clock.monotonic_s()
        self._request_queue.add(self, deliveries)

    def execute(self, delivery: IncomingDelivery) -> None:
        """Settle a request, and do what it asks. Nothing is done for a client that has detached meanwhile."""
        if self.link.is_over:
            return
        transaction: Transaction | None = None
        answer: Composite = ACCEPTED
        try:
            if delivery.state is not None:
                transaction, answer = self._join_transaction(delivery)
            request = Request(Message(delivery.payload, self._request_limits.decode_limits), transaction)
        except (DecodeError, ServiceBusError) as fault:
            error = fault if isinstance(fault, ServiceBusError) else MalformedMessage(f"no request: {fault}")
            _fail_transaction(transaction, error)
            self.link.settle([delivery], Rejected(error=to_amqp_error(error)))
            return
        self.link.settle([delivery], answer)
        self._handle(request)

    def _join_transaction(self, delivery: IncomingDelivery) -> tuple[Transaction, TransactionalState]:
        if self._transactions is None:
            raise InvalidOperation("a request to this node cannot be part of a transaction")
        return self._transactions.join(delivery.state, len(delivery.payload))

    def force_detach(self, error: ServiceBusError) -> None:
        """What it is for was deleted."""
        self.link.detach(error=to_amqp_error(error))

    def _reply_link_for(self, reply_to: str | None) -> Sender | None:
        """Where the answer goes: mostly where the one before it went."""
        asked, found = self._last_reply_link
        if found is None or asked != reply_to or not found.is_attached:
            found = self._find_reply_link(self.link, reply_to)
            self._last_reply_link = reply_to, found
        return found

    def _handle(self, request: Request) -> None:
        weigh = self._request_limits.estimate_response_bytes
        weight = weigh(request) if weigh is not None else DEFAULT_RESPONSE_BYTES

        def lighten() -> None:
            nonlocal weight
            lighter, weight = weight, 0
            self._request_queue.release(lighter)

        def reply(response: Response) -> None:
            self._pending_count -= 1
            send(response)
            lighten()

        def send(response: Response) -> None:
            link = self._reply_link_for(request.reply_to)
            if link is not None and link.session.send_queue.waiting_bytes > MAX_WAITING_RESPONSE_BYTES:
                text = "the answers are not taken: grant a window in the session, and attach again"
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
        self._request_queue.reserve(weight)
        try:
            if self._pending_count > REQUEST_CREDIT:
                raise ServerBusy(f"{REQUEST_CREDIT} requests wait for their answers: ask again when some have come")
            self.node.handle(request, reply)
        except ServiceBusError as error:
            _fail_transaction(request.transaction, error)
            refusal = self.node.error_response(error)
            send_error(self, error, lambda: reply(refusal))
            lighten()  # of an entity that is silent the answer comes much later, and is small


def _rewrite_decimals(body: object) -> None:
    """In the messages of an answer."""
    messages = body.get("messages") if isinstance(body, dict) else None
    for item in messages if isinstance(messages, list) else ():
        item["message"] = rewrite_decimals(item["message"])


class ReplyLink:
    """A link on which answers go."""

    def __init__(self, link: Sender, path: str, clock: Clock) -> None:
        """Accept the link."""
        self.link = link
        self.path = path
        self.last_used_s = clock.monotonic_s()
        link.accept()
        link.ignores_credit = True

    @property
    def is_busy(self) -> bool:
        """As the link of the requests."""
        return True


def _fail_transaction(transaction: Transaction | None, error: ServiceBusError) -> None:
    if transaction is not None:
        transaction.fail(error)


if TYPE_CHECKING:
    FindReplyLink: TypeAlias = Callable[[Receiver, str | None], Sender | None]


def find_reply_link(request_link: Receiver, reply_to: str | None) -> Sender | None:
    """The link to the same node, in the same session, whose target or name is `reply_to`; any, if nothing is said."""
    asked = request_link.context
    assert isinstance(asked, RequestLink)
    for link in request_link.session.links.values():
        if not isinstance(link, Sender) or not isinstance(link.context, ReplyLink) or link.context.path != asked.path:
            continue
        if reply_to is None or reply_to in (link.name, _target_address(link)):
            return link
    return None


def _target_address(link: Link) -> object:
    target = link.remote_attach.target if link.remote_attach is not None else None
    return getattr(target, "address", None)
