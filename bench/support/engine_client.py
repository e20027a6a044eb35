"""A client on twinbus's own AMQP engine, for benchmarks that need more than sends and receives.

    async with connect_client(server) as client:
        await client.send(queue, batches(messages, 250))
        numbers = await client.receive(queue, 10_000, ACCEPTED)

Owns one connection and its links, and the encoding of messages, which is hand-written because benchmarks need millions
of them. Each call waits for the server's response, and raises LinkRefused if the response is an error. Knows nothing of
what a benchmark measures.
"""

from __future__ import annotations

import asyncio
import itertools
from contextlib import asynccontextmanager
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from twinbus.amqp.aio import connect
from twinbus.amqp.connection import Connection
from twinbus.amqp.events import (
    AttachConfirmed,
    ConnectionClosed,
    ConnectionOpened,
    DeliveriesReceived,
    LinkDetached,
    ReceiptsUpdated,
    SaslFailed,
    SendsUpdated,
)
from twinbus.amqp.message import Message, Properties, build, value
from twinbus.amqp.outcomes import ACCEPTED, Rejected
from twinbus.amqp.sasl import Credentials
from twinbus.amqp.settings import Settings
from twinbus.amqp.states import ReceiverSettleMode
from twinbus.amqp.terminus import Source, Target
from twinbus.amqp.types import Symbol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator

    from bench.support.server import Server
    from twinbus.amqp.aio import Peer
    from twinbus.amqp.codec.composite import Composite
    from twinbus.amqp.delivery import IncomingDelivery
    from twinbus.amqp.events import Event
    from twinbus.amqp.link import Link
    from twinbus.amqp.receiver import Receiver
    from twinbus.amqp.sender import Sender

BATCH_FORMAT: Final = 0x80013700
SESSION_FILTER: Final = Symbol("com.microsoft:session-filter")
TIMEOUT_S: Final = 120.0
"""Time-out of any response."""
MAX_UNSETTLED: Final = 16
"""Maximum number of batches in flight."""
OK: Final = 200
NO_CONTENT: Final = 204

_numbers: Final = itertools.count()


class LinkRefused(Exception):
    """The error if the server refuses a request or does not respond."""


# --- messages ---------------------------------------------------------------------------------------------------------

_LIST8: Final = b"\x00\x53\x73\xc0"
_NULL: Final = b"\x40"
_TIMESTAMP: Final = Struct(">Bq")
_TIMESTAMP_CODE: Final = 0x83
_DATA: Final = b"\x00\x53\x75\xa0"
_LARGE_DATA: Final = Struct(">4sI")
_DUE_NAME: Final = b"x-opt-scheduled-enqueue-time"
_SEQUENCE_NAME: Final = b"x-opt-sequence-number\x81"
_SEQUENCE: Final = Struct(">q")


def write_message(
    message_id: str,
    body: bytes,
    *,
    session: str | None = None,
    due_ms: int | None = None,
    expires_ms: int | None = None,
) -> bytes:
    """Encode a small message, optionally with a session, a scheduled time, or an expiry time."""
    fields = [_text(message_id)]
    if expires_ms is not None or session is not None:
        fields += [_NULL] * 7 + [_timestamp(expires_ms)]
    if session is not None:
        fields += [_NULL, _text(session)]
    content = b"".join(fields)
    annotations = b""
    if due_ms is not None:
        pair = b"\xa3" + bytes((len(_DUE_NAME),)) + _DUE_NAME + _timestamp(due_ms)
        annotations = b"\x00\x53\x72\xc1" + bytes((len(pair) + 1, 2)) + pair
    properties = _LIST8 + bytes((len(content) + 1, len(fields))) + content
    return annotations + properties + _DATA + bytes((len(body),)) + body


def _text(text: str) -> bytes:
    raw = text.encode()
    return b"\xa1" + bytes((len(raw),)) + raw


def _timestamp(when_ms: int | None) -> bytes:
    return _NULL if when_ms is None else _TIMESTAMP.pack(_TIMESTAMP_CODE, when_ms)


def batches(messages: Iterable[bytes], size: int) -> Iterator[bytes]:
    """Encode messages as batches of `size` messages."""
    rest = iter(messages)
    while some := list(itertools.islice(rest, size)):
        yield b"".join([_LARGE_DATA.pack(b"\x00\x53\x75\xb0", len(message)) + message for message in some])


def sequence_of(payload: bytes) -> int:
    """Return the sequence number of a received message."""
    at = payload.index(_SEQUENCE_NAME) + len(_SEQUENCE_NAME)
    number: int = _SEQUENCE.unpack_from(payload, at)[0]
    return number


# --- a connection -----------------------------------------------------------------------------------------------------


class EngineClient:
    """A connection with one session and any number of links."""

    def __init__(self, peer: Peer) -> None:
        """Create a client on a connected socket."""
        self.peer = peer
        self.is_open = False
        self.end: str | None = None
        """Why the connection has ended, or None."""
        self._changed = asyncio.Event()
        self._confirmed: set[Link] = set()
        self._ended: dict[Link, str] = {}
        self._unanswered: set[object] = set()
        self._fault: str | None = None
        self._received: dict[Link, list[IncomingDelivery]] = {}
        self._answers: dict[object, Message] = {}
        self._nodes: dict[str, tuple[Sender, Receiver]] = {}
        """Links for requests and responses of each `$management` node."""

    # --- events -------------------------------------------------------------------------------------------------------

    def on_event(self, event: Event) -> None:
        """Record an event, and wake up waiting calls."""
        if isinstance(event, DeliveriesReceived):
            self._received[event.link].extend(event.deliveries)
        elif isinstance(event, SendsUpdated | ReceiptsUpdated):
            self._handle_event(event)
        elif isinstance(event, ConnectionOpened):
            self._session = self.peer.connection.begin_session()
            self.is_open = True
        elif isinstance(event, AttachConfirmed):
            if event.attach.source is not None and event.attach.target is not None:
                self._confirmed.add(event.link)
        elif isinstance(event, LinkDetached):
            self._ended[event.link] = str(event.error)
        elif isinstance(event, ConnectionClosed | SaslFailed):
            self.end = self.end or str(event)
        self._changed.set()

    def _handle_event(self, event: SendsUpdated | ReceiptsUpdated) -> None:
        if isinstance(event.state, Rejected):
            self._fault = str(event.state.error)
        for delivery in event.deliveries:
            self._unanswered.discard(delivery)

    def on_writable(self) -> None:
        """Wake up waiting calls: the socket accepts data again."""
        self._changed.set()

    async def wait_until(self, condition: Callable[[], object]) -> None:
        """Wait until a condition is true. Raise LinkRefused if the connection ends or the time-out passes."""
        try:
            while not condition():
                if self.end is not None or self._fault is not None:
                    raise LinkRefused(self._fault or self.end)
                self._changed.clear()
                async with asyncio.timeout(TIMEOUT_S):
                    await self._changed.wait()
        except TimeoutError:
            raise LinkRefused(f"no response for {TIMEOUT_S:.0f} s") from None

    async def _attached(self, link: Link) -> None:
        await self.wait_until(lambda: link in self._confirmed or link in self._ended)
        self._confirmed.discard(link)
        if link in self._ended:
            raise LinkRefused(self._ended.pop(link))

    async def detach(self, link: Link) -> None:
        """Detach a link."""
        link.detach()
        await self.wait_until(lambda: link in self._ended)
        del self._ended[link]
        self._received.pop(link, None)

    # --- sending ------------------------------------------------------------------------------------------------------

    async def send(self, queue: str, payloads: Iterable[bytes], *, at_once: int = MAX_UNSETTLED) -> None:
        """Send batches, and wait until all are accepted."""
        link = await self.attach_sender(queue)
        await self.send_on(link, payloads, at_once=at_once)
        await self.detach(link)

    async def attach_sender(self, queue: str) -> Sender:
        """Attach a sender."""
        link = self._session.attach_sender(f"send-{next(_numbers)}", target=Target(address=queue), source=Source())
        await self._attached(link)
        return link

    async def send_on(
        self,
        link: Sender,
        payloads: Iterable[bytes],
        *,
        at_once: int = MAX_UNSETTLED,
        message_format: int = BATCH_FORMAT,
    ) -> None:
        """Send batches on a link, and wait until all are accepted."""
        unanswered = self._unanswered
        for payload in payloads:
            await self.wait_until(lambda: len(unanswered) < at_once and self.peer.is_writable and link.sendable)
            unanswered.add(link.send(payload, message_format=message_format))
        await self.wait_until(lambda: not unanswered)

    # --- receiving ----------------------------------------------------------------------------------------------------

    async def receive(self, queue: str, count: int, outcome: Composite = ACCEPTED, *, credit: int = 1_000) -> list[int]:
        """Receive `count` messages, settle each with `outcome`, and return their sequence numbers."""
        link = await self._attach_receiver(queue)
        numbers: list[int] = []
        got = self._received[link]
        granted = min(credit, count)
        link.grant(granted)
        while len(numbers) < count:
            await self.wait_until(lambda: got)
            some, got[:] = list(got), []
            numbers.extend([sequence_of(delivery.payload) for delivery in some])
            self._settle(link, some, outcome)
            granted -= len(some)
            if granted < credit // 2 and len(numbers) + granted < count:
                granted = min(credit, count - len(numbers))
                link.grant(granted)
        await self.wait_until(lambda: not self._unanswered)
        await self.detach(link)
        return numbers

    def _settle(self, link: Receiver, deliveries: list[IncomingDelivery], outcome: Composite) -> None:
        self._unanswered.update(deliveries)
        link.settle(deliveries, outcome, settled=False)

    async def _attach_receiver(self, queue: str, **more: Any) -> Receiver:  # noqa: ANN401  # like attach_receiver
        link = self._session.attach_receiver(
            f"receive-{next(_numbers)}",
            source=Source(address=queue, filter=more.pop("filter", None)),
            target=Target(),
            rcv_settle_mode=ReceiverSettleMode.SECOND,
            **more,
        )
        self._received[link] = []
        await self._attached(link)
        return link

    async def accept_session(self, queue: str, session: str | None = None) -> tuple[Receiver, str]:
        """Accept the next available session, or the given one. Return the link and the session id."""
        link = await self._attach_receiver(queue, filter={SESSION_FILTER: session})
        source = link.remote_attach.source if link.remote_attach is not None else None
        return link, str((getattr(source, "filter", None) or {})[SESSION_FILTER])

    async def drain_session(self, link: Receiver, count: int) -> None:
        """Receive and complete `count` messages of a session, and release the session."""
        link.grant(count)
        got = self._received[link]
        await self.wait_until(lambda: len(got) >= count)
        self._settle(link, got, ACCEPTED)
        await self.wait_until(lambda: not any(delivery in self._unanswered for delivery in got))
        await self.detach(link)

    # --- requests -----------------------------------------------------------------------------------------------------

    async def request(self, queue: str, operation: str, body: dict[str, object]) -> dict[str, Any]:
        """Send a request to `$management` and return the response, which is empty if there is no content."""
        node = f"{queue}/$management"
        if node not in self._nodes:
            self._nodes[node] = await self._attach_node(node)
        (link, hears), message_id = self._nodes[node], f"ask-{next(_numbers)}"
        properties = Properties(message_id=message_id, reply_to=hears.name)
        request = build(properties=properties, application_properties={"operation": operation}, body=value(body))
        await self.wait_until(lambda: link.sendable)
        link.send(request, settled=True)
        await self.wait_until(lambda: self._has_response(hears, message_id))
        answer = self._answers.pop(message_id)
        said = answer.application_properties
        assert isinstance(said, dict)
        if said["statusCode"] not in {OK, NO_CONTENT}:
            raise LinkRefused(f"{operation}: {said['statusCode']} {said['statusDescription']}")
        content = answer.value if said["statusCode"] == OK else None
        return content if isinstance(content, dict) else {}

    async def _attach_node(self, node: str) -> tuple[Sender, Receiver]:
        name = f"answers-{next(_numbers)}"
        hears = self._session.attach_receiver(name, source=Source(address=node), target=Target(address=name))
        self._received[hears] = []
        await self._attached(hears)
        hears.keep_credit(100)
        link = self._session.attach_sender(f"ask-{next(_numbers)}", target=Target(address=node), source=Source())
        await self._attached(link)
        return link, hears

    def _has_response(self, hears: Receiver, message_id: str) -> bool:
        some, self._received[hears] = self._received[hears], []
        hears.settle(some)
        for delivery in some:
            answer = Message(delivery.payload)
            properties = answer.properties
            assert properties is not None
            self._answers[properties.correlation_id] = answer
        return message_id in self._answers


@asynccontextmanager
async def connect_client(server: Server) -> AsyncIterator[EngineClient]:
    """Open a connection for the duration of the block."""
    settings = Settings(container_id=f"bench-{next(_numbers)}", hostname="localhost")
    credentials = Credentials.plain(server.key_name, server.key)
    client = await connect(
        EngineClient,
        lambda now: Connection.client(settings, credentials, now=now),
        host="127.0.0.1",
        port=server.amqp_port,
    )
    try:
        await client.wait_until(lambda: client.is_open)
        yield client
    finally:
        client.peer.close()
        async with asyncio.timeout(TIMEOUT_S):
            await asyncio.shield(client.peer.lost)
