"""Checks of response times: a fault must not affect other fragments and processes.

On connections of processes without a fault:

- a send without a key, or with a key of an unaffected fragment, is accepted within 1 s after the fault was detected, or
  after the send began if that was later;
- a send with a key of an affected fragment is accepted, or refused with a retriable error, in the same time;
- the connection stays open.

Connections of a faulty process end within that time, and the clients can reconnect. Time in which this program did not
run does not count, and sends that are refused because the machine's own disk did not respond are counted separately.
Owns: these checks and their figures. `checker` checks the messages.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final

from tests.campaigns.cluster_faults.scenario import has_sessions
from tests.support.delivery_checker.problems import Problems

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.campaigns.cluster_faults.checker import ClusterChecker, Delivery, DeliveryPair, SendRecord
    from tests.campaigns.cluster_faults.disk_monitor import DiskMonitor
    from tests.campaigns.cluster_faults.fault import Fault, FaultKind
    from tests.campaigns.cluster_faults.loop_lag import LoopLag

RESPONSE_LIMIT_S: Final = 1.0
RECONNECT_FACTOR: Final = 2
"""A sender reconnects within this multiple of the response limit."""
MAX_PROBLEMS: Final = 40
DISK_TIMEOUT_TEXT: Final = "its disk has not answered for"
"""Error text of a server that closed a store after a timeout."""
STORE_TIMEOUT_S: Final = 2.0
"""Store timeout of the server under test."""
UNKNOWN_PROCESS: Final = 0
"""Process of a connection that ended before its process was known."""
RETRIABLE_CONDITIONS: Final = ("amqp:internal-error", "com.microsoft:server-busy", "com.microsoft:timeout")


class SendClass(Enum):
    """Relation of a send to an overlapping fault."""

    KEYLESS = "without a key"
    OTHER_FRAGMENT = "keys of other fragments"
    FAULTY_FRAGMENT = "keys of affected fragments"
    FAULTY_PROCESS = "on connections of the faulty process"


@dataclass(frozen=True, slots=True)
class ConnectionDrop:
    """Connection or link that the server ended."""

    process: int
    at_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class Reconnection:
    """Reconnection of a sender that had lost its connection."""

    dropped_s: float
    attached_s: float


@dataclass
class SendStatistics:
    """Figures of one kind of fault and one class of sends."""

    accepted: int = 0
    refused: int = 0
    cut_off: int = 0
    longest_s: float = 0.0
    """Longest time from the detection, or from the start of the send if that was later, to the response."""


@dataclass
class ResponseReport(Problems):
    """Problems and figures."""

    figures: dict[tuple[FaultKind, SendClass], SendStatistics] = field(default_factory=dict)
    drops: Counter[FaultKind] = field(default_factory=Counter)
    """Connections that were lost with the process that held them."""
    longest_drop_s: float = 0.0
    longest_reconnection_s: float = 0.0
    longest_pause_s: float = 0.0
    """Longest time after a detection in which a destination without sessions delivered nothing."""
    disk_timeouts: int = 0
    """Sends that were refused because the machine's own disk did not respond."""


class ResponseChecker:
    """Checks responses against the faults of a campaign, of which no two overlap."""

    def __init__(
        self,
        faults: Sequence[Fault],
        stores: int,
        lag: LoopLag,
        response_limit_s: float = RESPONSE_LIMIT_S,
        disk: DiskMonitor | None = None,
    ) -> None:
        self.report = ResponseReport(MAX_PROBLEMS)
        self._disk = disk
        self._faults = faults
        self._ends = [fault.recovered_s for fault in faults]
        self._stores = stores
        self._lag = lag
        self._response_limit_s = response_limit_s

    def check(
        self, checker: ClusterChecker, drops: Sequence[ConnectionDrop], reconnections: Sequence[Reconnection]
    ) -> ResponseReport:
        """Check sends, connections and deliveries."""
        for send in checker.sends:
            self._check_send(send)
        for drop in drops:
            self._check_drop(drop)
        for reconnection in reconnections:
            took_s = self._lag.elapsed_without_lag(reconnection.dropped_s, reconnection.attached_s)
            self.report.longest_reconnection_s = max(self.report.longest_reconnection_s, took_s)
            if took_s > RECONNECT_FACTOR * self._response_limit_s:
                self.report.add(f"back: a sender was attached again {took_s:.2f} s after its connection was dropped")
        self._check_double_locks(checker)
        self._check_session_redeliveries(checker)
        self._check_duplicates(checker)
        self._measure_pauses(checker)
        return self.report

    # --- sends --------------------------------------------------------------------------------------------------------

    def _check_send(self, send: SendRecord) -> None:
        ended_s = send.ended_s if send.ended_s is not None else float("inf")
        if self._is_disk_timeout(send):
            self.report.disk_timeouts += 1
            return
        fault = self._fault_during(send.began_s, ended_s)
        name = f"message {send.number} of {send.stream.name}"
        if fault is None:
            if not send.is_accepted:
                self.report.add(f"error: {name} was not accepted, and there was no fault: {_describe_outcome(send)}")
            return
        kind = self._send_class(send, fault)
        figures = self.report.figures.setdefault((fault.kind, kind), SendStatistics())
        figures.accepted += send.is_accepted
        figures.refused += send.refusal is not None
        figures.cut_off += send.is_disconnected
        if kind is SendClass.FAULTY_PROCESS:
            return
        waited_s = self._lag.elapsed_without_lag(max(send.began_s, fault.detected_s), ended_s)
        figures.longest_s = max(figures.longest_s, waited_s)
        about = f"{name}, {kind.value}, while {fault.kind.value}"
        if waited_s > self._response_limit_s:
            self.report.add(
                f"late: {about}: {_describe_outcome(send)} {waited_s:.2f} s after the detection or its begin"
            )
        is_fine = send.is_accepted or (
            kind is SendClass.FAULTY_FRAGMENT and (send.refusal or "").startswith(RETRIABLE_CONDITIONS)
        )
        if not is_fine and send.ended_s is not None:
            self.report.add(f"error: {about}: {_describe_outcome(send)}")

    def _is_disk_timeout(self, send: SendRecord) -> bool:
        """Return whether the send was refused because the machine's own disk was slow."""
        if self._disk is None or send.ended_s is None or DISK_TIMEOUT_TEXT not in (send.refusal or ""):
            return False
        return self._disk.was_slow(send.ended_s - STORE_TIMEOUT_S, send.ended_s)

    def _fault_during(self, began_s: float, ended_s: float) -> Fault | None:
        """Return the first fault that overlaps that time."""
        index = bisect_left(self._ends, began_s)
        return self._faults[index] if index < len(self._faults) and self._faults[index].began_s <= ended_s else None

    def _send_class(self, send: SendRecord, fault: Fault) -> SendClass:
        is_gone = send.process == UNKNOWN_PROCESS and fault.ends_connections
        if is_gone or (fault.worker is not None and send.process == fault.worker):
            return SendClass.FAULTY_PROCESS
        if send.fragment is None:
            return SendClass.KEYLESS
        return SendClass.FAULTY_FRAGMENT if send.fragment % self._stores in fault.stores else SendClass.OTHER_FRAGMENT

    # --- connections --------------------------------------------------------------------------------------------------

    def _check_drop(self, drop: ConnectionDrop) -> None:
        fault = self._fault_during(drop.at_s, drop.at_s)
        if fault is None or not fault.ends_connections or drop.process not in {fault.worker, UNKNOWN_PROCESS}:
            self.report.add(f"dropped: process {drop.process}, which has no fault, ended a connection: {drop.reason}")
            return
        self.report.drops[fault.kind] += 1
        late_s = self._lag.elapsed_without_lag(fault.detected_s, drop.at_s)
        self.report.longest_drop_s = max(self.report.longest_drop_s, late_s)
        if late_s > self._response_limit_s and drop.process != UNKNOWN_PROCESS:
            self.report.add(f"late: a connection of a faulty process ended {late_s:.2f} s after the detection")

    # --- messages -----------------------------------------------------------------------------------------------------

    def _check_double_locks(self, checker: ClusterChecker) -> None:
        """A lock is valid unless there was a fault of its fragment or of its holder's process since."""
        for pair in checker.double_locks:
            earlier, later = pair.earlier, pair.later
            faults = self._faults_between(pair)
            is_released = any(fault.worker == earlier.process for fault in faults) or self._affects_fragment(
                faults, earlier
            )
            if not is_released:
                self.report.add(
                    f"two holders: message {later.copy.number} of {later.copy.destination} was handed out "
                    f"{later.since_s - earlier.since_s:.3f} s after another had got it, under a lock for "
                    f"{earlier.until_s - later.since_s:.1f} s more"
                )

    def _check_session_redeliveries(self, checker: ClusterChecker) -> None:
        """A session survives a disk fault, but its locks do not: its messages are redelivered."""
        for pair in checker.session_redeliveries:
            later = pair.later
            if not self._affects_fragment(
                [fault for fault in self._faults_between(pair) if fault.worker is None], later
            ):
                self.report.add(
                    f"order: from {later.copy.destination} came, as number {later.copy.sequence_number:#x}, message "
                    f"{later.copy.number}, after number {pair.earlier.copy.sequence_number:#x} on the same link"
                )

    def _faults_between(self, pair: DeliveryPair) -> list[Fault]:
        since_s, until_s = pair.earlier.since_s, pair.later.since_s
        return [fault for fault in self._faults if fault.began_s <= until_s and fault.recovered_s >= since_s]

    def _affects_fragment(self, faults: Sequence[Fault], delivery: Delivery) -> bool:
        return any(delivery.copy.fragment % self._stores in fault.stores for fault in faults)

    def _check_duplicates(self, checker: ClusterChecker) -> None:
        """Duplicates are allowed only for a message without a key that was sent during a fault."""
        for send, destination in checker.duplicates():
            ended_s = send.ended_s if send.ended_s is not None else float("inf")
            if send.fragment is not None or self._fault_during(send.began_s, ended_s) is None:
                self.report.add(f"doubled: message {send.number} of {send.stream.name} is at {destination} twice")

    def _measure_pauses(self, checker: ClusterChecker) -> None:
        last_s: dict[str, float] = {}
        for delivery in checker.deliveries:
            destination = delivery.copy.destination
            since_s, now_s = last_s.get(destination), delivery.since_s
            last_s[destination] = now_s
            fault = (
                self._fault_during(since_s, now_s) if since_s is not None and not has_sessions(destination) else None
            )
            if fault is not None and since_s is not None and now_s > fault.detected_s:
                pause_s = self._lag.elapsed_without_lag(max(since_s, fault.detected_s), min(now_s, fault.recovered_s))
                self.report.longest_pause_s = max(self.report.longest_pause_s, pause_s)


def _describe_outcome(send: SendRecord) -> str:
    if send.ended_s is None:
        return "no response"
    return "accepted" if send.is_accepted else send.refusal or "its connection ended"
