"""A rehearsal: an outage on purpose, and what the senders report meanwhile.

Owns: its course; that the outage is over when the rehearsal is, whatever ends it; and which senders failed over, came
back or ended. What is printed is the command's affair.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from twinbus.cli.pairing import read_senders
from twinbus.cli.service import AdminRequestFailed
from twinbus.model.outage import ALL_ENTITIES

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.cli.pairing import ReportedEntity, SenderReport
    from twinbus.cli.service import AdminClient

POLL_INTERVAL_S: Final = 1.0
MAX_RECOVERY_S: Final = 120.0
"""How long the senders have to come back, at the most."""
RECOVERY_PING_INTERVALS: Final = 2
"""... and so many of their ping intervals."""


@dataclass(slots=True)
class FailoverRecord:
    """One entity, as one sender saw it. Seconds from the beginning of the outage, as of the look that found it so."""

    sender_key: tuple[str, str, str]
    client: str
    path: str
    reason: str
    ping_interval_s: float
    suspected_s: float | None = None
    failed_over_s: float | None = None
    recovered_s: float | None = None
    """After it had failed over, or was suspect."""
    sender_ended_s: float | None = None
    """The sender reports no more."""

    @property
    def is_recovery_pending(self) -> bool:
        """The sender has failed over, and may come back."""
        return self.failed_over_s is not None and self.recovered_s is None and self.sender_ended_s is None


class FailoverObserver:
    """Sees who fails over and who comes back, by one look after the other."""

    def __init__(self, path: str) -> None:
        """`path` is that of the entity in question; or `EVERYTHING`."""
        self.records: dict[tuple[tuple[str, str, str], str], FailoverRecord] = {}
        self.senders: set[tuple[str, str, str]] = set()
        self._path = path.lower()
        self._unhealthy_before: set[tuple[tuple[str, str, str], str]] | None = None

    @property
    def pending_recoveries(self) -> list[FailoverRecord]:
        """Those of senders that have failed over, and have neither come back nor ended."""
        return [one for one in self.records.values() if one.is_recovery_pending]

    @property
    def failed_over(self) -> set[tuple[str, str, str]]:
        """Senders that did, with one entity at least."""
        return {one.sender_key for one in self.records.values() if one.failed_over_s is not None}

    @property
    def suspected_only(self) -> set[tuple[str, str, str]]:
        """Senders that saw failures, and did not fail over."""
        return {one.sender_key for one in self.records.values()} - self.failed_over

    def observe(self, senders: list[SenderReport], elapsed_s: float) -> None:
        """What was reported by now. The first look is for what was not healthy before."""
        unhealthy = {
            (sender.key, one.path): (sender, one)
            for sender in senders
            for one in sender.unhealthy_entities
            if self._path in (ALL_ENTITIES, one.entity_path.lower())
        }
        live = {sender.key for sender in senders}
        self.senders |= live
        if self._unhealthy_before is None:
            self._unhealthy_before = set(unhealthy)
        self._unhealthy_before &= set(unhealthy)
        for key, (sender, entity) in unhealthy.items():
            if key not in self._unhealthy_before:
                self._record_failure(key, sender, entity, elapsed_s)
        for key, one in self.records.items():
            if one.sender_key not in live:
                one.sender_ended_s = elapsed_s if one.sender_ended_s is None else one.sender_ended_s
            else:
                one.sender_ended_s = None
                if key not in unhealthy and one.recovered_s is None:
                    one.recovered_s = elapsed_s

    def _record_failure(
        self, key: tuple[tuple[str, str, str], str], sender: SenderReport, entity: ReportedEntity, elapsed_s: float
    ) -> None:
        one = self.records.get(key)
        if one is None:
            one = self.records[key] = FailoverRecord(
                sender.key, sender.client, entity.path, entity.reason, sender.ping_interval_s
            )
        one.recovered_s = None
        if not entity.is_failed_over:
            one.suspected_s = elapsed_s if one.suspected_s is None else one.suspected_s
        elif one.failed_over_s is None:
            one.failed_over_s = elapsed_s


class Rehearsal:
    """One outage, from before its beginning to when the senders are back."""

    def __init__(
        self,
        primary: AdminClient,
        secondary: AdminClient | None,
        path: str,
        *,
        kind: str,
        seconds: float,
        sleep: Callable[[float], None] = time.sleep,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nothing is done yet. Without a secondary nobody is seen."""
        self.observer = FailoverObserver(path)
        self.seconds = seconds
        self._primary = primary
        self._secondary = secondary
        self._path = path
        self._kind = kind
        self._sleep = sleep
        self._now_s = now_s

    def run(self, on_progress: Callable[[str, float], None]) -> None:
        """Do it; `on_progress` hears what is done, and for how long. ServiceFailed if it cannot begin.

        KeyboardInterrupt ends it early: the outage is switched off all the same.
        """
        if self._secondary is not None:
            self.observer.observe(read_senders(self._secondary), 0.0)
        self._switch_on()
        begun_s = self._now_s()
        try:
            self._watch("outage", begun_s, lambda elapsed_s: elapsed_s >= self.seconds, on_progress)
        finally:
            self._switch_off()
        if self._secondary is not None:
            ended_s = self._now_s() - begun_s
            self._watch(
                "coming back", begun_s, lambda elapsed_s: self._is_recovery_over(elapsed_s - ended_s), on_progress
            )

    def _is_recovery_over(self, since_outage_s: float) -> bool:
        """So many seconds after the outage: nobody is awaited, or those who are have had their time."""
        longest_s = max((one.ping_interval_s for one in self.observer.pending_recoveries), default=0.0)
        patience_s = min(MAX_RECOVERY_S, RECOVERY_PING_INTERVALS * (longest_s + POLL_INTERVAL_S))
        return not self.observer.pending_recoveries or since_outage_s >= patience_s

    def _watch(
        self,
        stage: str,
        started_s: float,
        is_done: Callable[[float], bool],
        on_progress: Callable[[str, float], None],
    ) -> None:
        while True:
            elapsed_s = self._now_s() - started_s
            if self._secondary is not None:
                with suppress(AdminRequestFailed):  # one look that fails: the next may not
                    self.observer.observe(read_senders(self._secondary), elapsed_s)
            on_progress(stage, elapsed_s)
            if is_done(elapsed_s):
                return
            left_s = self.seconds - elapsed_s
            self._sleep(left_s if 0 < left_s < POLL_INTERVAL_S else POLL_INTERVAL_S)

    def _switch_on(self) -> None:
        try:
            self._primary.request("PUT", "$outage", path=self._path, seconds=f"{self.seconds:g}", kind=self._kind)
        except BaseException:  # its answer may be lost, and the outage on
            with suppress(AdminRequestFailed):
                self._primary.request("DELETE", "$outage", path=self._path)
            raise

    def _switch_off(self) -> None:
        try:
            self._primary.request("DELETE", "$outage", path=self._path)
        except AdminRequestFailed as error:
            text = f"the outage was not switched off ({error}); it ends by itself after {self.seconds:g} s"
            raise AdminRequestFailed(text) from error
