"""The honest client, in a process of its own: it sends, receives and completes while others attack.

    python -m tests.campaigns.attacks.honest_client < site.json

The first line of standard input says where the server is; the end of the input ends the client, which then receives
what is left and writes its report, one line of JSON, to standard output.

Owns: which messages were accepted and which were received, and how long each operation took. A second client connects
anew for each message: it shows whether newcomers still get in.
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
"""How long what is left may take to be received."""


@dataclass
class ClientRecord:
    """What the client did, and how long it waited."""

    accepted: set[str] = field(default_factory=set)
    received: set[str] = field(default_factory=set)
    waits_ms: dict[str, list[float]] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)

    @contextlib.contextmanager
    def timed(self, operation: str) -> Iterator[None]:
        """Measure an operation; one that fails is an error, and its time counts, too."""
        began = time.monotonic()
        try:
            yield
        except (ServiceBusError, OSError, TimeoutError) as error:
            self.errors.append(f"{operation}: {type(error).__name__}: {error}")
        finally:
            self.waits_ms.setdefault(operation, []).append((time.monotonic() - began) * 1000)

    def as_json(self) -> str:
        """The report, in one line."""
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
    """A sender, a receiver and a newcomer."""

    def __init__(self, target: TargetServer) -> None:
        self.record = ClientRecord()
        self._target = target
        self._numbers = itertools.count(1)
        self._is_ending = False
        self._has_sent_all = False
        self._all_received = asyncio.Event()

    async def run(self, stop_requested: asyncio.Event) -> None:
        """Work until told to end, then receive what is left."""
        async with MessagingFactory.from_connection_string(self._target.connection_string) as factory:
            receiving = asyncio.create_task(self._receive(factory))
            sending = asyncio.create_task(self._send(factory))
            connecting = asyncio.create_task(self._connect())
            await stop_requested.wait()
            self._is_ending = True
            await sending
            await connecting
            self._has_sent_all = True
            self._wait_for_end()
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
                self._wait_for_end()

    def _wait_for_end(self) -> None:
        """Everything that was sent has been received."""
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
    site = TargetServer.from_json(sys.stdin.readline())
    ending = asyncio.Event()
    loop.add_reader(sys.stdin, lambda: None if sys.stdin.readline() else ending.set())
    client = HonestClient(site)
    await client.run(ending)
    loop.remove_reader(sys.stdin)
    sys.stdout.write(client.record.as_json() + "\n")


if __name__ == "__main__":
    uvloop.run(main())
