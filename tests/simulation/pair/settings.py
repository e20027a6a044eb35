"""Random settings of a run: the pair's options, its entities, its traffic and its outages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from random import Random

DAY_MS: Final = 86_400_000
_DEAD_LETTERING_ON_EXPIRY: Final[dict[str, Any]] = {"dead_lettering_on_expiration": True}
"""Messages that expire at their destination are dead-lettered, so that the checker finds them."""
_DUPLICATE_DETECTION: Final[dict[str, Any]] = {"requires_duplicate_detection": True, "duplicate_window_ms": DAY_MS}


@dataclass(frozen=True)
class EntityPlan:
    """A queue, or a topic with one subscription, in the primary."""

    path: str
    sessions: tuple[str | None, ...]
    """Sessions of its messages, one for each flow, so that the order of a session is the order of a flow."""
    description: dict[str, Any]
    is_topic: bool = False

    @property
    def receive_path(self) -> str:
        """Path from which its messages are received."""
        return f"{self.path}/Subscriptions/all" if self.is_topic else self.path

    @property
    def requires_session(self) -> bool:
        return bool(self.description.get("requires_session"))

    @property
    def detects_duplicates(self) -> bool:
        return bool(self.description.get("requires_duplicate_detection"))

    @property
    def is_partitioned(self) -> bool:
        return bool(self.description.get("enable_partitioning"))

    @property
    def max_message_kb(self) -> int:
        return int(self.description.get("max_message_kb", 256))


ENTITIES: Final = (
    EntityPlan("orders", ("o1", None), _DEAD_LETTERING_ON_EXPIRY),
    EntityPlan("carts", ("c1", "c2"), {**_DEAD_LETTERING_ON_EXPIRY, "requires_session": True}),
    EntityPlan("once", ("p1", None), {**_DEAD_LETTERING_ON_EXPIRY, **_DUPLICATE_DETECTION}),
    EntityPlan("small", (None, "s1"), {**_DEAD_LETTERING_ON_EXPIRY, "max_message_kb": 2}),
    EntityPlan("news", ("n1",), {}, is_topic=True),
    EntityPlan("many", ("m1", "m2", None), {**_DEAD_LETTERING_ON_EXPIRY, "enable_partitioning": True}),
    EntityPlan(
        "many-once", ("d1", None), {**_DEAD_LETTERING_ON_EXPIRY, **_DUPLICATE_DETECTION, "enable_partitioning": True}
    ),
)
_PARTITIONED_SHARE: Final = 0.3


def plan_of(path: str) -> EntityPlan:
    """Return the entity with a path."""
    return next(plan for plan in ENTITIES if plan.path == path)


class Settings:
    """Settings of one run."""

    def __init__(self, random: Random) -> None:
        self.outages = random.randint(16, 32)
        self.stores = random.choice((1, 1, 2))
        self.latency_s = random.choice((0.0005, 0.002, 0.01))
        plain = [plan for plan in ENTITIES if not plan.is_partitioned]
        self.entities = random.sample(plain, 2)
        if random.random() < _PARTITIONED_SHARE:
            self.entities[1] = random.choice([plan for plan in ENTITIES if plan.is_partitioned])
        self.operation_timeout_s = random.choice((5.0, 10.0, 20.0, 60.0))
        self.failover_interval_s = random.choice((0.0, 0.0, 2.0, 15.0))
        self.has_spool = random.random() < 0.6
        self.deducts_parked_time = random.random() < 0.3
        self.holds_sends = random.random() < 0.4
        self.pair: dict[str, Any] = {
            "failover_interval": self.failover_interval_s,
            "ping_primary_interval": random.choice((1.0, 5.0, 20.0)),
            "primary_attempt_timeout": random.choice((None, None, 2.0)),
            "hold_during_failover_interval": self.holds_sends,
            "park_on_fragment_outage": random.random() < 0.5,
            "deduct_parked_time": self.deducts_parked_time,
            "backlog_queue_count": random.choice((1, 2, 3)),
            "backlog_cool_down": random.choice((1.0, 30.0)),
            "syphon_poll": random.choice((20.0, 900.0)),
        }
        self.disk_s = random.choice((0.02, 0.02, 0.5))
        """Maximum duration of a disk operation of the spool."""
        self.spool_max_bytes = random.choice((1 << 30, 1 << 30, 200_000))
        self.mean_pause_s = random.choice((3.0, 10.0, 30.0))
        """Mean time between two sends of a flow."""
        self.mean_gap_s = random.choice((2.0, 6.0))
        """Mean time between the beginnings of two outages."""
        self.most_at_once = random.choice((1, 2, 3, 4))
        self.withholds = random.random() < 0.6
        """Whether the secondary can withhold messages; otherwise pumps defer them, as on Azure."""
        self.only_fault_kinds: frozenset[str] = frozenset()
        """Kinds of outages to inject (default: all)."""
