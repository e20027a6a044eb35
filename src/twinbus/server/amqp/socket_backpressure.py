"""Backpressure: whether the socket of a link accepts more messages now.

Owns: how many bytes may be queued for a socket. Beyond this limit, messages stay in the fragment, where other receivers
can get them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.amqp.aio import Peer

    CallSoon: TypeAlias = Callable[[Callable[[], None]], object]
    """A function that schedules a call for the next turn of the event loop."""

MAX_QUEUED_BYTES: Final = 1_048_576


class SocketBackpressure:
    """The backpressure of one link's socket."""

    def __init__(self, peer: Peer, call_soon: CallSoon, on_writable: Callable[[], None]) -> None:
        """Create a check that calls `on_writable` when there may be room again after `has_room` returned False."""
        self._peer = peer
        self._call_soon = call_soon
        self._on_writable = on_writable
        self._is_resume_scheduled = False

    def has_room(self) -> bool:
        """Return whether the socket accepts more messages.

        If only the output of this turn exceeds the limit, `on_writable` is called in the next turn.
        """
        peer = self._peer
        if not peer.is_writable:
            return False
        connection = peer.connection
        if connection.queued_bytes <= MAX_QUEUED_BYTES:
            return True
        if not connection.output_bytes:  # a session window is full, and only the client can open it
            peer.awaits_window = True
        elif not self._is_resume_scheduled:
            self._is_resume_scheduled = True
            self._call_soon(self._resume)
        return False

    def _resume(self) -> None:
        self._is_resume_scheduled = False
        self._on_writable()
