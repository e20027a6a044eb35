"""A connection from a process (the caller) to the process that owns some stores.

Owns: the messages on their way. Each direction keeps its order; the simulation decides when a message arrives.
Messages that a process sent before it was killed may still arrive, or some of them.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import msgspec

from twinbus.server.cluster.message_channel import REPLY_DECODER, REQUEST_DECODER
from twinbus.server.cluster.peer_server import PeerServer

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from tests.simulation.cluster.process import Process
    from twinbus.broker.ports.peer_protocol import Reply, Request

_encode = msgspec.msgpack.encode


class PeerConnection:
    """A connection between two processes."""

    def __init__(self, caller: Process, owner: Process) -> None:
        """Connect: for the caller the connection is open at once; the owner accepts it with its next step."""
        self.caller = caller
        self.owner = owner
        self.peer_server: PeerServer | None = None
        self.calls: deque[Callable[[], object]] = deque([self._accept])
        self.answers: deque[Callable[[], object]] = deque()
        self.is_cut = False
        """Whether one of the two processes was killed."""
        self.is_over = False
        """Whether the other process has noticed that."""
        self._peer_client = caller.peer_client(owner.number)
        self._peer_client.on_connected(self._call)

    def __repr__(self) -> str:
        return f"{self.caller!r} -> {self.owner!r}"

    def _call(self, number: int, message: Request) -> None:
        written = _encode((number, message))
        if not self.is_cut:
            self.calls.append(lambda: self._receive_call(written))

    def send_answer(self, number: int, message: Reply) -> None:
        written = _encode((number, message))
        if not self.is_cut:
            self.answers.append(lambda: self._receive_answer(written))

    def _accept(self) -> None:
        self.peer_server = PeerServer(self.owner.namespace, self.send_answer, _refuse)
        self.owner.health.add_peer(self.send_answer)

    def _receive_call(self, written: bytes) -> None:
        assert self.peer_server is not None
        number, message = REQUEST_DECODER.decode(written)
        self.owner.simulation.trace(f"    {self!r}: {number} {message}")
        self.peer_server.receive(number, message)

    def _receive_answer(self, written: bytes) -> None:
        number, message = REPLY_DECODER.decode(written)
        self.caller.simulation.trace(f"    {self!r} answers: {number} {message}")
        self._peer_client.receive(number, message)

    # --- end ---------------------------------------------------------------------------------------------------------

    def owner_lost(self, random: Random) -> None:
        """Record that the owner was killed."""
        self.is_cut = True
        self.calls.clear()
        _lose_tail(self.answers, random)
        self.answers.append(self._on_owner_lost)

    def caller_lost(self, random: Random) -> None:
        """Record that the caller was killed."""
        self.is_cut = True
        self.answers.clear()
        _lose_tail(self.calls, random)
        self.calls.append(self._on_caller_lost)

    def both_lost(self) -> None:
        self.is_cut = self.is_over = True
        self.calls.clear()
        self.answers.clear()

    def _on_owner_lost(self) -> None:
        self.is_over = True
        self._peer_client.on_disconnected()

    def _on_caller_lost(self) -> None:
        self.is_over = True
        if self.peer_server is not None:
            self.owner.health.remove_peer(self.send_answer)
            # messages deleted so far for receivers of the killed process
            self.owner.simulation.checker.deletions.mark_possible_losses()
            self.peer_server.close()


def _lose_tail(messages: deque[Callable[[], object]], random: Random) -> None:
    for _ in range(random.randint(0, len(messages))):
        messages.pop()


def _refuse(peer_server: PeerServer, call: object, on_reply: object) -> None:
    raise AssertionError(peer_server, call, on_reply)
