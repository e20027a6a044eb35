"""All random actions of the queue simulation."""

from __future__ import annotations

from dataclasses import replace

from tests.simulation.queue.browse_actions import BrowseActions
from tests.simulation.queue.model_state import Violation
from tests.simulation.queue.receive_actions import ReceiveActions
from tests.simulation.queue.removal_actions import RemovalActions
from tests.simulation.queue.settings import LOCKS_MS, MAX_DELIVERY_COUNTS, TTLS_MS, WINDOWS_MS
from tests.simulation.queue.settlement_actions import SettlementActions
from tests.simulation.queue.simulation import PATH

DAY_MS = 86_400_000


class Actions(RemovalActions, ReceiveActions, SettlementActions, BrowseActions):
    """All actions: those of the base classes, and actions on time, description, store and process."""

    def run_step(self) -> None:
        self._simulation.step()

    def check(self) -> None:
        self._simulation.check_when_idle()

    def wait(self) -> None:
        self._simulation.pass_time(self._random.choice((0.05, 0.5, 1.0, 2.0)))

    def wait_long(self) -> None:
        self._simulation.pass_time(self._random.choice((4.0, 5.0, 11.0, 30.0)))

    def jump(self) -> None:
        self._simulation.set_wall_clock(
            self._simulation.clock.wall_ms() + self._random.choice((-DAY_MS, DAY_MS, -1_500, 60_000))
        )

    def update(self) -> None:
        description = replace(
            self._model.description,
            lock_duration_ms=self._random.choice(LOCKS_MS),
            max_delivery_count=self._random.choice(MAX_DELIVERY_COUNTS),
            default_time_to_live_ms=self._random.choice(TTLS_MS),
            duplicate_window_ms=self._random.choice(WINDOWS_MS),
            dead_lettering_on_expiration=self._random.random() < 0.5,
        )
        self._model.update_description(description)
        self._simulation.namespace.update_queue(PATH, description, updated_ms=0)

    def disable(self) -> None:
        """Disable receiving for a moment: all receivers and browsers must be detached."""
        simulation, description = self._simulation, self._model.description
        simulation.is_disabled = True
        simulation.namespace.update_queue(PATH, replace(description, status="ReceiveDisabled"), updated_ms=0)
        simulation.is_disabled = False
        if self._model.receivers or self._model.session_holds or simulation.browsing_links:
            raise Violation(f"there are still {self._model.receivers}")
        simulation.namespace.update_queue(PATH, description, updated_ms=0)

    def hang(self) -> None:
        self._simulation.store.hang()

    def resume(self) -> None:
        if self._simulation.store.is_hanging:
            self._simulation.store.resume()

    def fail_sync(self) -> None:
        self._simulation.store.fail_next_sync("input/output error", self._random)

    def reopen(self) -> None:
        if self._simulation.is_closed:
            self._simulation.reopen()

    def crash(self) -> None:
        self._simulation.crash()

    def restart(self) -> None:
        """Restart the process when it is idle."""
        self._simulation.run_until_idle()
        if self._simulation.is_working:
            self._simulation.crash()
