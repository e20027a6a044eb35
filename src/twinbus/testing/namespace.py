"""A namespace in memory: the real broker, AMQP gateway and HTTP API on a simulated network, disks and clock.

    async with InMemoryNamespace("contoso") as namespace:
        await namespace.create_queue("orders")
        async with namespace.factory() as factory:
            await factory.create_queue_client("orders").send(BrokeredMessage("two pounds of apples"))
        assert len(await namespace.messages("orders")) == 1

Owns starting, stopping and killing the namespace, and access to its contents. The server does all other work.
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
    """A namespace in memory; must be created on a FakeTimeLoop."""

    def __init__(
        self,
        name: str = "contoso",
        *,
        host: str | None = None,
        clock: LoopClock | None = None,
        **settings: Any,  # noqa: ANN401  # settings and options have various types
    ) -> None:
        """Create a namespace without starting it; `settings` are settings of `twinbus serve`, such as `stores`."""
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
        """Simulated outages of the namespace."""

    @property
    def connection_string(self) -> str:
        """Connection string for messaging over AMQP."""
        return connection_string(self.host, self._settings.port("amqp"), self._key, is_emulator=True)

    @property
    def admin_connection_string(self) -> str:
        """Connection string for management over HTTP."""
        return connection_string(self.host, self._settings.port("http"), self._key, is_emulator=True)

    # --- start and stop -----------------------------------------------------------------------------------------------

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
        """Whether the namespace is running."""
        return self._service is not None

    async def start(self) -> None:
        """Start the server with the data on the namespace's disks."""
        await self._wait_for_shutdown()
        if self._service is not None:
            return
        was_key_revoked = self._is_key_revoked
        dependencies = Dependencies(
            clock=self.clock,
            random=self._random,
            keys=self._keys,
            store_backend=self._disks,
            open_catalogue=self._disks.open_catalogue,
            open_acceptors=self._listen,
        )
        service = NamespaceService(self._settings, dependencies)
        with on_host(self.host):
            async with contextlib.AsyncExitStack() as stack:
                await service.start(stack, None)
                self._stack = stack.pop_all()
        self._service = service
        if was_key_revoked is not self._is_key_revoked:  # the key was changed while the server was starting
            service.listeners.replace_keys(self._keys)
        self.outage.apply()

    def _listen(self) -> dict[str, Any]:
        settings = self._settings
        return {name: [serve_with_loop(settings.host, settings.port(name))] for name in settings.open_protocols}

    async def stop(self) -> None:
        """Stop gracefully, as by SIGTERM."""
        await self._wait_for_shutdown()
        if self._service is not None:
            await self._stack.aclose()
            self._service = None
            self._disks.crash()  # releases the disk of a hanging store; closed stores lose nothing

    def kill(self) -> None:
        """Stop at once, as by SIGKILL. Connections are cut, and all accepted messages are on the disks."""
        if self._service is None:
            return
        self._disks.crash()
        self._network.switch_off(self.host)
        self._loop.thaw(self.host)  # a frozen process can be killed, too
        self._service.listeners.grace_s = 0.0  # the remaining shutdown only frees resources
        self._service = None
        self._shutdown_task = asyncio.ensure_future(self._stack.aclose())

    async def _wait_for_shutdown(self) -> None:
        if self._shutdown_task is not None:
            await self._shutdown_task
            self._shutdown_task = None

    # --- contents -----------------------------------------------------------------------------------------------------

    @property
    def broker(self) -> Namespace:
        """The running broker; raises RuntimeError if the namespace is not running."""
        return self._running_service.namespace

    @property
    def entities(self) -> LocalCatalogue:
        """Catalogue that creates, changes and deletes entities; raises RuntimeError if the namespace is not running."""
        return self._running_service.catalogue

    def _find_broker(self) -> Namespace | None:
        return self._service.namespace if self._service is not None else None

    @property
    def _running_service(self) -> NamespaceService:
        if self._service is None:
            raise RuntimeError(f"{self.name} is not running: start it first")
        return self._service

    async def create_queue(self, path: str, **description: Any) -> QueueInfo:  # noqa: ANN401  # fields of the description
        """Create a queue; `description` has fields of QueueDescription, such as `requires_session=True`."""
        return await self.entities.create_queue(path, QueueDescription(**description))

    async def create_topic(self, path: str, **description: Any) -> TopicInfo:  # noqa: ANN401  # fields of the description
        """Create a topic; `description` has fields of TopicDescription."""
        return await self.entities.create_topic(path, TopicDescription(**description))

    async def create_subscription(
        self,
        topic: str,
        name: str,
        rule: RuleDescription | None = None,
        **description: Any,  # noqa: ANN401  # fields of the description
    ) -> SubscriptionInfo:
        """Create a subscription with this rule (default: a rule that matches every message)."""
        return await self.entities.create_subscription(topic, name, SubscriptionDescription(**description), rule)

    async def set_status(self, path: str, status: str) -> None:
        """Disable a queue or topic (`Disabled`, `SendDisabled`, `ReceiveDisabled`), or enable it again (`Active`)."""
        description = self.broker.find(path).description
        await self.entities.update(path, replace(description, status=status))

    def counts(self, path: str) -> QueueRuntime | TopicRuntime:
        """Return an entity's message counts by state, and its size."""
        return self.broker.find(path).runtime()

    async def messages(self, path: str) -> list[BrokeredMessage]:
        """Peek at all messages in a queue, subscription or sub-queue (`orders/$DeadLetterQueue`), and return them.

        The messages are read from the broker directly, so the method works during a network outage.
        """
        address = paths.parse_address(path)
        messages: list[BrokeredMessage] = []
        for fragment in self.broker.find_receivable(address.entity).fragments_of(address.sub_queue):
            start = 0
            while page := await _peek(fragment, start):
                messages += page
                start = page[-1].sequence_number + 1
        return messages

    @property
    def _keys(self) -> KeyRing:
        return KeyRing([replace(self._key, primary=new_secret()) if self._is_key_revoked else self._key])

    def _set_key_revoked(self, is_revoked: bool) -> None:  # noqa: FBT001  # the only argument
        if is_revoked is not self._is_key_revoked:
            self._is_key_revoked = is_revoked
            if self._service is not None:
                self._service.listeners.replace_keys(self._keys)

    def usage(self) -> list[UsageRow]:
        """Return the usage since the start: one row for each entity and client."""
        return self._running_service.meter.totals()

    def factory(self, **options: Any) -> MessagingFactory:  # noqa: ANN401  # settings and options have various types
        """Return a new client with the namespace's clock, which is closed with the namespace.

        `options` are passed to `MessagingFactory.from_connection_string`.
        """
        all_options = {"clock": self.clock} | options
        factory = MessagingFactory.from_connection_string(self.connection_string, **all_options)
        self._factories.append(factory)
        return factory


async def _peek(fragment: FragmentPort, from_sequence_number: int) -> list[BrokeredMessage]:
    future: asyncio.Future[list[bytes] | ServiceBusError] = asyncio.get_running_loop().create_future()
    fragment.browser.peek(from_sequence_number, _PAGE_MESSAGES, _PAGE_BYTES, future.set_result)
    result = await future
    if not isinstance(result, list):
        raise result
    return [BrokeredMessage.decode(payload, is_peeked=True) for payload in result]


class InMemoryPair:
    """A primary and a secondary namespace in memory; must be created on a FakeTimeLoop."""

    def __init__(
        self,
        primary: str = "contoso",
        secondary: str = "contoso-backup",
        **settings: Any,  # noqa: ANN401  # settings and options have various types
    ) -> None:
        """Create both namespaces with the same settings, without starting them."""
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

    def factories(self, **options: Any) -> tuple[MessagingFactory, MessagingFactory]:  # noqa: ANN401  # options have various types
        """Return a client for the primary and a client for the secondary, both with these options."""
        return self.primary.factory(**options), self.secondary.factory(**options)
