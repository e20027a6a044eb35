"""An empty queue server on twinbus's engine and adapter, no disk: what they cost. Usage: empty_twinbus.py PORT.

One queue in memory for every address, all limits on: the counterpart of peer/empty_proton.py.
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
    """Takes every message into one queue, and gives it to whoever has credit."""

    def __init__(self, peer: Peer) -> None:
        """For one connection."""
        self.peer = peer

    def on_event(self, event: Event) -> None:
        """Accept what comes, hand out what is asked for."""
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
        """Go on handing out."""
        for session in self.peer.connection.sessions.values():
            for link in session.links.values():
                if isinstance(link, Sender):
                    self.pump(link)

    def pump(self, link: Sender) -> None:
        """Send what there is, within the link's credit and the socket's patience."""
        if self.peer.is_writable:
            for _ in range(min(link.sendable, len(waiting))):
                link.send(waiting.popleft())
        if link.drain_requested:
            link.drained()


async def main(port: int) -> None:
    """Serve until told to stop."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    listener = await listen(Empty, lambda now: Connection.server(SETTINGS, now=now), port=port)
    await stop.wait()
    await listener.close()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
