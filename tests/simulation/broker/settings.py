"""What differs from run to run: sizes, limits, and how often each thing is done.

Some things are not done at all in some runs: what needs many steps of one kind is found in runs that do little else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twinbus.broker.entities import part
from twinbus.broker.fragment import dispatcher, settlement, window
from twinbus.model.limits import NamespaceLimits

if TYPE_CHECKING:
    from random import Random

WEIGHTS = {
    "work": 60,
    "look": 4,
    "send": 14,
    "send_to_former": 1,
    "come": 4,
    "leave": 3,
    "desert": 2,
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
    "jump": 1,
    "hang": 1,
    "go_on": 3,
    "fail": 1,
    "reopen": 4,
    "crash": 1,
    "create": 1,
    "delete": 1,
    "describe": 1,
    "refuse": 0.5,
}
ALWAYS = frozenset({"work", "look", "send", "come", "grant", "wait", "unblock", "go_on", "reopen", "create"})


class Settings:
    """One run's numbers, drawn from its seed."""

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
