"""Random settings of a run: the queue, its limits, and the frequency of each action.

Each run leaves out some actions: faults that need many actions of one kind are found in runs with few other actions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twinbus.broker import clock
from twinbus.broker.fragment import (
    dispatcher,
    message_browser,
    record_lookup,
    removal,
    session_dispatcher,
    session_lock,
    session_state,
    settlement,
    time_index,
    window,
)
from twinbus.model.description import FOREVER_MS
from twinbus.model.limits import NamespaceLimits
from twinbus.model.queue import QueueDescription

if TYPE_CHECKING:
    from random import Random

LOCKS_MS = (5_000, 7_000, 20_000)
TTLS_MS = (1_000, 4_000, 20_000, FOREVER_MS, FOREVER_MS)
WINDOWS_MS = (20_000, 30_000, 60_000)
MAX_DELIVERY_COUNTS = (1, 2, 3, 10)

ORDINARY_WEIGHTS = {
    "send": 14,
    "schedule": 5,
    "cancel": 3,
    "ping": 0.5,
    "attach": 5,
    "detach": 3,
    "grant": 10,
    "drain": 2,
    "complete": 8,
    "abandon": 4,
    "release": 3,
    "defer": 5,
    "dead_letter": 4,
    "receive_deferred": 4,
    "renew": 3,
    "accept_named": 4,
    "accept_any": 4,
    "cancel_accept": 1,
    "renew_session": 3,
    "set_state": 2,
    "get_state": 2,
    "list_sessions": 1,
    "peek": 3,
    "peek_session": 1,
    "open_browser": 1,
    "continue_browsing": 2,
    "remove": 3,
    "remove_numbers": 2,
    "resubmit": 3,
    "wait": 10,
    "wait_long": 3,
    "jump": 1,
    "update": 1,
    "disable": 0.5,
    "restart": 0.7,
}
"""Frequencies of the actions, by their method names in `Actions`."""
FAULT_WEIGHTS = {"run_step": 60, "check": 5, "hang": 1, "resume": 4, "fail_sync": 1, "reopen": 5, "crash": 1}
"""Frequencies of further actions in runs with overlapping operations and faults."""
ALWAYS = frozenset({"run_step", "check", "send", "attach", "grant", "wait", "resume", "reopen", "accept_any"})
"""Actions that no run leaves out."""
NEVER_FREQUENT = frozenset({"run_step", "crash", "restart", "fail_sync", "hang", "wait_long", "jump"})
"""Actions that leave too little to test if they are frequent."""


def random_description(random: Random) -> QueueDescription:
    return QueueDescription(
        lock_duration_ms=random.choice(LOCKS_MS),
        max_delivery_count=random.choice(MAX_DELIVERY_COUNTS),
        requires_session=random.random() < 0.5,
        requires_duplicate_detection=random.random() < 0.35,
        dead_lettering_on_expiration=random.random() < 0.5,
        default_time_to_live_ms=random.choice(TTLS_MS),
        duplicate_window_ms=random.choice(WINDOWS_MS),
    )


class Settings:
    """Settings of one run, drawn from its seed."""

    longest_lock_ms = max(LOCKS_MS)

    def __init__(self, random: Random, *, has_faults: bool) -> None:
        self.has_faults = has_faults
        self.steps = random.randint(60, 260)
        self.description = random_description(random)
        self.limits = NamespaceLimits(max_locks=random.choice((2, 5, 12, 1_000)))
        window_messages = random.choice((2, 4, 8, 20))
        window_bytes = random.choice((400, 2_000, 100_000))
        read_ahead = random.choice((2, 4, 20))
        self.constants: list[tuple[Any, str, int]] = [
            (window, "WINDOW_MESSAGES", window_messages),
            (window, "_REFILL_BELOW", max(1, window_messages // 2)),
            (window, "WINDOW_BYTES", window_bytes),
            (dispatcher, "WINDOW_MESSAGES", window_messages),
            (dispatcher, "WINDOW_BYTES", window_bytes),
            (dispatcher, "FAIR_SHARE", random.choice((1, 3, 100))),
            (session_lock, "READ_AHEAD_MESSAGES", read_ahead),
            (session_lock, "READ_AHEAD_BYTES", window_bytes),
            (session_dispatcher, "READ_AHEAD_MESSAGES", read_ahead),
            (session_dispatcher, "READ_AHEAD_BYTES", window_bytes),
            (session_dispatcher, "MAX_FREE_SESSIONS", random.choice((1, 2, 10))),
            (session_dispatcher, "SEARCH_BATCH_SIZE", random.choice((1, 2, 10))),
            (session_dispatcher, "LOWEST_UPDATE_INTERVAL", random.choice((1, 5, 1_000))),
            (session_dispatcher, "MAX_SERVED_PER_TURN", random.choice((1, 2, 100))),
            (record_lookup, "AT_ONCE", random.choice((1, 2, 100))),
            (settlement, "READ_BATCH_SIZE", random.choice((1, 2, 500))),
            (clock, "MAX_CALLS_PER_TURN", random.choice((1, 100))),
            (time_index, "SCAN_BATCH_SIZE", random.choice((1, 2, 5, 500))),
            (time_index, "MAX_REMEMBERED_SECONDS", random.choice((2, 4, 100))),
            (settlement, "EXPIRY_BATCH_SIZE", random.choice((1, 3, 500))),
            (removal, "SCAN_BATCH_SIZE", random.choice((1, 2, 5, 500))),
            (message_browser, "READ_BATCH_SIZE", random.choice((1, 3, 500))),
            (session_state, "SCAN_BATCH_SIZE", random.choice((1, 2, 200))),
        ]
        weights = ORDINARY_WEIGHTS | FAULT_WEIGHTS if has_faults else ORDINARY_WEIGHTS
        self.weights = {
            name: 0.0 if name not in ALWAYS and random.random() < 0.3 else weight * random.choice((0.5, 1, 1, 2))
            for name, weight in weights.items()
        }
        if has_faults:
            self.weights["run_step"] *= random.choice((0.1, 0.3, 1, 1))
        for name in random.sample([name for name in weights if name not in NEVER_FREQUENT], random.choice((0, 1, 3))):
            self.weights[name] = 15.0
