"""Whether the socket of a link takes more messages now.

Owns: how much may wait for a socket. Beyond that messages stay in the fragment, where another receiver may have them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.amqp.aio import Peer

    CallSoon: TypeAlias = Callable[[Callable[[], None]], object]
    """Makes a call in the next turn of the loop."""

MAX_QUEUED_BYTES: Final = 1_048_576


class SocketBackpressure:
    """What one link may ask before it sends."""

    def __init__(self, peer: Peer, call_soon: CallSoon, on_writable: Callable[[], None]) -> None:
        """`feed` is called when there may be room again after `is_there` said no."""
        self._peer = peer
        self._call_soon = call_soon
        self._on_writable = on_writable
        self._is_resume_scheduled = False

    def has_room(self) -> bool:
        """The socket takes more. If not, and it is only this turn's output that waits, the link is fed in the next."""
        peer = self._peer
        if not peer.is_writable:
            return False
        connection = peer.connection
        if connection.queued_bytes <= MAX_QUEUED_BYTES:
            return True
        if not connection.output_bytes:  # the client has closed a session's window: only it can open that
            peer.awaits_window = True
        elif not self._is_resume_scheduled:
            self._is_resume_scheduled = True
            self._call_soon(self._resume)
        return False

    def _resume(self) -> None:
        self._is_resume_scheduled = False
        self._on_writable()
