"""Two fake namespaces in the test process: stored messages are a list, and an outage is a name in a set.

Senders are real, except for the call that would put bytes on a link.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from twinbus.amqp.message import Message
from twinbus.client.connection_string import ConnectionString
from twinbus.client.errors import ConnectionFailed, TimedOut
from twinbus.client.factory import MessagingFactory
from twinbus.client.pairing import EventKind, Pairing, PairingEvent, SendAvailabilityPairedNamespaceOptions
from twinbus.client.pairing.spool import spool_sender
from twinbus.client.sender import MessageSender
from twinbus.client.settings import FactorySettings
from twinbus.model.message import BATCH_FORMAT, PING_CONTENT_TYPE, BrokeredMessage
from twinbus.testing.clock import FakeClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    import pytest

    from twinbus.client.retry import RetryPolicy
    from twinbus.model.errors import ServiceBusError

PRIMARY, SECONDARY = "contoso", "contoso-backup"
LIMIT_S = 20.0


class StoredMessage(NamedTuple):
    namespace: str
    path: str
    message: BrokeredMessage

    @property
    def name(self) -> object:
        return self.message.message_id


class FakeNamespaces:
    """The simulated failures of the namespaces, and the messages that have arrived."""

    def __init__(self) -> None:
        self.down_namespaces: set[str] = set()
        self.errors: dict[tuple[str, str], ServiceBusError] = {}
        """The error with which an entity of a namespace refuses messages."""
        self.silent_namespaces: set[str] = set()
        """Namespaces that do not respond."""
        self.delayed_responses: dict[object, asyncio.Event] = {}
        """Messages whose response is sent when their event is set."""
        self.stored: list[StoredMessage] = []
        self.events: list[PairingEvent] = []
        self.request_count = 0
        self._changed = asyncio.Event()

    def end_outage(self, pairing: Pairing, *paths: str) -> None:
        """Restore the primary, and mark it healthy; the secondary stays down, so that nothing can be parked."""
        self.down_namespaces = {SECONDARY}
        for path in paths or ("orders",):
            pairing.mark_path_healthy(path)

    def stored_ids(self, namespace: str | None = None, path: str | None = None) -> list[object]:
        """The ids of messages that have arrived, in order."""
        return [
            item.name
            for item in self.stored
            if namespace in (None, item.namespace) and (path is None or path == item.path)
        ]

    def event_message_ids(self, kind: EventKind) -> list[object]:
        return [event.message_id for event in self.events if event.kind is kind]

    def on_event(self, event: PairingEvent) -> None:
        self.events.append(event)
        self._changed.set()

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition is true, and check it after each request and event."""
        async with asyncio.timeout(LIMIT_S):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def deliver(
        self, sender: MessageSender, payload: bytes, message_format: int, timeout_s: float | None
    ) -> None:
        """Store a message, or fail, in place of the link."""
        await asyncio.sleep(0)
        namespace = sender.factory.where.host
        self.request_count += 1
        self._changed.set()
        sender.check_open()
        if namespace in self.silent_namespaces:
            assert timeout_s is not None
            await asyncio.sleep(timeout_s)
            raise TimedOut(f"{namespace} is silent", was_sent=True)
        if namespace in self.down_namespaces:
            raise ConnectionFailed(f"{namespace} is down")
        error = self.errors.get((namespace, sender.path))
        if error is not None:
            raise error
        payloads = Message(payload).data if message_format == BATCH_FORMAT else [payload]
        messages = [BrokeredMessage.decode(item) for item in payloads]
        for message in messages:
            if message.message_id in self.delayed_responses:
                await self.delayed_responses[message.message_id].wait()
        self.stored += [
            StoredMessage(namespace, sender.path, message)
            for message in messages
            if message.content_type != PING_CONTENT_TYPE
        ]


class FakeManager:
    """A manager of the secondary, which fails while the secondary is down."""

    def __init__(self, namespaces: FakeNamespaces) -> None:
        self.where = ConnectionString(host=SECONDARY)
        self._namespaces = namespaces

    async def get_queues(self, _prefix: str) -> AsyncIterator[str]:
        if SECONDARY in self._namespaces.down_namespaces:
            raise ConnectionFailed(f"{SECONDARY} is down")
        no_queues: tuple[str, ...] = ()
        for path in no_queues:
            yield path

    async def create_queue(self, _path: str, _description: object) -> None: ...


def make_fake_namespaces(monkeypatch: pytest.MonkeyPatch) -> FakeNamespaces:
    """Fake namespaces, with short pauses between attempts."""
    namespaces = FakeNamespaces()

    async def deliver(
        sender: MessageSender,
        payload: bytes,
        message_format: int = 0,
        *,
        timeout_s: float | None = None,
        policy: RetryPolicy | None = None,
    ) -> None:
        assert timeout_s is None or timeout_s > 0, "no time was left for the attempt"
        del policy
        await namespaces.deliver(sender, payload, message_format, timeout_s)

    monkeypatch.setattr(MessageSender, "deliver", deliver)
    monkeypatch.setattr(spool_sender, "FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(spool_sender, "MAX_PAUSE_S", 0.01)
    return namespaces


def make_factory(host: str) -> MessagingFactory:
    where = ConnectionString(host=host, key_name="sender", key="c2VjcmV0", is_emulator=True)
    return MessagingFactory(where, FactorySettings(operation_timeout_s=5.0, clock=FakeClock()))


@contextlib.asynccontextmanager
async def pair_namespaces(namespaces: FakeNamespaces, folder: Path | None, **options: Any) -> AsyncIterator[Pairing]:  # noqa: ANN401
    """An application with a pair, from its start to its end."""
    primary = make_factory(PRIMARY)
    pairing = await primary.pair_namespace(
        SendAvailabilityPairedNamespaceOptions(
            secondary_factory=make_factory(SECONDARY),
            secondary_namespace_manager=cast("Any", FakeManager(namespaces)),
            **{"failover_interval": 0, "backlog_queue_count": 2, "spool_dir": folder, "backlog_cool_down": 0} | options,
        )
    )
    pairing.on_event(namespaces.on_event)
    async with pairing:
        yield pairing
