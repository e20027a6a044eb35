"""A rehearsal: an outage of one's own making, and what the senders make of it.

Owns: its course, and that the outage is over when this is, whatever ends it; and who was seen failing over and coming
back. What is printed is the command's affair.
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

    from twinbus.cli.pairing import Sender
    from twinbus.cli.service import Service

LOOK_S: Final = 1.0
AFTER_S: Final = 120.0
"""How long the senders have to come back, at the most."""
INTERVALS: Final = 2
"""... and so many of their ping intervals."""


@dataclass(slots=True)
class Experience:
    """One entity, as one sender saw it. Seconds from the beginning of the outage."""

    client: str
    path: str
    failed_over_s: float
    why: str
    came_back_s: float | None = None


class Witness:
    """Sees who fails over and who comes back, by one look after the other."""

    def __init__(self, path: str) -> None:
        """`path` is that of the entity of which that is of interest; or `EVERYTHING`."""
        self.experiences: dict[tuple[str, str], Experience] = {}
        self.senders: set[str] = set()
        self.longest_interval_s = 0.0
        self._path = path.lower()
        self._down_before: set[tuple[str, str]] | None = None

    @property
    def all_are_back(self) -> bool:
        """Nobody is seen that has failed over and not come back."""
        return all(one.came_back_s is not None for one in self.experiences.values())

    def look(self, senders: list[Sender], elapsed_s: float) -> None:
        """What was reported by now. The first look is for what was down before."""
        down = {
            (sender.client, one.path): one.why
            for sender in senders
            for one in sender.unhealthy
            if self._path in (EVERYTHING, one.path.lower())
        }
        self.senders |= {sender.client for sender in senders}
        self.longest_interval_s = max([self.longest_interval_s, *(sender.ping_interval_s for sender in senders)])
        if self._down_before is None:
            self._down_before = set(down)
        self._down_before &= set(down)
        for (client, path), why in down.items():
            if (client, path) not in self._down_before:
                self.experiences.setdefault((client, path), Experience(client, path, elapsed_s, why)).came_back_s = None
        there = {sender.client for sender in senders}
        for key, experience in self.experiences.items():
            if key not in down and experience.client in there and experience.came_back_s is None:
                experience.came_back_s = elapsed_s


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
            patience_s = min(AFTER_S, INTERVALS * self.witness.longest_interval_s + INTERVALS * LOOK_S)
            self._watch(
                "coming back",
                begun_s,
                lambda elapsed_s: self.witness.all_are_back or elapsed_s >= ended_s + patience_s,
                on_progress,
            )

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
