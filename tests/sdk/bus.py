"""One interface to the azure-servicebus client, sync or aio, with or without TLS, so that a test is written once.

    sender, receiver = bus.sender(queue), bus.receiver(queue)
    sender.send_messages(ServiceBusMessage("an order"))

The sync client runs on threads and the aio client on an event loop; in both cases a call returns the SDK's result,
raises the SDK's exception, and has a deadline. The SDK takes half a second to open a connection and up to a second to
close it, so the connections of a test open concurrently, and close while the next test runs.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import uuid
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, cast

from azure.servicebus import AutoLockRenewer, ServiceBusClient
from azure.servicebus.aio import AutoLockRenewer as AsyncAutoLockRenewer
from azure.servicebus.aio import ServiceBusClient as AsyncServiceBusClient
from azure.servicebus.aio.management import ServiceBusAdministrationClient as AsyncServiceBusAdministrationClient
from azure.servicebus.management import ServiceBusAdministrationClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from azure.servicebus import ServiceBusReceiver, ServiceBusSender

    from tests.support.server_process import ServerProcess

TIMEOUT_S = 60.0


class ClientDriver:
    """Runs the calls of one kind of client."""

    def start(self, call: Callable[[], Any]) -> Future[Any]:
        """Start a call without waiting for it."""
        raise NotImplementedError

    def run(self, call: Callable[[], Any]) -> Any:  # noqa: ANN401  # whatever the SDK returns
        return self.start(call).result(TIMEOUT_S)


class SyncDriver(ClientDriver):
    """Driver of the sync client: each call has its own thread, so that a hanging call blocks no other."""

    def start(self, call: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()

        def run() -> None:
            try:
                future.set_result(call())
            except BaseException as error:  # noqa: BLE001  # raised when the result is read
                future.set_exception(error)

        threading.Thread(target=run, daemon=True).start()
        return future


class AsyncDriver(ClientDriver):
    """Driver of the aio client: one event loop for all calls."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def start(self, call: Callable[[], Any]) -> Future[Any]:
        async def run() -> Any:  # noqa: ANN401  # whatever the SDK returns
            result = call()
            return await result if inspect.isawaitable(result) else result

        return asyncio.run_coroutine_threadsafe(run(), self._loop)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(TIMEOUT_S)
        self._loop.close()


class DriverCalls:
    """Proxy of an SDK object that needs no opening: a receiver's session, or the administration client."""

    def __init__(self, driver: ClientDriver, called: Any) -> None:  # noqa: ANN401  # of either kind
        self._driver = driver
        self.called = called

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  # whatever the SDK has
        attribute = getattr(self.called, name)
        if not callable(attribute):
            return attribute
        return lambda *arguments, **named: self._driver.run(lambda: attribute(*arguments, **named))


class LinkHandle:
    """Proxy of an SDK sender or receiver, with the same methods."""

    def __init__(self, driver: ClientDriver, handler: Any) -> None:  # noqa: ANN401  # of either kind
        self._driver = driver
        self._handler = handler
        self._opening = driver.start(getattr(handler, "__enter__", None) or handler.__aenter__)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  # whatever the SDK has
        attribute = getattr(self._handler, name)
        if not callable(attribute):
            return attribute

        def call(*arguments: object, **named: object) -> object:
            if name != "close":
                self._opening.result(TIMEOUT_S)
            return self._driver.run(lambda: attribute(*arguments, **named))

        return call

    @property
    def session(self) -> DriverCalls:
        """Return the session of a receiver, once the receiver is open."""
        self._opening.result(TIMEOUT_S)
        return DriverCalls(self._driver, self._handler.session)

    def __iter__(self) -> Iterator[Any]:
        self._opening.result(TIMEOUT_S)
        if hasattr(self._handler, "__iter__"):
            yield from self._handler
            return
        messages = self._handler.__aiter__()
        while True:
            try:
                yield self._driver.run(messages.__anext__)
            except StopAsyncIteration:
                return

    def close_in_background(self) -> Future[Any]:
        return self._driver.start(self._handler.close)


class Bus:
    """A client of a server, and its senders and receivers."""

    def __init__(self, driver: ClientDriver, server: ServerProcess, *, tls: bool) -> None:
        self.is_aio = isinstance(driver, AsyncDriver)
        self._driver = driver
        self._server = server
        self._tls = tls
        self._clients: list[Any] = []
        self._handles: list[LinkHandle] = []
        self._administration: DriverCalls | None = None

    def client(self, connection_string: str | None = None, **options: object) -> Any:  # noqa: ANN401  # either kind
        """Create another client (default: without retries)."""
        kind: Any = AsyncServiceBusClient if self.is_aio else ServiceBusClient
        default_connection_string = self._server.tls_connection_string if self._tls else self._server.connection_string
        options = {"retry_total": 0, "connection_verify": self._server.ca_file, **options}
        client = self._driver.run(
            lambda: kind.from_connection_string(connection_string or default_connection_string, **options)
        )
        self._clients.append(client)
        return client

    def sender(self, queue: str, *, client: Any = None, **options: object) -> ServiceBusSender:  # noqa: ANN401
        return cast("ServiceBusSender", self._open((client or self._shared_client).get_queue_sender, queue, options))

    def receiver(self, queue: str, *, client: Any = None, **options: object) -> ServiceBusReceiver:  # noqa: ANN401
        return cast(
            "ServiceBusReceiver", self._open((client or self._shared_client).get_queue_receiver, queue, options)
        )

    def topic_sender(self, topic: str, **options: object) -> ServiceBusSender:
        return cast("ServiceBusSender", self._open(self._shared_client.get_topic_sender, topic, options))

    def subscription_receiver(self, topic: str, name: str, **options: object) -> ServiceBusReceiver:
        """Open a receiver of a subscription."""
        options["subscription_name"] = name
        return cast("ServiceBusReceiver", self._open(self._shared_client.get_subscription_receiver, topic, options))

    def topic(self, *subscriptions: str, **options: Any) -> str:  # noqa: ANN401  # properties of a topic
        """Create a topic with subscriptions that get all messages; return its unique name."""
        name = f"topic-{uuid.uuid4().hex}"
        self.administration.create_topic(name, **options)
        for subscription in subscriptions:
            self.administration.create_subscription(name, subscription)
        return name

    def renew(self, receiver: ServiceBusReceiver, message: Any, *, seconds: float) -> Callable[[], None]:  # noqa: ANN401
        """Renew the lock of a message or session automatically; return a function that stops the renewal."""
        renewer: Any = self._driver.run(AsyncAutoLockRenewer if self.is_aio else AutoLockRenewer)
        handler = cast("LinkHandle", receiver)._handler  # noqa: SLF001  # the SDK needs its own object
        renewed = message.called if isinstance(message, DriverCalls) else message
        self._driver.run(lambda: renewer.register(handler, renewed, max_lock_renewal_duration=seconds))
        return lambda: self._driver.run(renewer.close)

    def list_sessions(self, queue: str, **options: Any) -> list[str]:  # noqa: ANN401  # those of the SDK
        """Return the ids of all sessions of a queue, read page by page."""

        client = self._shared_client

        async def collect() -> list[str]:
            return [session async for session in client.list_queue_sessions(queue, **options)]

        return cast(
            "list[str]",
            self._driver.run(collect if self.is_aio else lambda: list(client.list_queue_sessions(queue, **options))),
        )

    @property
    def administration(self) -> ServiceBusAdministrationClient:
        """Return the administration client."""
        if self._administration is None:
            kind: Any = AsyncServiceBusAdministrationClient if self.is_aio else ServiceBusAdministrationClient
            connection_string = self._server._ready["admin_connection_string"]  # noqa: SLF001  # no other test needs it
            options = {"retry_total": 0, "connection_verify": self._server.ca_file}
            client = self._driver.run(lambda: kind.from_connection_string(connection_string, **options))
            self._administration = DriverCalls(self._driver, client)
        return cast("ServiceBusAdministrationClient", self._administration)

    def update_queue(self, queue: str, **changes: Any) -> None:  # noqa: ANN401  # properties of a queue
        """Change these properties of a queue."""
        self.administration.update_queue(self.administration.get_queue(queue), **changes)

    @property
    def _shared_client(self) -> Any:  # noqa: ANN401  # either kind
        return self._clients[0] if self._clients else self.client()

    def _open(self, make: Callable[..., Any], queue: str, options: dict[str, object]) -> LinkHandle:
        handle = LinkHandle(self._driver, self._driver.run(lambda: make(queue, **options)))
        self._handles.append(handle)
        return handle

    def close_in_background(self) -> list[Future[Any]]:
        """Start closing all connections; return the futures to wait for."""
        closings = [handle.close_in_background() for handle in self._handles]
        if self._administration is not None:
            closings.append(self._driver.start(self._administration.called.close))
        return closings


def receive(receiver: ServiceBusReceiver, count: int, *, timeout_s: float = 20) -> list[Any]:
    """Receive `count` messages, in as many calls as necessary."""
    received: list[Any] = []
    while len(received) < count:
        messages = receiver.receive_messages(max_message_count=count - len(received), max_wait_time=timeout_s)
        assert messages, f"{len(received)} of {count} messages came within {timeout_s} s"
        received += messages
    return received


def body_of(message: Any) -> bytes:  # noqa: ANN401  # received or peeked
    return b"".join(message.body)
