"""Heartbeats: when a connection sends an empty frame, and when its peer counts as silent.

`Heartbeat` implements the idle timeouts of AMQP: each end says in its `open` how long it waits for frames from the
other end.

`SilenceLimit` is an extension for clients with an exclusive link: a limit, shorter than the idle timeout, on which both
ends agree. While a limit is agreed, the client sends three empty frames within the limit, and the server replies to
each of them with an empty frame. A reply proves that the server is alive and that it received the client's frame. So
the server cannot give up on the connection before the limit has passed since the client sent that frame
(`confirmed_s`). The programs agree on a limit when they attach a link, and the agreement ends with the link. While a
limit is agreed, the server replies to every empty frame from the client and sends no other empty frames, so the n-th
reply belongs to the n-th frame.

This module sends nothing; the connection sends the frames.
"""

from __future__ import annotations

from typing import Final

RECHECK_S: Final = 0.5
"""Delay before the second check of a silent peer. The peer's frames may already be in the socket, because the event
loop was busy or the process was stopped for a while; by the second check they have been read."""
MAX_CHECK_INTERVAL_S: Final = 60.0
_HEARTBEATS_PER_LIMIT: Final = 3
"""Number of heartbeats that a client sends within the limit."""
_ALMOST: Final = 0.9
"""Share of an interval that must have passed. A timer that fires slightly early would otherwise skip an interval."""


class Heartbeat:
    """Idle timeouts of one connection, in both directions.

    The peer's idle timeout determines how often this end sends a frame. Our own idle timeout determines when the peer
    counts as silent.
    """

    __slots__ = ("_checked_s", "_idle_timeout_ms", "interval_s")

    def __init__(self, idle_timeout_ms: int, now: float) -> None:
        """Start with our own idle timeout (0 for none). The peer's idle timeout is unknown until its `open` arrives."""
        self.interval_s = 0.0
        """Interval at which we must send a frame: a third of the peer's idle timeout, or 0 if the peer has none."""
        self._idle_timeout_ms = idle_timeout_ms
        self._checked_s = now

    def set_peer_timeout(self, idle_timeout_ms: int) -> None:
        """Apply the idle timeout in the peer's `open`."""
        self.interval_s = idle_timeout_ms / 3000

    def is_peer_silent(self, now: float, last_received: float) -> bool:
        """Return whether nothing arrived for twice our idle timeout."""
        return self._idle_timeout_ms > 0 and now - last_received >= self._idle_timeout_ms / 500

    def take_due(self, now: float) -> bool:
        """Return whether an interval has passed since this method last returned True."""
        if not self.interval_s or now - self._checked_s < self.interval_s * _ALMOST:
            return False
        self._checked_s = now
        return True

    def check_interval_s(self) -> float:
        """Return the longest time that may pass between two checks of the timeouts."""
        intervals = (self.interval_s, self._idle_timeout_ms / 2000, MAX_CHECK_INTERVAL_S)
        return min(interval for interval in intervals if interval)


class SilenceLimit:
    """Silence limit of one connection."""

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
        """Start without an agreed limit."""
        self.limit_s = 0.0
        """Agreed limit, or 0 if there is none and the ordinary idle timeout applies."""
        self.confirmed_s = now
        """On a client: send time of the latest heartbeat that the server has answered. Updated only while a limit is
        agreed."""
        self._is_client = is_client
        self._progress_s = now
        self._heartbeat_s = now
        self._unanswered_heartbeats: list[float] = []
        """Send times of empty frames that the server has not replied to yet."""
        self._suspected_s: float | None = None
        """Time when the peer was first found silent, or None."""

    def set_limit(self, limit_s: float) -> None:
        """Agree on a new limit; 0 ends the agreement."""
        self.limit_s = limit_s
        self._suspected_s = None

    def on_heartbeat_answered(self) -> None:
        """Match a reply from the server with our oldest unanswered heartbeat, maybe from an earlier agreement."""
        if self._unanswered_heartbeats:
            self.confirmed_s = self._unanswered_heartbeats.pop(0)

    def note_progress(self, now: float) -> None:
        """Record that the peer reads our output: the peer is alive, although we do not read its input now."""
        self._progress_s = now

    def is_exceeded(self, now: float, last_received: float) -> bool:
        """Return whether to give up on the peer: it was silent for longer than agreed, even at a second check."""
        if now - self._last_sign_of_life_s(last_received) < self.limit_s:
            self._suspected_s = None
            return False
        if self._suspected_s is None:
            self._suspected_s = now
            return False
        return now - self._suspected_s >= RECHECK_S * _ALMOST

    def take_heartbeat_due(self, now: float) -> bool:
        """Return whether the client must send a heartbeat now: a heartbeat is due, or the server seems to be silent."""
        if not self._is_client:
            return False
        if self._suspected_s != now and now - self._heartbeat_s < self.limit_s / _HEARTBEATS_PER_LIMIT * _ALMOST:
            return False
        self._unanswered_heartbeats.append(now)
        self._heartbeat_s = now
        return True

    def next_check_in_s(self, now: float, last_received: float) -> float:
        """Return the number of seconds until the next check."""
        if self._suspected_s is not None:
            due_s = self._suspected_s + RECHECK_S
        else:
            due_s = self._last_sign_of_life_s(last_received) + self.limit_s
        return min(due_s - now, self.limit_s / _HEARTBEATS_PER_LIMIT) if self._is_client else due_s - now

    def _last_sign_of_life_s(self, last_received: float) -> float:
        return max(last_received, self._progress_s)
