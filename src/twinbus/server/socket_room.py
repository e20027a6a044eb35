"""Whether the socket of a link takes more messages now.

Owns: how much may wait for a socket. Beyond that messages stay in the fragment, where another receiver may have them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.amqp.aio import Peer

    Soon: TypeAlias = Callable[[Callable[[], None]], object]
    """Makes a call in the next turn of the loop."""

QUEUED_BYTES: Final = 1_048_576


class SocketRoom:
    """What one link may ask before it sends."""

    def __init__(self, peer: Peer, soon: Soon, feed: Callable[[], None]) -> None:
        """`feed` is called when there may be room again after `is_there` said no."""
        self._peer = peer
        self._soon = soon
        self._feed = feed
        self._is_asked = False

    def is_there(self) -> bool:
        """The socket takes more. If not, and it is only this turn's output that waits, the link is fed in the next."""
        peer = self._peer
        if not peer.is_writable:
            return False
        connection = peer.connection
        if connection.queued_bytes <= QUEUED_BYTES:
            return True
        if not connection.output_bytes:  # the client has closed a session's window: only it can open that
            peer.awaits_window = True
        elif not self._is_asked:
            self._is_asked = True
            self._soon(self._go_on)
        return False

    def _go_on(self) -> None:
        self._is_asked = False
        self._feed()
