"""When sends were answered, and whether that was soon enough: what was struck must not be felt elsewhere.

What must hold, on connections that a process holds which was not struck:

- a send without a key, or with one of a fragment that works, is accepted, and no later than 1 s after the strike was
  detected, or after it began itself;
- a send with a key of a fragment that was struck is accepted, or refused with an error that may be tried again, in the
  same time;
- the connection stays.

Those of a struck process drop within that time, and can be made anew. A moment in which this program itself did not run
counts for nobody, and what is refused because the machine's own disk did not answer is counted apart. Owns: this
judgement and its figures. What became of messages is judged in `ledger`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final

from tests.ledger.problems import Problems
from tests.strikes.scene import has_sessions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.strikes.disk import DiskWatch
    from tests.strikes.lag import Lag
    from tests.strikes.ledger import Delivery, Pair, Send, StrikeLedger
    from tests.strikes.strike import Kind, Strike

LATE_S: Final = 1.0
AGAIN: Final = 2
"""So many times later a sender whose connection was dropped has another."""
PROBLEMS_MAX: Final = 40
DISK_SILENT: Final = "its disk has not answered for"
"""What a server says that has given a store up."""
GIVEN_UP_S: Final = 2.0
"""After so long, here."""
NOBODY: Final = 0
"""Holds a connection whose process was gone before anybody could see which one it was."""
RETRIABLE: Final = ("amqp:internal-error", "com.microsoft:server-busy", "com.microsoft:timeout")


class Class(Enum):
    """What a send that met a strike was to it."""

    KEYLESS = "without a key"
    LIVE = "keys of other fragments"
    STRUCK = "keys of struck fragments"
    OF_STRUCK_PROCESS = "on connections of the struck process"


@dataclass(frozen=True, slots=True)
class Drop:
    """A connection, or a link, that ended without our doing."""

    holder: int
    at_s: float
    why: str


@dataclass(frozen=True, slots=True)
class Return:
    """A sender that had lost its connection has another."""

    dropped_s: float
    attached_s: float


@dataclass
class Figures:
    """Of one kind of strike and one class of sends."""

    accepted: int = 0
    refused: int = 0
    cut_off: int = 0
    longest_s: float = 0.0
    """From the detection, or its own begin if that was later, to the answer."""


@dataclass
class Verdict(Problems):
    """What came of it."""

    figures: dict[tuple[Kind, Class], Figures] = field(default_factory=dict)
    drops: Counter[Kind] = field(default_factory=Counter)
    """Connections that were lost with the process that held them."""
    longest_drop_s: float = 0.0
    longest_return_s: float = 0.0
    longest_pause_s: float = 0.0
    """From the detection of a strike on, in which no receiver of a destination without sessions got anything."""
    without_disk: int = 0
    """Sends that were refused because the machine's disk did not answer anybody."""


class Judge:
    """Knows all strikes of a campaign, of which no two overlap."""

    def __init__(
        self,
        strikes: Sequence[Strike],
        stores: int,
        lag: Lag,
        late_s: float = LATE_S,
        disk: DiskWatch | None = None,
    ) -> None:
        self.verdict = Verdict(PROBLEMS_MAX)
        self._disk = disk
        self._strikes = strikes
        self._ends = [strike.healed_s for strike in strikes]
        self._stores = stores
        self._lag = lag
        self._late_s = late_s

    def judge(self, ledger: StrikeLedger, drops: Sequence[Drop], returns: Sequence[Return]) -> Verdict:
        """All of it."""
        for send in ledger.sends:
            self._judge_send(send)
        for drop in drops:
            self._judge_drop(drop)
        for again in returns:
            took_s = self._lag.without(again.dropped_s, again.attached_s)
            self.verdict.longest_return_s = max(self.verdict.longest_return_s, took_s)
            if took_s > AGAIN * self._late_s:
                self.verdict.tell(f"back: a sender was attached again {took_s:.2f} s after its connection was dropped")
        self._judge_holds(ledger)
        self._judge_returns(ledger)
        self._judge_doubles(ledger)
        self._find_pauses(ledger)
        return self.verdict

    # --- sends --------------------------------------------------------------------------------------------------------

    def _judge_send(self, send: Send) -> None:
        ended_s = send.ended_s if send.ended_s is not None else float("inf")
        if self._is_without_disk(send):
            self.verdict.without_disk += 1
            return
        strike = self._met(send.began_s, ended_s)
        name = f"message {send.number} of {send.stream.name}"
        if strike is None:
            if not send.is_accepted:
                self.verdict.tell(f"error: {name} was not accepted, and nothing was struck: {_outcome(send)}")
            return
        kind = self._class_of(send, strike)
        figures = self.verdict.figures.setdefault((strike.kind, kind), Figures())
        figures.accepted += send.is_accepted
        figures.refused += send.refusal is not None
        figures.cut_off += send.is_cut_off
        if kind is Class.OF_STRUCK_PROCESS:
            return
        waited_s = self._lag.without(max(send.began_s, strike.detected_s), ended_s)
        figures.longest_s = max(figures.longest_s, waited_s)
        about = f"{name}, {kind.value}, while {strike.kind.value}"
        if waited_s > self._late_s:
            self.verdict.tell(f"late: {about}: {_outcome(send)} {waited_s:.2f} s after the detection or its begin")
        is_fine = send.is_accepted or (kind is Class.STRUCK and (send.refusal or "").startswith(RETRIABLE))
        if not is_fine and send.ended_s is not None:
            self.verdict.tell(f"error: {about}: {_outcome(send)}")

    def _is_without_disk(self, send: Send) -> bool:
        """No store could keep it: whoever asked the disk in that time had no answer."""
        if self._disk is None or send.ended_s is None or DISK_SILENT not in (send.refusal or ""):
            return False
        return self._disk.was_slow(send.ended_s - GIVEN_UP_S, send.ended_s)

    def _met(self, began_s: float, ended_s: float) -> Strike | None:
        """The first strike that was under way in that time."""
        at = bisect_left(self._ends, began_s)
        return self._strikes[at] if at < len(self._strikes) and self._strikes[at].began_s <= ended_s else None

    def _class_of(self, send: Send, strike: Strike) -> Class:
        is_gone = send.holder == NOBODY and strike.ends_connections
        if is_gone or (strike.worker is not None and send.holder == strike.worker):
            return Class.OF_STRUCK_PROCESS
        if send.fragment is None:
            return Class.KEYLESS
        return Class.STRUCK if send.fragment % self._stores in strike.stores else Class.LIVE

    # --- connections --------------------------------------------------------------------------------------------------

    def _judge_drop(self, drop: Drop) -> None:
        strike = self._met(drop.at_s, drop.at_s)
        if strike is None or not strike.ends_connections or drop.holder not in {strike.worker, NOBODY}:
            self.verdict.tell(f"dropped: process {drop.holder}, which was not struck, ended a connection: {drop.why}")
            return
        self.verdict.drops[strike.kind] += 1
        late_s = self._lag.without(strike.detected_s, drop.at_s)
        self.verdict.longest_drop_s = max(self.verdict.longest_drop_s, late_s)
        if late_s > self._late_s and drop.holder != NOBODY:
            self.verdict.tell(f"late: a connection of a struck process ended {late_s:.2f} s after the detection")

    # --- messages -----------------------------------------------------------------------------------------------------

    def _judge_holds(self, ledger: StrikeLedger) -> None:
        """A lock is valid unless its fragment was struck since, or the process through which its holder had it."""
        for pair in ledger.holds:
            earlier, later = pair.earlier, pair.later
            strikes = self._between(pair)
            is_struck = any(strike.worker == earlier.holder for strike in strikes) or self._touch(strikes, earlier)
            if not is_struck:
                self.verdict.tell(
                    f"two holders: message {later.copy.number} of {later.copy.home} was handed out "
                    f"{later.since_s - earlier.since_s:.3f} s after another had got it, under a lock for "
                    f"{earlier.until_s - later.since_s:.1f} s more"
                )

    def _judge_returns(self, ledger: StrikeLedger) -> None:
        """Who has a session keeps it when its disk fails, and gets again what it had: all locks are void."""
        for pair in ledger.returns:
            later = pair.later
            if not self._touch([strike for strike in self._between(pair) if strike.worker is None], later):
                self.verdict.tell(
                    f"order: from {later.copy.home} came, as number {later.copy.sequence_number:#x}, message "
                    f"{later.copy.number}, after number {pair.earlier.copy.sequence_number:#x} on the same link"
                )

    def _between(self, pair: Pair) -> list[Strike]:
        since_s, until_s = pair.earlier.since_s, pair.later.since_s
        return [strike for strike in self._strikes if strike.began_s <= until_s and strike.healed_s >= since_s]

    def _touch(self, strikes: Sequence[Strike], delivery: Delivery) -> bool:
        return any(delivery.copy.fragment % self._stores in strike.stores for strike in strikes)

    def _judge_doubles(self, ledger: StrikeLedger) -> None:
        """Allowed for a message without a key whose fragment was struck in the moment that it was sent."""
        for send, destination in ledger.doubles():
            ended_s = send.ended_s if send.ended_s is not None else float("inf")
            if send.fragment is not None or self._met(send.began_s, ended_s) is None:
                self.verdict.tell(f"doubled: message {send.number} of {send.stream.name} is at {destination} twice")

    def _find_pauses(self, ledger: StrikeLedger) -> None:
        last_s: dict[str, float] = {}
        for delivery in ledger.deliveries:
            destination = delivery.copy.home
            since_s, now_s = last_s.get(destination), delivery.since_s
            last_s[destination] = now_s
            strike = self._met(since_s, now_s) if since_s is not None and not has_sessions(destination) else None
            if strike is not None and since_s is not None and now_s > strike.detected_s:
                pause_s = self._lag.without(max(since_s, strike.detected_s), min(now_s, strike.healed_s))
                self.verdict.longest_pause_s = max(self.verdict.longest_pause_s, pause_s)


def _outcome(send: Send) -> str:
    if send.ended_s is None:
        return "no answer"
    return "accepted" if send.is_accepted else send.refusal or "its connection ended"
