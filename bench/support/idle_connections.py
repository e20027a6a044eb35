"""Many connections that do nothing: each has one receiver with credit, on a queue where nothing comes.

    python -m bench.support.idle_connections <<< '{"port": ..., "key_name": ..., "key": ..., "connections": 5000, ...}'

Its own process, so that what it costs is not counted with the server it is connected to. It reads that one line, opens
the connections (the queues in turn), says `{"open": 5000, "took_s": ...}` and holds them until its input ends; then it
closes them in good order and says how many had been lost before: `{"lost": 0, "first_reason": null}`.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from typing import TYPE_CHECKING, Any, Final

import uvloop

from twinbus.amqp.aio import connect
from twinbus.amqp.connection import Connection
from twinbus.amqp.events import AttachConfirmed, ConnectionClosed, ConnectionOpened, LinkDetached
from twinbus.amqp.sasl import Credentials
from twinbus.amqp.settings import Settings
from twinbus.amqp.terminus import Source

if TYPE_CHECKING:
    from twinbus.amqp.aio import Peer
    from twinbus.amqp.events import Event

CONCURRENT_CONNECTS: Final = 100
"""Connections that are being opened at the same time."""
OPEN_S: Final = 60.0
CLOSE_S: Final = 30.0
CREDIT: Final = 10
OTHER_FILES: Final = 64


class IdleConnection:
    """One connection with one receiver."""

    def __init__(self, peer: Peer, queue: str) -> None:
        """The socket is there."""
        self.peer = peer
        self.is_attached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.reason: str | None = None
        """Why it is no more."""
        self._queue = queue

    def on_event(self, event: Event) -> None:
        """Attach, grant, and then be quiet."""
        if isinstance(event, ConnectionOpened):
            session = self.peer.connection.begin_session()
            session.attach_receiver("idle", source=Source(address=self._queue)).grant(CREDIT)
        elif isinstance(event, AttachConfirmed):
            if event.attach.source is not None and not self.is_attached.done():  # without one it is a refusal
                self.is_attached.set_result(None)
        elif isinstance(event, LinkDetached | ConnectionClosed) and self.reason is None:
            self.reason = f"{type(event).__name__}: {event.error}"
            if not self.is_attached.done():
                self.is_attached.set_exception(ConnectionError(self.reason))

    def on_writable(self) -> None:
        """Nothing waits to be written."""


async def open_all(arguments: dict[str, Any]) -> list[IdleConnection]:
    """All connections, attached."""
    settings = Settings(container_id="idle", hostname="localhost")
    credentials = Credentials.plain(arguments["key_name"], arguments["key"])
    queues = arguments["queues"]
    gate = asyncio.Semaphore(CONCURRENT_CONNECTS)

    async def open_one(number: int) -> IdleConnection:
        async with gate, asyncio.timeout(OPEN_S):
            queue = queues[number % len(queues)]
            idle = await connect(
                lambda peer: IdleConnection(peer, queue),
                lambda now: Connection.client(settings, credentials, now=now),
                host="127.0.0.1",
                port=arguments["port"],
            )
            await idle.is_attached
            return idle

    return await asyncio.gather(*[open_one(number) for number in range(arguments["connections"])])


async def close_all(held: list[IdleConnection]) -> None:
    """In good order, as far as the server goes along."""
    for idle in held:
        idle.peer.close()
    await asyncio.wait([idle.peer.lost for idle in held], timeout=CLOSE_S)


async def hold(arguments: dict[str, Any]) -> None:
    """Open, wait, close."""
    started = time.monotonic()
    held = await open_all(arguments)
    print(json.dumps({"open": len(held), "took_s": time.monotonic() - started}), flush=True)
    await asyncio.to_thread(sys.stdin.read)  # until whoever started us closes it, or is gone
    reasons = [idle.reason for idle in held if idle.reason is not None]
    await close_all(held)
    print(json.dumps({"lost": len(reasons), "first_reason": reasons[0] if reasons else None}), flush=True)


def main() -> None:
    """Read what is asked for, and do it."""
    asked = json.loads(sys.stdin.readline())
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < asked["connections"] + OTHER_FILES:
        sys.exit(f"only {hard} files may be open here: too few for {asked['connections']} connections")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    uvloop.run(hold(asked))


if __name__ == "__main__":
    main()
