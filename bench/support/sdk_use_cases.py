"""Use cases in which the twinbus client and azure-servicebus are compared, implemented once for each library.

Owns how each library is used for the same task. Knows nothing of clocks.

A sender or receiver of azure-servicebus has one caller at a time, as its documentation requires; the aio version is
also measured with 100 concurrent calls. Both libraries prefetch the same number of messages, and both wait until the
server has confirmed that a message is completed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import uvloop
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceiveMode
from azure.servicebus.aio import ServiceBusClient as AioServiceBusClient

from twinbus.client import BrokeredMessage, MessagingFactory, ReceiveMode

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from azure.servicebus import ServiceBusReceiver, ServiceBusSender
    from azure.servicebus.aio import ServiceBusReceiver as AioReceiver
    from azure.servicebus.aio import ServiceBusSender as AioSender

    from twinbus.client import MessageReceiver, MessageSender

SIZE: Final = 1_024
CONCURRENT_CALLS: Final = 100
PREFETCH: Final = 1_000
TIMEOUT_S: Final = 30
BODY: Final = os.urandom(SIZE)


class UseCase(Enum):
    """A use case."""

    SEND_ONE = "send one at a time"
    SEND_LISTS = f"send {CONCURRENT_CALLS} per call"
    SEND_AT_ONCE = f"send one per call, {CONCURRENT_CALLS} concurrent calls"
    RECEIVE_ONE = "receive one, complete it"
    RECEIVE_LISTS = f"receive {CONCURRENT_CALLS} per call, complete one at a time"
    RECEIVE_AT_ONCE = f"receive {CONCURRENT_CALLS} per call, complete with {CONCURRENT_CALLS} concurrent calls"
    RECEIVE_AND_DELETE = f"receive and delete {CONCURRENT_CALLS} per call"

    @property
    def receives(self) -> bool:
        """Whether the use case receives messages rather than sends them."""
        return self not in (UseCase.SEND_ONE, UseCase.SEND_LISTS, UseCase.SEND_AT_ONCE)

    @property
    def list_length(self) -> int:
        """Number of messages per call."""
        return 1 if self in (UseCase.SEND_ONE, UseCase.SEND_AT_ONCE, UseCase.RECEIVE_ONE) else CONCURRENT_CALLS

    @property
    def calls_under_way(self) -> int:
        """Number of concurrent sends or completions."""
        return CONCURRENT_CALLS if self in (UseCase.SEND_AT_ONCE, UseCase.RECEIVE_AT_ONCE) else 1


def read(messages: list[Any]) -> int:
    """Read the bodies of received messages, as an application would, and return the number of messages."""
    assert messages, "no message was received"
    for message in messages:
        body = message.body
        assert len(body if isinstance(body, bytes) else b"".join(body)) == SIZE
    return len(messages)


# --- twinbus ----------------------------------------------------------------------------------------------------------


async def twinbus_work(stack: contextlib.AsyncExitStack, where: str, queue: str, use: UseCase) -> AsyncWork:
    """Attach a sender or receiver of the twinbus client, and return its work."""
    factory = await stack.enter_async_context(MessagingFactory.from_connection_string(where))
    if use.receives:
        mode = ReceiveMode.RECEIVE_AND_DELETE if use is UseCase.RECEIVE_AND_DELETE else ReceiveMode.PEEK_LOCK
        return partial(twinbus_receive, factory.create_message_receiver(queue, mode, prefetch=PREFETCH), use)
    sender = factory.create_message_sender(queue)
    await sender.open()
    return partial(twinbus_send, sender, use)


async def twinbus_send(sender: MessageSender, use: UseCase, count: int) -> None:
    """Send `count` messages."""
    for _ in range(0, count, use.list_length * use.calls_under_way):
        if use is UseCase.SEND_LISTS:
            await sender.send_batch([BrokeredMessage(BODY) for _ in range(CONCURRENT_CALLS)])
        elif use is UseCase.SEND_AT_ONCE:
            await asyncio.gather(*[sender.send(BrokeredMessage(BODY)) for _ in range(CONCURRENT_CALLS)])
        else:
            await sender.send(BrokeredMessage(BODY))


async def twinbus_receive(receiver: MessageReceiver, use: UseCase, count: int) -> None:
    """Receive `count` messages."""
    while count > 0:
        messages = await receiver.receive_batch(min(use.list_length, count), TIMEOUT_S)
        count -= read(messages)
        if use is UseCase.RECEIVE_AT_ONCE:
            await receiver.complete_batch(messages)
        elif use is not UseCase.RECEIVE_AND_DELETE:
            for message in messages:
                await receiver.complete(message)


async def fill(where: str, queue: str, count: int) -> None:
    """Send messages to a queue."""
    async with contextlib.AsyncExitStack() as stack:
        await (await twinbus_work(stack, where, queue, UseCase.SEND_LISTS))(count)


# --- azure-servicebus, aio --------------------------------------------------------------------------------------------


async def aio_work(stack: contextlib.AsyncExitStack, where: str, queue: str, use: UseCase) -> AsyncWork:
    """Attach a sender or receiver of azure.servicebus.aio, and return its work."""
    client = await stack.enter_async_context(AioServiceBusClient.from_connection_string(where))
    if not use.receives:
        return partial(aio_send, await stack.enter_async_context(client.get_queue_sender(queue)), use)
    receiver = client.get_queue_receiver(queue, receive_mode=mode_of(use), prefetch_count=PREFETCH)
    return partial(aio_receive, await stack.enter_async_context(receiver), use)


async def aio_send(sender: AioSender, use: UseCase, count: int) -> None:
    """Send `count` messages."""
    for _ in range(0, count, use.list_length * use.calls_under_way):
        if use is UseCase.SEND_LISTS:
            await sender.send_messages([ServiceBusMessage(BODY) for _ in range(CONCURRENT_CALLS)])
        elif use is UseCase.SEND_AT_ONCE:
            await asyncio.gather(*[sender.send_messages(ServiceBusMessage(BODY)) for _ in range(CONCURRENT_CALLS)])
        else:
            await sender.send_messages(ServiceBusMessage(BODY))


async def aio_receive(receiver: AioReceiver, use: UseCase, count: int) -> None:
    """Receive `count` messages."""
    while count > 0:
        messages = await receiver.receive_messages(min(use.list_length, count), TIMEOUT_S)
        count -= read(messages)
        if use is UseCase.RECEIVE_AT_ONCE:
            await asyncio.gather(*[receiver.complete_message(message) for message in messages])
        elif use is not UseCase.RECEIVE_AND_DELETE:
            for message in messages:
                await receiver.complete_message(message)


# --- azure-servicebus, sync -------------------------------------------------------------------------------------------


@contextlib.contextmanager
def sync_opened(where: str, queue: str, use: UseCase) -> Iterator[Work]:
    """Attach a sender or receiver of azure.servicebus, and yield its work."""
    with ServiceBusClient.from_connection_string(where) as client:
        if use.receives:
            with client.get_queue_receiver(queue, receive_mode=mode_of(use), prefetch_count=PREFETCH) as receiver:
                yield partial(sync_receive, receiver, use)
        else:
            with client.get_queue_sender(queue) as sender:
                yield partial(sync_send, sender, use)


def sync_send(sender: ServiceBusSender, use: UseCase, count: int) -> None:
    """Send `count` messages."""
    for _ in range(0, count, use.list_length):
        if use is UseCase.SEND_LISTS:
            sender.send_messages([ServiceBusMessage(BODY) for _ in range(CONCURRENT_CALLS)])
        else:
            sender.send_messages(ServiceBusMessage(BODY))


def sync_receive(receiver: ServiceBusReceiver, use: UseCase, count: int) -> None:
    """Receive `count` messages."""
    while count > 0:
        messages = receiver.receive_messages(min(use.list_length, count), TIMEOUT_S)
        count -= read(messages)
        if use is not UseCase.RECEIVE_AND_DELETE:
            for message in messages:
                receiver.complete_message(message)


def mode_of(use: UseCase) -> ServiceBusReceiveMode:
    """Return the receive mode of azure-servicebus for a use case."""
    deletes = use is UseCase.RECEIVE_AND_DELETE
    return ServiceBusReceiveMode.RECEIVE_AND_DELETE if deletes else ServiceBusReceiveMode.PEEK_LOCK


# --- all libraries ----------------------------------------------------------------------------------------------------


def on_a_loop(open_work: OpenWork) -> Opened:
    """Adapt an asyncio library to synchronous calls; its event loop runs only during the work."""

    @contextlib.contextmanager
    def opened(where: str, queue: str, use: UseCase) -> Iterator[Work]:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            stack = contextlib.AsyncExitStack()
            try:
                work = runner.run(open_work(stack, where, queue, use))
                yield lambda count: runner.run(work(count))
            finally:
                runner.run(stack.aclose())

    return opened


if TYPE_CHECKING:
    AsyncWork = Callable[[int], Coroutine[Any, Any, None]]
    """Function that sends or receives a number of messages."""
    OpenWork = Callable[[contextlib.AsyncExitStack, str, str, UseCase], Coroutine[Any, Any, AsyncWork]]
    Work = Callable[[int], None]
    Opened = Callable[[str, str, UseCase], contextlib.AbstractContextManager[Work]]

OURS: Final = "twinbus"
CLIENTS: Final[dict[str, Opened]] = {
    OURS: on_a_loop(twinbus_work),
    "azure sync": sync_opened,
    "azure aio": on_a_loop(aio_work),
}
"""For each library: a function that connects to a queue for a use case, and yields the work to be measured."""


def offers(client: str, use: UseCase) -> bool:
    """Return whether a library supports a use case."""
    return client != "azure sync" or use.calls_under_way == 1
