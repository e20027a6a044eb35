"""Many idle connections, each with one receiver with credit on an empty queue.

    python -m bench.support.idle_connections <<< '{"port": ..., "key_name": ..., "key": ..., "connections": 5000, ...}'

This is a separate process, so that its costs are not counted with those of the server. It reads that line, opens the
connections (distributed over the queues), prints `{"open": 5000, "took_s": ...}`, and holds them until its input ends.
Then it closes them cleanly and prints how many had been lost before: `{"lost": 0, "first_reason": null}`.
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
"""Maximum number of connections that are opened at the same time."""
OPEN_S: Final = 60.0
CLOSE_S: Final = 30.0
CREDIT: Final = 10
OTHER_FILES: Final = 64


class IdleConnection:
    """A connection with one receiver."""

    def __init__(self, peer: Peer, queue: str) -> None:
        """Create the receiver on a connected socket."""
        self.peer = peer
        self.is_attached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.reason: str | None = None
        """Why the connection has ended, or None."""
        self._queue = queue

    def on_event(self, event: Event) -> None:
        """Grant credit once attached; record why the connection ends."""
        if isinstance(event, ConnectionOpened):
            session = self.peer.connection.begin_session()
            session.attach_receiver("idle", source=Source(address=self._queue)).grant(CREDIT)
        elif isinstance(event, AttachConfirmed):
            if event.attach.source is not None and not self.is_attached.done():  # no source: the link was refused
                self.is_attached.set_result(None)
        elif isinstance(event, LinkDetached | ConnectionClosed) and self.reason is None:
            self.reason = f"{type(event).__name__}: {event.error}"
            if not self.is_attached.done():
                self.is_attached.set_exception(ConnectionError(self.reason))

    def on_writable(self) -> None:
        """Do nothing: there is never pending output."""


async def open_all(arguments: dict[str, Any]) -> list[IdleConnection]:
    """Open all connections and attach their receivers."""
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
    """Close all connections cleanly, as far as the server responds."""
    for idle in held:
        idle.peer.close()
    await asyncio.wait([idle.peer.lost for idle in held], timeout=CLOSE_S)


async def hold(arguments: dict[str, Any]) -> None:
    """Open the connections, hold them until the input ends, and close them."""
    started = time.monotonic()
    held = await open_all(arguments)
    print(json.dumps({"open": len(held), "took_s": time.monotonic() - started}), flush=True)
    await asyncio.to_thread(sys.stdin.read)  # until the parent process closes it or ends
    reasons = [idle.reason for idle in held if idle.reason is not None]
    await close_all(held)
    print(json.dumps({"lost": len(reasons), "first_reason": reasons[0] if reasons else None}), flush=True)


def main() -> None:
    """Read the parameters and run."""
    asked = json.loads(sys.stdin.readline())
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < asked["connections"] + OTHER_FILES:
        sys.exit(f"the limit of {hard} open files is too low for {asked['connections']} connections: raise it")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    uvloop.run(hold(asked))


if __name__ == "__main__":
    main()
