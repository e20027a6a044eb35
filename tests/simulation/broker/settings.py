"""Random settings of a run: sizes, limits, and the frequency of each action.

Each run leaves out some actions: faults that need many actions of one kind are found in runs with few other actions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twinbus.broker.entities import part
from twinbus.broker.fragment import dispatcher, settlement, window
from twinbus.model.limits import NamespaceLimits

if TYPE_CHECKING:
    from random import Random

WEIGHTS = {
    "run_steps": 60,
    "check": 4,
    "send": 14,
    "send_to_deleted": 1,
    "attach": 4,
    "detach": 3,
    "detach_all": 2,
    "grant": 12,
    "drain": 3,
    "block": 1,
    "unblock": 2,
    "complete": 10,
    "abandon": 5,
    "release": 4,
    "dead_letter": 3,
    "renew": 3,
    "peek": 4,
    "wait": 8,
    "wait_long": 2,
    "set_wall_clock": 1,
    "hang": 1,
    "resume": 3,
    "fail_sync": 1,
    "reopen": 4,
    "crash": 1,
    "create": 1,
    "delete": 1,
    "update": 1,
    "fill_disk": 0.5,
}
"""Frequencies of the actions, by their method names in `Actions`."""
ALWAYS = frozenset({"run_steps", "check", "send", "attach", "grant", "wait", "unblock", "resume", "reopen", "create"})
"""Actions that no run leaves out."""


class Settings:
    """Settings of one run, drawn from its seed."""

    def __init__(self, random: Random) -> None:
        self.steps = random.randint(60, 260)
        self.stores = random.choice((1, 1, 2, 3))
        self.queues = random.choice((1, 1, 2, 4))
        self.timeout_s = 10.0
        self.max_padding = random.choice((0, 30, 200))
        self.limits = NamespaceLimits(
            max_locks=random.choice((2, 5, 12, 1_000)), max_pending_bytes=random.choice((300, 10_000, 10_000_000))
        )
        window_messages = random.choice((2, 4, 8, 20))
        window_bytes = random.choice((400, 2_000, 100_000))
        self.constants: list[tuple[Any, str, int]] = [
            (window, "WINDOW_MESSAGES", window_messages),
            (window, "_REFILL_BELOW", max(1, window_messages // 2)),
            (window, "WINDOW_BYTES", window_bytes),
            (dispatcher, "WINDOW_MESSAGES", window_messages),
            (dispatcher, "WINDOW_BYTES", window_bytes),
            (settlement, "EXPIRY_BATCH_SIZE", random.choice((1, 3, 500))),
            (dispatcher, "FAIR_SHARE", random.choice((1, 3, 100))),
            (part, "MEGABYTE", random.choice((4, 1_048_576))),
        ]
        self.weights = {
            name: 0.0 if name not in ALWAYS and random.random() < 0.35 else weight * random.choice((0.5, 1, 1, 2))
            for name, weight in WEIGHTS.items()
        }
