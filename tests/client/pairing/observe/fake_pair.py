"""A pair without servers: a loop with virtual time, factories that connect nowhere, and backlog queues as lists.

def test_something() -> None:
    async def scenario(pair: FakePair) -> None: ...
    run_scenario(scenario)
"""

from __future__ import annotations

import asyncio
import selectors
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self, cast

from twinbus.amqp.message import build, data
from twinbus.amqp.types import Symbol, Timestamp
from twinbus.client.connection_string import ConnectionString
from twinbus.client.errors import ConnectionFailed
from twinbus.client.factory import MessagingFactory
from twinbus.client.pairing import PairingEvent, SendAvailabilityPairedNamespaceOptions
from twinbus.client.pairing.failover.fragment_outages import RoutingKey
from twinbus.client.settings import FactorySettings
from twinbus.model.errors import ServiceBusError
from twinbus.model.message import BrokeredMessage
from twinbus.model.queue import QueueRuntime

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence

    from twinbus.client.management import NamespaceManager
    from twinbus.client.pairing import Pairing
    from twinbus.client.pairing.sender import SendAvailabilitySender
    from twinbus.client.receiver import MessageReceiver
from twinbus.model.info import QueueInfo
from twinbus.model.queue import QueueDescription

WALL_MS = 1_700_000_000_000
START_S = 1_000.0
QUEUE_0, QUEUE_1, QUEUE_7 = (f"contoso/x-servicebus-transfer/{index}" for index in (0, 1, 7))


class VirtualTimeSelector(selectors.SelectSelector):
    """Never waits: if nothing is ready, the timeout passes at once."""

    elapsed_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout <= 0:
            return super().select(timeout)
        ready = super().select(0)
        if not ready:
            self.elapsed_s += timeout
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.selector = VirtualTimeSelector()
        super().__init__(self.selector)

    def time(self) -> float:
        return START_S + self.selector.elapsed_s


class LoopClock:
    """A wall clock that follows the loop's time, also on other threads."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    def wall_ms(self) -> int:
        return WALL_MS + round((self._loop.time() - START_S) * 1000)


@dataclass
class FakeBacklog:
    """The backlog queues of the secondary, and the failures that it simulates."""

    queues: dict[str, list[bytes]] = field(default_factory=dict)
    dead_letters: dict[str, int] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    """All requests that the secondary got."""
    is_down: bool = False
    is_silent: bool = False
    numbers: int = 0
    size_bytes: int = 0

    async def check(self, request: str) -> None:
        self.requests.append(request)
        if self.is_silent:
            await asyncio.sleep(3600)
        if self.is_down:
            raise ConnectionFailed("the secondary is down")

    def park(self, queue: str, path: object, *, count: int = 1) -> None:
        """Park messages for an entity now."""
        now_ms = LoopClock().wall_ms()
        for _ in range(count):
            self.numbers += 1
            self.queues.setdefault(queue, []).append(_parked(path, self.numbers, now_ms))


def _parked(path: object, number: int, now_ms: int) -> bytes:
    annotations: dict[object, object] = {
        Symbol("x-opt-sequence-number"): number,
        Symbol("x-opt-enqueued-time"): Timestamp(now_ms),
    }
    return build(
        message_annotations=cast("Any", annotations), application_properties={"x-ms-path": path}, body=data(b"")
    )


class FakeManager:
    """The part of a NamespaceManager that a pairing needs."""

    def __init__(self, backlog: FakeBacklog) -> None:
        self.where = ConnectionString(host="contoso-backup")
        self._backlog = backlog

    async def get_queues(self, prefix: str) -> AsyncIterator[QueueInfo]:
        await self._backlog.check(f"paths of {prefix}")
        for path in list(self._backlog.queues):
            yield QueueInfo(path=path, description=QueueDescription(), runtime=self._runtime(path))

    async def create_queue(self, path: str, description: QueueDescription) -> None:
        assert description.max_size_mb == 5120
        self._backlog.queues[path] = []

    async def get_queue_runtime(self, path: str) -> QueueRuntime:
        await self._backlog.check(f"count {path}")
        return self._runtime(path)

    def _runtime(self, path: str) -> QueueRuntime:
        return QueueRuntime(
            active_count=len(self._backlog.queues[path]),
            dead_letter_count=self._backlog.dead_letters.get(path, 0),
            size_bytes=self._backlog.size_bytes,
            created_ms=0,
            updated_ms=0,
            accessed_ms=0,
        )


class FakeReceiver:
    """The part of a MessageReceiver that peeks need."""

    def __init__(self, backlog: FakeBacklog, path: str) -> None:
        self._backlog = backlog
        self._path = path

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._path = "closed"

    async def peek_batch(self, max_count: int, start: int) -> list[BrokeredMessage]:
        await self._backlog.check(f"peek {self._path}")
        messages = [BrokeredMessage.decode(payload, is_peeked=True) for payload in self._backlog.queues[self._path]]
        return [message for message in messages if message.sequence_number >= start][:max_count]


class FakeFactory(MessagingFactory):
    """A factory that connects nowhere."""

    def __init__(self, port: int, backlog: FakeBacklog) -> None:
        text = f"Endpoint=sb://127.0.0.1:{port};SharedAccessKeyName=k;SharedAccessKey=c2Vj;UseDevelopmentEmulator=true"
        super().__init__(ConnectionString.parse(text), FactorySettings(clock=LoopClock(), client_id=f"client-{port}"))
        self._backlog = backlog

    def create_message_receiver(self, path: str, *_: Any, **__: Any) -> MessageReceiver:  # noqa: ANN401
        return cast("MessageReceiver", FakeReceiver(self._backlog, path))


class FakePair:
    """A pairing, its backlog and its events."""

    def __init__(self, pairing: Pairing, backlog: FakeBacklog) -> None:
        self.pairing = pairing
        self.backlog = backlog
        self.events: list[PairingEvent] = []
        pairing.on_event(self.events.append)

    def fail_over(self, path: str = "orders") -> None:
        """Let a send to an entity of the primary fail."""
        self.pairing.health_of(path).send_failed(ServiceBusError("it is gone"), RoutingKey())

    def sender(self, path: str, outcomes: Sequence[BaseException | None] = ()) -> SendAvailabilitySender:
        """A sender whose first attempts at the primary have these outcomes; later attempts succeed."""
        sender = self.pairing.make_sender(path)
        sender.deliver = make_deliver(list(outcomes))  # type: ignore[method-assign]
        return sender

    def set_parking_outcomes(self, outcomes: Sequence[BaseException | None] = ()) -> None:
        """Set the outcomes of the next parking attempts, for all backlog queues together."""
        deliver = make_deliver(list(outcomes))
        for queue in self.pairing.rotation.queues:
            queue.sender.deliver = deliver  # type: ignore[method-assign]

    def event_kinds(self) -> list[str]:
        return [event.kind.value for event in self.events]


def make_deliver(outcomes: list[BaseException | None]) -> Callable[..., Coroutine[Any, Any, None]]:
    async def deliver(*_: object, **__: object) -> None:
        await asyncio.sleep(0)
        if outcomes and (error := outcomes.pop(0)) is not None:
            raise error

    return deliver


async def make_pair(backlog: FakeBacklog, **options: Any) -> FakePair:  # noqa: ANN401  # options of the pairing
    """A new pair with two backlog queues that fails over at once."""
    all_options = {"backlog_queue_count": 2, "failover_interval": 0, "ping_primary_interval": 1800} | options
    primary, secondary = FakeFactory(1, backlog), FakeFactory(2, backlog)
    pairing = await primary.pair_namespace(
        SendAvailabilityPairedNamespaceOptions(
            secondary_factory=secondary,
            secondary_namespace_manager=cast("NamespaceManager", FakeManager(backlog)),
            primary_namespace_name="contoso",
            **all_options,
        )
    )
    return FakePair(pairing, backlog)


def run_scenario(
    scenario: Callable[[FakePair], Awaitable[None]],
    *,
    backlog: FakeBacklog | None = None,
    **options: Any,  # noqa: ANN401
) -> None:
    """Run a scenario on a loop with virtual time."""

    async def run_with_pair() -> None:
        pair = await make_pair(backlog if backlog is not None else FakeBacklog(), **options)
        try:
            await scenario(pair)
        finally:
            await pair.pairing.close()

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(run_with_pair())
