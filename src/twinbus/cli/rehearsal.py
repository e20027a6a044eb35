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
from twinbus.cli.service import ServiceFailed
from twinbus.model.outage import EVERYTHING

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.cli.pairing import EntityState, Sender
    from twinbus.cli.service import Service

LOOK_S: Final = 1.0
AFTER_S: Final = 120.0
"""How long the senders have to come back, at the most."""
INTERVALS: Final = 2
"""... and so many of their ping intervals."""


@dataclass(slots=True)
class Experience:
    """One entity, as one sender saw it. Seconds from the beginning of the outage, as of the look that found it so."""

    sender: tuple[str, str, str]
    client: str
    path: str
    why: str
    ping_interval_s: float
    suspected_s: float | None = None
    failed_over_s: float | None = None
    came_back_s: float | None = None
    """After it had failed over, or was suspect."""
    ended_s: float | None = None
    """The sender reports no more."""

    @property
    def is_awaited(self) -> bool:
        """The sender has failed over, and may come back."""
        return self.failed_over_s is not None and self.came_back_s is None and self.ended_s is None


class Witness:
    """Sees who fails over and who comes back, by one look after the other."""

    def __init__(self, path: str) -> None:
        """`path` is that of the entity in question; or `EVERYTHING`."""
        self.experiences: dict[tuple[tuple[str, str, str], str], Experience] = {}
        self.senders: set[tuple[str, str, str]] = set()
        self._path = path.lower()
        self._unhealthy_before: set[tuple[tuple[str, str, str], str]] | None = None

    @property
    def awaited(self) -> list[Experience]:
        """Those of senders that have failed over, and have neither come back nor ended."""
        return [one for one in self.experiences.values() if one.is_awaited]

    @property
    def failed_over(self) -> set[tuple[str, str, str]]:
        """Senders that did, with one entity at least."""
        return {one.sender for one in self.experiences.values() if one.failed_over_s is not None}

    @property
    def suspected_only(self) -> set[tuple[str, str, str]]:
        """Senders that saw failures, and did not fail over."""
        return {one.sender for one in self.experiences.values()} - self.failed_over

    def look(self, senders: list[Sender], elapsed_s: float) -> None:
        """What was reported by now. The first look is for what was not healthy before."""
        unhealthy = {
            (sender.key, one.path): (sender, one)
            for sender in senders
            for one in sender.entities
            if self._path in (EVERYTHING, one.entity.lower())
        }
        live = {sender.key for sender in senders}
        self.senders |= live
        if self._unhealthy_before is None:
            self._unhealthy_before = set(unhealthy)
        self._unhealthy_before &= set(unhealthy)
        for key, (sender, entity) in unhealthy.items():
            if key not in self._unhealthy_before:
                self._note(key, sender, entity, elapsed_s)
        for key, one in self.experiences.items():
            if one.sender not in live:
                one.ended_s = elapsed_s if one.ended_s is None else one.ended_s
            else:
                one.ended_s = None
                if key not in unhealthy and one.came_back_s is None:
                    one.came_back_s = elapsed_s

    def _note(
        self, key: tuple[tuple[str, str, str], str], sender: Sender, entity: EntityState, elapsed_s: float
    ) -> None:
        one = self.experiences.get(key)
        if one is None:
            one = self.experiences[key] = Experience(
                sender.key, sender.client, entity.path, entity.why, sender.ping_interval_s
            )
        one.came_back_s = None
        if not entity.is_failed_over:
            one.suspected_s = elapsed_s if one.suspected_s is None else one.suspected_s
        elif one.failed_over_s is None:
            one.failed_over_s = elapsed_s


class Rehearsal:
    """One outage, from before its beginning to when the senders are back."""

    def __init__(
        self,
        primary: Service,
        secondary: Service | None,
        path: str,
        *,
        kind: str,
        seconds: float,
        sleep: Callable[[float], None] = time.sleep,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nothing is done yet. Without a secondary nobody is seen."""
        self.witness = Witness(path)
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
            self.witness.look(read_senders(self._secondary), 0.0)
        self._switch_on()
        begun_s = self._now_s()
        try:
            self._watch("outage", begun_s, lambda elapsed_s: elapsed_s >= self.seconds, on_progress)
        finally:
            self._switch_off()
        if self._secondary is not None:
            ended_s = self._now_s() - begun_s
            self._watch("coming back", begun_s, lambda elapsed_s: self._is_enough(elapsed_s - ended_s), on_progress)

    def _is_enough(self, since_s: float) -> bool:
        """So many seconds after the outage: nobody is awaited, or those who are have had their time."""
        longest_s = max((one.ping_interval_s for one in self.witness.awaited), default=0.0)
        patience_s = min(AFTER_S, INTERVALS * (longest_s + LOOK_S))
        return not self.witness.awaited or since_s >= patience_s

    def _watch(
        self,
        stage: str,
        begun_s: float,
        is_done: Callable[[float], bool],
        on_progress: Callable[[str, float], None],
    ) -> None:
        while True:
            elapsed_s = self._now_s() - begun_s
            if self._secondary is not None:
                with suppress(ServiceFailed):  # one look that fails: the next may not
                    self.witness.look(read_senders(self._secondary), elapsed_s)
            on_progress(stage, elapsed_s)
            if is_done(elapsed_s):
                return
            left_s = self.seconds - elapsed_s
            self._sleep(left_s if 0 < left_s < LOOK_S else LOOK_S)

    def _switch_on(self) -> None:
        try:
            self._primary.ask("PUT", "$outage", path=self._path, seconds=f"{self.seconds:g}", kind=self._kind)
        except BaseException:  # its answer may be lost, and the outage on
            with suppress(ServiceFailed):
                self._primary.ask("DELETE", "$outage", path=self._path)
            raise

    def _switch_off(self) -> None:
        try:
            self._primary.ask("DELETE", "$outage", path=self._path)
        except ServiceFailed as error:
            text = f"the outage was not switched off ({error}); it ends by itself after {self.seconds:g} s"
            raise ServiceFailed(text) from error
