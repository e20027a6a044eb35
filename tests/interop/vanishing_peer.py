"""A proton peer in its own process, which a test kills in the middle of a message.

    vanishing_peer.py client PORT    connects
    vanishing_peer.py server         listens, and prints its port

The peer sends half of a message on one link and then a whole message on another: when the whole message has arrived,
the half has too. If nobody kills the process, it ends after a minute.
"""

from __future__ import annotations

import sys
from typing import Any, TypeAlias

from proton import Message
from proton.handlers import MessagingHandler
from proton.reactor import Container

ProtonEvent: TypeAlias = Any
HALF_MESSAGE = bytes.fromhex("005375b000030d40") + bytes(100_000)
"""The start of a data section of 200,000 bytes."""
LIFETIME_S = 60


class VanishingPeer(MessagingHandler):
    def __init__(self) -> None:
        super().__init__(prefetch=10)
        self.sendable: dict[str, Any] = {}

    def on_start(self, event: ProtonEvent) -> None:
        event.container.schedule(LIFETIME_S, self)
        if sys.argv[1] == "client":
            connection = event.container.connect(f"127.0.0.1:{sys.argv[2]}", reconnect=False)
            event.container.create_sender(connection, "half")
            event.container.create_sender(connection, "whole")
            event.container.create_receiver(connection, "whole")
        else:
            acceptor = event.container.acceptor("127.0.0.1", "0")
            print(acceptor._selectable.getsockname()[1], flush=True)  # noqa: SLF001, T201

    def on_timer_task(self, _event: ProtonEvent) -> None:
        sys.exit("nobody killed me")

    def on_link_opening(self, event: ProtonEvent) -> None:
        event.link.source.copy(event.link.remote_source)
        event.link.target.copy(event.link.remote_target)

    def on_sendable(self, event: ProtonEvent) -> None:
        sender = event.sender
        address = (sender.target if sys.argv[1] == "client" else sender.source).address
        if address in self.sendable:
            return
        self.sendable[address] = sender
        if self.sendable.keys() == {"half", "whole"}:
            half, whole = self.sendable["half"], self.sendable["whole"]
            half.delivery("half")
            half.stream(HALF_MESSAGE)
            whole.send(Message(body="whole"))


Container(VanishingPeer()).run()
