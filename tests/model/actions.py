"""All that can be done to a queue, each thing with random details."""

from __future__ import annotations

from dataclasses import replace

from tests.model.looking import Looking
from tests.model.receiving import Receiving
from tests.model.removing import Removing
from tests.model.settings import LOCKS_MS, MOSTS, TTLS_MS, WINDOWS_MS
from tests.model.settling import Settling
from tests.model.violation import Violation
from tests.model.world import PATH

DAY_MS = 86_400_000


class Actions(Removing, Receiving, Settling, Looking):
    """... and time, and trouble."""

    def work(self) -> None:
        self._world.work()

    def rest(self) -> None:
        self._world.settle_down()

    def wait(self) -> None:
        self._world.pass_time(self._random.choice((0.05, 0.5, 1.0, 2.0)))

    def wait_long(self) -> None:
        self._world.pass_time(self._random.choice((4.0, 5.0, 11.0, 30.0)))

    def jump(self) -> None:
        self._world.jump(self._world.clock.wall_ms() + self._random.choice((-DAY_MS, DAY_MS, -1_500, 60_000)))

    def describe(self) -> None:
        description = replace(
            self._model.description,
            lock_duration_ms=self._random.choice(LOCKS_MS),
            max_delivery_count=self._random.choice(MOSTS),
            default_time_to_live_ms=self._random.choice(TTLS_MS),
            duplicate_window_ms=self._random.choice(WINDOWS_MS),
            dead_lettering_on_expiration=self._random.random() < 0.5,
        )
        self._model.describe(description)
        self._world.namespace.update_queue(PATH, description, updated_ms=0)

    def disable(self) -> None:
        """For a moment nobody may receive."""
        world, description = self._world, self._model.description
        world.is_disabled = True
        world.namespace.update_queue(PATH, replace(description, status="ReceiveDisabled"), updated_ms=0)
        world.is_disabled = False
        if self._model.receivers or self._model.holds or world.lookers:
            raise Violation(f"there are still {self._model.receivers}")
        world.namespace.update_queue(PATH, description, updated_ms=0)

    def hang(self) -> None:
        self._world.store.hang()

    def go_on(self) -> None:
        if self._world.store.is_hanging:
            self._world.store.resume()

    def fail(self) -> None:
        self._world.store.fail_next("input/output error", self._random)

    def reopen(self) -> None:
        if self._world.is_closed:
            self._world.reopen()

    def crash(self) -> None:
        self._world.crash()

    def restart(self) -> None:
        """The process is started again, when nothing is going on."""
        self._world.work_all()
        if self._world.is_working:
            self._world.crash()
