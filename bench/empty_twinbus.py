"""An in-memory queue server on twinbus's AMQP engine and adapter, to measure these. Usage: empty_twinbus.py PORT.

All addresses share one queue in memory, and all limits are on. peer/empty_proton.py is the same on qpid-proton.
"""

from __future__ import annotations

import asyncio
import collections
import signal
import sys
from typing import TYPE_CHECKING

import uvloop

from twinbus.amqp.aio import listen
from twinbus.amqp.connection import Connection
from twinbus.amqp.events import AttachRequested, CreditGranted, DeliveriesReceived, SaslInitReceived, SendsUpdated
from twinbus.amqp.outcomes import ACCEPTED
from twinbus.amqp.receiver import Receiver
from twinbus.amqp.sender import Sender
from twinbus.amqp.settings import Settings

if TYPE_CHECKING:
    from twinbus.amqp.aio import Peer
    from twinbus.amqp.events import Event

WINDOW = 1000
SETTINGS = Settings(container_id="empty")
waiting: collections.deque[bytes] = collections.deque()


class Empty:
    """A connection that queues every message, and delivers messages to any link with credit."""

    def __init__(self, peer: Peer) -> None:
        """Create the handler of one connection."""
        self.peer = peer

    def on_event(self, event: Event) -> None:
        """Accept incoming messages, and deliver messages when there is credit."""
        if isinstance(event, DeliveriesReceived):
            waiting.extend([delivery.payload for delivery in event.deliveries])
            event.link.settle(event.deliveries, ACCEPTED)
        elif isinstance(event, CreditGranted):
            self.pump(event.link)
        elif isinstance(event, SendsUpdated):
            if not event.settled:
                event.link.settle(event.deliveries, ACCEPTED)
            self.pump(event.link)
        elif isinstance(event, AttachRequested):
            event.link.accept()
            if isinstance(event.link, Receiver):
                event.link.keep_credit(WINDOW)
        elif isinstance(event, SaslInitReceived):
            self.peer.connection.send_sasl_outcome()

    def on_writable(self) -> None:
        """Continue to deliver messages."""
        for session in self.peer.connection.sessions.values():
            for link in session.links.values():
                if isinstance(link, Sender):
                    self.pump(link)

    def pump(self, link: Sender) -> None:
        """Send queued messages while the link has credit and the socket accepts data."""
        if self.peer.is_writable:
            for _ in range(min(link.sendable, len(waiting))):
                link.send(waiting.popleft())
        if link.drain_requested:
            link.drained()


async def main(port: int) -> None:
    """Serve until the process is stopped."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    listener = await listen(Empty, lambda now: Connection.server(SETTINGS, now=now), port=port)
    await stop.wait()
    await listener.close()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
