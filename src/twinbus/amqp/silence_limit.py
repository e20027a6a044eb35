"""An agreement on silence: after how long either end of a connection gives up on the other, if less than usual.

While there is one, the client sends an empty frame every third of the agreed limit, and the server answers each empty
frame by one. An answer tells the client more than that the server is alive: the server has heard the client since that
frame was sent, and cannot have given up before the limit has passed from then (`confirmed_s`).

The programs agree by frames of their links, and in the order of these frames. So the server answers every empty frame
that the client sends under an agreement, and sends no others meanwhile: the n-th answer belongs to the n-th frame.

Owns: when a peer is silent, when the client has to ask for an answer, and which answer belongs to which frame. Sends
nothing: that is the connection's part.
"""

from __future__ import annotations

from typing import Final

RECHECK_S: Final = 0.5
"""When a peer that seems to be silent is looked at again, before it is given up. Its frames may be in the socket: the
loop was busy, or this process was stopped for a while. By the second look what had come is read."""
_HEARTBEATS_PER_LIMIT: Final = 3
"""In the limit."""
_ALMOST: Final = 0.9
"""A timer that fires a little early must not cost a whole interval."""


class SilenceLimit:
    """Of one connection."""

    __slots__ = (
        "_heartbeat_s",
        "_is_client",
        "_progress_s",
        "_suspected_s",
        "_unanswered_heartbeats",
        "confirmed_s",
        "limit_s",
    )

    def __init__(self, *, is_client: bool, now: float) -> None:
        """Nothing is agreed."""
        self.limit_s = 0.0
        """0: nothing is agreed, and the time-out of ordinary connections holds."""
        self.confirmed_s = now
        """On a client: the server has heard us since then. Kept only while there is an agreement."""
        self._is_client = is_client
        self._progress_s = now
        self._heartbeat_s = now
        self._unanswered_heartbeats: list[float] = []
        """When empty frames were sent that the server has not answered: a few."""
        self._suspected_s: float | None = None
        """When the peer was found to be silent; None if it was not."""

    def set_limit(self, limit_s: float) -> None:
        """Agree on a limit, on another one, or (0) on none any more."""
        self.limit_s = limit_s
        self._suspected_s = None

    def on_heartbeat_answered(self) -> None:
        """An empty frame came from the server. The answers to frames of an earlier agreement come first."""
        if self._unanswered_heartbeats:
            self.confirmed_s = self._unanswered_heartbeats.pop(0)

    def note_progress(self, now: float) -> None:
        """The peer takes our output: a sign of life while we do not read from it."""
        self._progress_s = now

    def is_exceeded(self, now: float, last_received: float) -> bool:
        """Whether the peer is to be given up: it was silent for longer than agreed, and still is at a second look."""
        if now - self._last_sign_of_life_s(last_received) < self.limit_s:
            self._suspected_s = None
            return False
        if self._suspected_s is None:
            self._suspected_s = now
            return False
        return now - self._suspected_s >= RECHECK_S * _ALMOST

    def take_heartbeat_due(self, now: float) -> bool:
        """Whether the client sends an empty frame now: it is due, or the server seems to be silent."""
        if not self._is_client:
            return False
        if self._suspected_s != now and now - self._heartbeat_s < self.limit_s / _HEARTBEATS_PER_LIMIT * _ALMOST:
            return False
        self._unanswered_heartbeats.append(now)
        self._heartbeat_s = now
        return True

    def next_check_in_s(self, now: float, last_received: float) -> float:
        """When this is to be asked again, from now on."""
        if self._suspected_s is not None:
            due_s = self._suspected_s + RECHECK_S
        else:
            due_s = self._last_sign_of_life_s(last_received) + self.limit_s
        return min(due_s - now, self.limit_s / _HEARTBEATS_PER_LIMIT) if self._is_client else due_s - now

    def _last_sign_of_life_s(self, last_received: float) -> float:
        return max(last_received, self._progress_s)
