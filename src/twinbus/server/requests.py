"""Nodes that answer requests: `$cbs`, and the `$management` of each entity.

A client has two links to a node, one to send requests on and one to receive the answers; both may have any name. Owns:
which link an answer goes to, and the form of requests and answers. What is asked is the node's affair.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from twinbus.amqp.decode import DEFAULT_LIMITS
from twinbus.amqp.errors import DecodeError
from twinbus.amqp.message import Message, Properties, build, value
from twinbus.amqp.outcomes import ACCEPTED, Rejected
from twinbus.amqp.sender import Sender
from twinbus.model.errors import InvalidArgument, InvalidOperation, MalformedMessage, ServerBusy, ServiceBusError
from twinbus.server.answers import error_of
from twinbus.server.sdk_decimals import readable
from twinbus.server.silence import tell

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
    from twinbus.server.request_queue import RequestQueue
    from twinbus.server.transactions import Transactions

    Reply: TypeAlias = Callable[["Response"], None]

CREDIT = 100
"""Requests a client may have unanswered."""
REQUEST_MAX_BYTES = 1_048_576
"""A request holds messages, or more of them than can be taken: it is the node that says so, since some clients cannot
use a link again on which one was rejected."""
ANSWER_BYTES = 1_024
"""What an answer has unless its node says otherwise, about."""
WAITING_BYTES = 4_194_304
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

    def text(self, name: str) -> str:
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

    def handle(self, request: Request, reply: Reply) -> None:
        """Answer a request, now or later."""

    def refuse(self, error: ServiceBusError) -> Response:
        """The answer to a request that failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What a node takes as a request, and what it answers."""

    max_bytes: int = REQUEST_MAX_BYTES
    limits: Limits = DEFAULT_LIMITS
    """For what is decoded of a request."""
    weigh: Callable[[Request], int] | None = None
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
        queue: RequestQueue,
        transactions: Transactions | None = None,
        *,
        terms: Terms | None = None,
    ) -> None:
        """Accept the link. `transactions` are those that a request may be part of; `queue` is the connection's."""
        self.link = link
        self.sends = False
        self.path = path
        self.used_s = clock.monotonic_s()
        self.node = node
        self._find_reply_link = find_reply_link
        self._clock = clock
        self._transactions = transactions
        self._queue = queue
        self._open = 0
        self._terms = terms or Terms()
        self.rewrites_decimals = False
        """Write decimals in messages as the Azure SDK for Python reads them."""
        self._last_reply: tuple[str | None, Sender | None] = None, None
        link.accept(max_message_size=self._terms.max_bytes)
        link.keep_credit(CREDIT)

    @property
    def is_busy(self) -> bool:
        """It costs nothing while nobody asks, and clients do not expect to lose it."""
        return True

    def receive(self, deliveries: list[IncomingDelivery]) -> None:
        """Requests that came in one read."""
        self.used_s = self._clock.monotonic_s()
        self._queue.add(self, deliveries)

    def execute(self, delivery: IncomingDelivery) -> None:
        """Settle a request, and do what it asks. Nothing is done for a client that has detached meanwhile."""
        if self.link.is_over:
            return
        transaction: Transaction | None = None
        answer: Composite = ACCEPTED
        try:
            if delivery.state is not None:
                transaction, answer = self._join(delivery)
            request = Request(Message(delivery.payload, self._terms.limits), transaction)
        except (DecodeError, ServiceBusError) as fault:
            error = fault if isinstance(fault, ServiceBusError) else MalformedMessage(f"no request: {fault}")
            _fail(transaction, error)
            self.link.settle([delivery], Rejected(error=error_of(error)))
            return
        self.link.settle([delivery], answer)
        self._answer(request)

    def _join(self, delivery: IncomingDelivery) -> tuple[Transaction, TransactionalState]:
        if self._transactions is None:
            raise InvalidOperation("a request to this node cannot be part of a transaction")
        return self._transactions.join(delivery.state, len(delivery.payload))

    def entity_gone(self, error: ServiceBusError) -> None:
        """What it is for was deleted."""
        self.link.detach(error=error_of(error))

    def _reply_link(self, reply_to: str | None) -> Sender | None:
        """Where the answer goes: mostly where the one before it went."""
        asked, found = self._last_reply
        if found is None or asked != reply_to or not found.is_attached:
            found = self._find_reply_link(self.link, reply_to)
            self._last_reply = reply_to, found
        return found

    def _answer(self, request: Request) -> None:
        weigh = self._terms.weigh
        weight = weigh(request) if weigh is not None else ANSWER_BYTES

        def lighten() -> None:
            nonlocal weight
            lighter, weight = weight, 0
            self._queue.end(lighter)

        def reply(response: Response) -> None:
            self._open -= 1
            send(response)
            lighten()

        def send(response: Response) -> None:
            link = self._reply_link(request.reply_to)
            if link is not None and link.session.outbox.waiting_bytes > WAITING_BYTES:
                text = "the answers are not taken: grant a window in the session, and attach again"
                link.detach(error=error_of(ServerBusy(text)))
            elif link is not None and link.is_attached:
                properties = Properties(correlation_id=request.message_id)
                if self.rewrites_decimals:
                    _rewrite_decimals(response.body)
                body = value(response.body)
                link.send(
                    build(properties=properties, application_properties=response.properties, body=body), settled=True
                )

        self._open += 1
        self._queue.begin(weight)
        try:
            if self._open > CREDIT:
                raise ServerBusy(f"{CREDIT} requests wait for their answers: ask again when some have come")
            self.node.handle(request, reply)
        except ServiceBusError as error:
            _fail(request.transaction, error)
            refusal = self.node.refuse(error)
            tell(self, error, lambda: reply(refusal))
            lighten()  # of an entity that is silent the answer comes much later, and is small


def _rewrite_decimals(body: object) -> None:
    """In the messages of an answer."""
    messages = body.get("messages") if isinstance(body, dict) else None
    for item in messages if isinstance(messages, list) else ():
        item["message"] = readable(item["message"])


class ReplyLink:
    """A link on which answers go."""

    def __init__(self, link: Sender, path: str, clock: Clock) -> None:
        """Accept the link."""
        self.link = link
        self.path = path
        self.used_s = clock.monotonic_s()
        link.accept()
        link.ignores_credit = True

    @property
    def is_busy(self) -> bool:
        """As the link of the requests."""
        return True


def _fail(transaction: Transaction | None, error: ServiceBusError) -> None:
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
        if reply_to is None or reply_to in (link.name, _target(link)):
            return link
    return None


def _target(link: Link) -> object:
    target = link.remote_attach.target if link.remote_attach is not None else None
    return getattr(target, "address", None)
