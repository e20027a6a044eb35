"""A namespace in memory: the real broker, gateway and HTTP side, on a network, disks and a clock for tests.

    async with InMemoryNamespace("contoso") as namespace:
        await namespace.create_queue("orders")
        async with namespace.factory() as factory:
            await factory.create_queue_client("orders").send(BrokeredMessage("two pounds of apples"))
        assert len(await namespace.messages("orders")) == 1

Owns: its start, its end and its sudden end, and a look at what is in it. Everything it does is done by the server.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final, Self

from twinbus.client import BrokeredMessage, MessagingFactory
from twinbus.client.connection_string import HTTP_PORT
from twinbus.model import path as paths
from twinbus.model.authorization import new_secret
from twinbus.model.queue import QueueDescription
from twinbus.model.topic import SubscriptionDescription, TopicDescription
from twinbus.server.auth.keys import ROOT_KEY_NAME, Key, KeyRing
from twinbus.server.config.settings import DEFAULT_STORES, ServeSettings
from twinbus.server.runtime.listening_sockets import serve_with_loop
from twinbus.server.runtime.namespace_service import Dependencies, NamespaceService
from twinbus.server.runtime.ready_file import connection_string
from twinbus.testing.clock import LoopClock
from twinbus.testing.disks import LoopDisks
from twinbus.testing.loop import fake_time_loop
from twinbus.testing.network import on_host
from twinbus.testing.outage import Outage

if TYPE_CHECKING:
    from types import TracebackType

    from twinbus.broker.namespace import Namespace
    from twinbus.broker.ports.fragment import FragmentPort
    from twinbus.model.errors import ServiceBusError
    from twinbus.model.info import QueueInfo, SubscriptionInfo, TopicInfo
    from twinbus.model.queue import QueueRuntime
    from twinbus.model.rule import RuleDescription
    from twinbus.model.topic import TopicRuntime
    from twinbus.model.usage import UsageRow
    from twinbus.server.catalogue.local_catalogue import LocalCatalogue

AMQP_PORT: Final = 5672
_PAGE_MESSAGES: Final = 1_000
_PAGE_BYTES: Final = 16_777_216


class InMemoryNamespace:
    """One namespace. Needs a FakeTimeLoop."""

    def __init__(
        self,
        name: str = "contoso",
        *,
        host: str | None = None,
        clock: LoopClock | None = None,
        **settings: Any,  # noqa: ANN401  # each has a type of its own
    ) -> None:
        """Not started. `settings` are those of `twinbus serve`, like `stores` or `store_timeout_s`."""
        loop = fake_time_loop()
        self.name = name
        self.host = host or f"{name}.servicebus.test"
        self.clock = clock or LoopClock()
        defaults: dict[str, Any] = {
            "data": Path("memory"),
            "stores": 1,
            "amqp_port": AMQP_PORT,
            "amqps_port": None,
            "http_port": HTTP_PORT,
            "https_port": None,
            "plaintext": ("amqp", "http"),  # no TLS on the network in memory
        }
        self._settings = ServeSettings(name=name, host=self.host, **defaults | settings)
        self._key = Key(ROOT_KEY_NAME, new_secret())
        self._is_key_revoked = False
        self._loop = loop
        self._network = loop.network
        self._network.add_host(self.host)
        self._disks = LoopDisks(self._settings.stores or DEFAULT_STORES, loop)
        self._random = Random(name)  # noqa: S311  # ids are the same in every run
        self._service: NamespaceService | None = None
        self._stack = contextlib.AsyncExitStack()
        self._shutdown_task: asyncio.Task[None] | None = None
        self._factories: list[MessagingFactory] = []
        self.outage = Outage(loop, self.host, self._disks, self._find_broker, self._set_key_revoked)
        """What happens to it."""

    @property
    def connection_string(self) -> str:
        """For messaging."""
        return connection_string(self.host, self._settings.port("amqp"), self._key, is_emulator=True)

    @property
    def admin_connection_string(self) -> str:
        """For management, over http."""
        return connection_string(self.host, self._settings.port("http"), self._key, is_emulator=True)

    # --- its life -----------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.outage.restore()
        for factory in self._factories:
            await factory.close()
        await self.stop()

    @property
    def is_running(self) -> bool:
        """It serves."""
        return self._service is not None

    async def start(self) -> None:
        """Serve what is on its disks."""
        await self._wait_for_shutdown()
        if self._service is not None:
            return
        was_key_revoked = self._is_key_revoked
        ground = Dependencies(
            clock=self.clock,
            random=self._random,
            keys=self._keys,
            store_backend=self._disks,
            open_catalogue=self._disks.open_catalogue,
            open_acceptors=self._listen,
        )
        service = NamespaceService(self._settings, ground)
        with on_host(self.host):
            async with contextlib.AsyncExitStack() as stack:
                await service.start(stack, None)
                self._stack = stack.pop_all()
        self._service = service
        if was_key_revoked is not self._is_key_revoked:  # it was changed while the server was starting
            service.listeners.replace_keys(self._keys)
        self.outage.apply()

    def _listen(self) -> dict[str, Any]:
        settings = self._settings
        return {way: [serve_with_loop(settings.host, settings.port(way))] for way in settings.open_protocols}

    async def stop(self) -> None:
        """End well, as by SIGTERM."""
        await self._wait_for_shutdown()
        if self._service is not None:
            await self._stack.aclose()
            self._service = None
            self._disks.crash()  # a store that hangs has not let go of its disk; the others have nothing to lose

    def kill(self) -> None:
        """End at once, as by SIGKILL: connections are cut, and what was accepted is on its disks."""
        if self._service is None:
            return
        self._disks.crash()
        self._network.switch_off(self.host)
        self._loop.thaw(self.host)  # a process that stands still can be killed, too
        self._service.listeners.grace_s = 0.0  # the rest only lets go of what nobody reaches any more
        self._service = None
        self._shutdown_task = asyncio.ensure_future(self._stack.aclose())

    async def _wait_for_shutdown(self) -> None:
        if self._shutdown_task is not None:
            await self._shutdown_task
            self._shutdown_task = None

    # --- what is in it ------------------------------------------------------------------------------------------------

    @property
    def broker(self) -> Namespace:
        """What serves. RuntimeError while nothing does."""
        return self._running_service.namespace

    @property
    def entities(self) -> LocalCatalogue:
        """What manages it."""
        return self._running_service.catalogue

    def _find_broker(self) -> Namespace | None:
        return self._service.namespace if self._service is not None else None

    @property
    def _running_service(self) -> NamespaceService:
        if self._service is None:
            raise RuntimeError(f"{self.name} is not running: start it first")
        return self._service

    async def create_queue(self, path: str, **description: Any) -> QueueInfo:  # noqa: ANN401  # fields of the description
        """Make a queue; `description` has the fields of QueueDescription, like `requires_session=True`."""
        return await self.entities.create_queue(path, QueueDescription(**description))

    async def create_topic(self, path: str, **description: Any) -> TopicInfo:  # noqa: ANN401  # fields of the description
        """Make a topic."""
        return await self.entities.create_topic(path, TopicDescription(**description))

    async def create_subscription(
        self,
        topic: str,
        name: str,
        rule: RuleDescription | None = None,
        **description: Any,  # noqa: ANN401  # fields of the description
    ) -> SubscriptionInfo:
        """Make a subscription, with a rule or with one that is true for every message."""
        return await self.entities.create_subscription(topic, name, SubscriptionDescription(**description), rule)

    async def set_status(self, path: str, status: str) -> None:
        """Disable a queue or topic (`Disabled`, `SendDisabled`, `ReceiveDisabled`), or enable it again (`Active`)."""
        description = self.broker.find(path).description
        await self.entities.update(path, replace(description, status=status))

    def counts(self, path: str) -> QueueRuntime | TopicRuntime:
        """How many messages an entity holds, by their kinds, and how large they are."""
        return self.broker.find(path).runtime()

    async def messages(self, path: str) -> list[BrokeredMessage]:
        """All messages of a queue or subscription, or of a sub-queue of one (`orders/$DeadLetterQueue`), as peeked.

        The broker is asked, not the network: it works during an outage of that.
        """
        address = paths.parse_address(path)
        found: list[BrokeredMessage] = []
        for fragment in self.broker.find_receivable(address.entity).fragments_of(address.sub_queue):
            start = 0
            while page := await _peek(fragment, start):
                found += page
                start = page[-1].sequence_number + 1
        return found

    @property
    def _keys(self) -> KeyRing:
        return KeyRing([replace(self._key, primary=new_secret()) if self._is_key_revoked else self._key])

    def _set_key_revoked(self, is_revoked: bool) -> None:  # noqa: FBT001  # the only argument
        if is_revoked is not self._is_key_revoked:
            self._is_key_revoked = is_revoked
            if self._service is not None:
                self._service.listeners.replace_keys(self._keys)

    def usage(self) -> list[UsageRow]:
        """What its clients have used since it was started: a row for each entity and client."""
        return self._running_service.meter.totals()

    def factory(self, **options: Any) -> MessagingFactory:  # noqa: ANN401  # each has a type of its own
        """A client of it, with the same clock; `options` are those of `MessagingFactory.from_connection_string`.

        It is closed with the namespace, if not before.
        """
        chosen = {"clock": self.clock} | options
        factory = MessagingFactory.from_connection_string(self.connection_string, **chosen)
        self._factories.append(factory)
        return factory


async def _peek(fragment: FragmentPort, from_sequence_number: int) -> list[BrokeredMessage]:
    answer: asyncio.Future[list[bytes] | ServiceBusError] = asyncio.get_running_loop().create_future()
    fragment.browser.peek(from_sequence_number, _PAGE_MESSAGES, _PAGE_BYTES, answer.set_result)
    found = await answer
    if not isinstance(found, list):
        raise found
    return [BrokeredMessage.decode(payload, is_peeked=True) for payload in found]


class InMemoryPair:
    """A primary and a secondary. Needs a FakeTimeLoop."""

    def __init__(
        self,
        primary: str = "contoso",
        secondary: str = "contoso-backup",
        **settings: Any,  # noqa: ANN401  # each has a type of its own
    ) -> None:
        """Not started; `settings` are for both."""
        self.clock = LoopClock()
        self.primary = InMemoryNamespace(primary, clock=self.clock, **settings)
        self.secondary = InMemoryNamespace(secondary, clock=self.clock, **settings)

    async def __aenter__(self) -> Self:
        await self.primary.start()
        await self.secondary.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await self.primary.__aexit__(kind, error, traceback)
        finally:
            await self.secondary.__aexit__(kind, error, traceback)

    def factories(self, **options: Any) -> tuple[MessagingFactory, MessagingFactory]:  # noqa: ANN401  # as above
        """A client of the primary and one of the secondary; `options` are for both."""
        return self.primary.factory(**options), self.secondary.factory(**options)
