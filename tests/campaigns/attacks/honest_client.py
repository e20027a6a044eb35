"""Process of the honest client: it sends, receives and completes while others attack.

    python -m tests.campaigns.attacks.honest_client < target.json

The first line of standard input describes the server; the end of the input stops the client, which then receives the
remaining messages and writes its report, one line of JSON, to standard output.

Owns: which messages were accepted and which were received, and how long each operation took. A second client makes a
new connection for each message, and so shows whether the server still accepts connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import uvloop

from tests.campaigns.attacks.target_server import TargetServer
from twinbus.client import BrokeredMessage, MessagingFactory
from twinbus.model.errors import ServiceBusError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from twinbus.client import MessageSender

SEND_EVERY_S: Final = 0.02
CONNECT_EVERY_S: Final = 0.5
BODY: Final = bytes(1_000)
DRAIN_TIMEOUT_S: Final = 60.0
"""Time limit for receiving the remaining messages."""


@dataclass
class ClientRecord:
    """Messages, waits and errors of the client."""

    accepted: set[str] = field(default_factory=set)
    received: set[str] = field(default_factory=set)
    waits_ms: dict[str, list[float]] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)

    @contextlib.contextmanager
    def timed(self, operation: str) -> Iterator[None]:
        """Measure an operation; a failure is recorded as an error, and its duration counts too."""
        began_s = time.monotonic()
        try:
            yield
        except (ServiceBusError, OSError, TimeoutError) as error:
            self.errors.append(f"{operation}: {type(error).__name__}: {error}")
        finally:
            self.waits_ms.setdefault(operation, []).append((time.monotonic() - began_s) * 1000)

    def as_json(self) -> str:
        """Return the report as one line of JSON."""
        return json.dumps(
            {
                "accepted": len(self.accepted),
                "lost": sorted(self.accepted - self.received)[:10],
                "lost_count": len(self.accepted - self.received),
                "errors": self.errors[:10],
                "error_count": len(self.errors),
                "waits_ms": {name: sorted(waits) for name, waits in self.waits_ms.items()},
            }
        )


class HonestClient:
    """A sender, a receiver, and a sender that connects for each message."""

    def __init__(self, target: TargetServer) -> None:
        self.record = ClientRecord()
        self._target = target
        self._numbers = itertools.count(1)
        self._is_ending = False
        self._has_sent_all = False
        self._all_received = asyncio.Event()

    async def run(self, stop_requested: asyncio.Event) -> None:
        """Send and receive until stopped, then receive the remaining messages."""
        async with MessagingFactory.from_connection_string(self._target.connection_string) as factory:
            receiving = asyncio.create_task(self._receive(factory))
            sending = asyncio.create_task(self._send(factory))
            connecting = asyncio.create_task(self._connect())
            await stop_requested.wait()
            self._is_ending = True
            await sending
            await connecting
            self._has_sent_all = True
            self._check_all_received()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DRAIN_TIMEOUT_S):
                    await self._all_received.wait()
            receiving.cancel()
            await asyncio.gather(receiving, return_exceptions=True)

    async def _send(self, factory: MessagingFactory) -> None:
        sender = factory.create_message_sender(self._target.queue)
        while not self._is_ending:
            with self.record.timed("send"):
                await self._send_one(sender)
            await asyncio.sleep(SEND_EVERY_S)

    async def _send_one(self, sender: MessageSender) -> None:
        name = f"order-{next(self._numbers)}"
        await sender.send(BrokeredMessage(BODY, message_id=name))
        self.record.accepted.add(name)

    async def _receive(self, factory: MessagingFactory) -> None:
        receiver = factory.create_message_receiver(self._target.queue, prefetch=20)
        while True:
            try:
                message = await receiver.receive(timeout=5)
            except ServiceBusError as error:
                self.record.errors.append(f"receive: {type(error).__name__}: {error}")
                continue
            if message is not None:
                with self.record.timed("complete"):
                    await receiver.complete(message)
                self.record.received.add(str(message.message_id))
                self._check_all_received()

    def _check_all_received(self) -> None:
        """Set the event if all accepted messages have been received."""
        if self._has_sent_all and self.record.accepted <= self.record.received:
            self._all_received.set()

    async def _connect(self) -> None:
        while not self._is_ending:
            with self.record.timed("connect and send"):
                async with MessagingFactory.from_connection_string(self._target.connection_string) as factory:
                    await self._send_one(factory.create_message_sender(self._target.queue))
            await asyncio.sleep(CONNECT_EVERY_S)


async def main() -> None:
    loop = asyncio.get_running_loop()
    target = TargetServer.from_json(sys.stdin.readline())
    stop_requested = asyncio.Event()
    loop.add_reader(sys.stdin, lambda: None if sys.stdin.readline() else stop_requested.set())
    client = HonestClient(target)
    await client.run(stop_requested)
    loop.remove_reader(sys.stdin)
    sys.stdout.write(client.record.as_json() + "\n")


if __name__ == "__main__":
    uvloop.run(main())
