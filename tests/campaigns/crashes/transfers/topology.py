"""Entities of a run, the forwarding between them, and the destinations where messages are received.

    before -> head -> middle -> fork (topic) -> end, end-checked, and a subscription that keeps its messages
    road -> by-session, which refuses messages without a session
    work, checked, seats and news (topic) are used in transactions; dead letters of work are forwarded to graves

Each entity has a fixed store, so that nearly every step of a chain is a transfer between stores.

Owns: the entities and the forwarding. Knows nothing of clients.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tests.support.delivery_checker.messages import State
from twinbus.model.path import SubQueue, subscription_path
from twinbus.model.queue import QueueDescription
from twinbus.model.rule import DEFAULT_RULE, RuleDescription
from twinbus.model.topic import SubscriptionDescription, TopicDescription
from twinbus.store.catalogue import QUEUE, SUBSCRIPTION, TOPIC, Catalogue

if TYPE_CHECKING:
    from pathlib import Path

LOCK_MS: Final = 5_000
"""Shortest lock, so that messages of disconnected clients are redelivered within a run."""
SESSIONS: Final = 5
MAX_DELIVERY_COUNT: Final = 1_000_000
"""A delivery count that is never reached: no message is dead-lettered for it."""


@dataclass(frozen=True, slots=True)
class Destination:
    """Address where messages are received."""

    address: str
    entity: str
    """Entity of the messages; it differs from the address for dead letters."""
    state: State = State.ACTIVE
    has_sessions: bool = False


def _subscription(name: str) -> str:
    return subscription_path(*name.split("/"))


QUEUES: Final[dict[str, tuple[int, dict[str, object]]]] = {
    "before": (3, {"forward_to": "head"}),
    "head": (0, {"forward_to": "middle"}),
    "middle": (1, {"forward_to": "fork"}),
    "end": (3, {}),
    "end-checked": (0, {"requires_duplicate_detection": True}),
    "road": (2, {"forward_to": "by-session"}),
    "by-session": (0, {"requires_session": True}),
    "work": (0, {"forward_dead_lettered_to": "graves"}),
    "graves": (1, {}),
    "checked": (1, {"requires_duplicate_detection": True}),
    "seats": (2, {"requires_session": True}),
}
"""Store and properties of each queue."""
TOPICS: Final[dict[str, int]] = {"fork": 2, "news": 3}
SUBSCRIPTIONS: Final[dict[str, dict[str, object]]] = {
    "fork/on": {"forward_to": "end"},
    "fork/checked": {"forward_to": "end-checked"},
    "fork/left": {},
    "news/a": {},
    "news/b": {},
    "news/c": {"requires_session": True},
}
NEWS: Final = tuple(_subscription(f"news/{name}") for name in "abc")
CHAIN_END: Final = ("end", "end-checked", _subscription("fork/left"))
CHAIN: Final = ("before", "head", "middle", "fork")
"""Messages sent to each of these arrive at all of CHAIN_END, after four, three, two or one steps."""
REFUSED: Final = "road" + SubQueue.TRANSFER_DEAD_LETTER.value
FORWARDING_ENTITIES: Final = (
    *("before", "head", "middle", "road"),
    *(_subscription("fork/on"), _subscription("fork/checked")),
    "work" + SubQueue.DEAD_LETTER.value,
)
"""Entities that forward their messages, only to an entity later in this list or to a destination."""
ENTRY_POINTS: Final = ("work", "checked", "seats", "news", "road", *CHAIN)
"""Entities that clients send to."""
TRANSACTION_ENTITIES: Final = ("work", "checked", "seats", "news", *NEWS)
"""Entities used in transactions: clients only send to topics, and only receive from subscriptions."""
DUPLICATE_DETECTING: Final = frozenset({"checked"})
"""Entities with duplicate detection."""
WITH_SESSIONS: Final = frozenset({"seats", "by-session", NEWS[2]})

DESTINATIONS: Final = {
    place.address: place
    for place in (
        *(
            Destination(home, home, has_sessions=home in WITH_SESSIONS)
            for home in ("work", "checked", "seats", *NEWS, *CHAIN_END)
        ),
        Destination("by-session", "by-session", has_sessions=True),
        Destination(REFUSED, REFUSED),
        Destination("graves", "work", State.DEAD_LETTERED),
        *(
            Destination(home + SubQueue.DEAD_LETTER.value, home, State.DEAD_LETTERED)
            for home in ("checked", "seats", *NEWS)
        ),
    )
}
DEAD_LETTERING: Final = frozenset(place.entity for place in DESTINATIONS.values() if place.state is State.DEAD_LETTERED)
"""Entities whose messages can be dead-lettered."""


def destinations_of(entry: str, session: str | None) -> tuple[str, ...]:
    """Return the destinations of a message; it arrives once at each of them."""
    if entry in CHAIN:
        return CHAIN_END
    if entry == "news":
        return NEWS
    if entry == "road":
        return (REFUSED,) if session is None else ("by-session",)
    return (entry,)


def create_entities(catalogue_file: Path) -> None:
    """Create all entities in the catalogue of a stopped server."""
    catalogue, now_ms = Catalogue(catalogue_file), time.time_ns() // 1_000_000
    rule = RuleDescription(name=DEFAULT_RULE, created_ms=now_ms)
    common: dict[str, object] = {"lock_duration_ms": LOCK_MS, "max_delivery_count": MAX_DELIVERY_COUNT}
    for name, (store, properties) in QUEUES.items():
        queue = QueueDescription(**common | properties)  # type: ignore[arg-type]  # field values by name
        catalogue.create(QUEUE, name, queue, [store], now_ms)
    for name, store in TOPICS.items():
        catalogue.create(TOPIC, name, TopicDescription(), [store], now_ms)
    for name, properties in SUBSCRIPTIONS.items():
        subscription = SubscriptionDescription(**common | properties)  # type: ignore[arg-type]  # as above
        store = TOPICS[name.split("/")[0]]
        catalogue.create(SUBSCRIPTION, _subscription(name), subscription, [store], now_ms, [rule])
    catalogue.close()
