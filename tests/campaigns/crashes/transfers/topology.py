"""The entities of a run, what becomes of a message that is sent to one of them, and where that can be received.

    before -> head -> middle -> fork (topic) -> end, end-checked, and a subscription that keeps its messages
    road -> by-session, which refuses what has no session
    work, checked, seats and news (topic) are those that transactions are made on; work's dead letters go to graves

Each lies in the store that is named here, so that nearly every step of a chain is one from store to store.

Owns: the entities and their ways. Knows nothing of clients.
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
"""As short as can be: what a client that vanished had received is there again within a run."""
SESSIONS: Final = 5
MAX_DELIVERY_COUNT: Final = 1_000_000
"""Whatever happens to a message, it is not dead-lettered for it."""


@dataclass(frozen=True, slots=True)
class Destination:
    """Somewhere that messages are received from."""

    address: str
    entity: str
    """Where they arrived; this is another place if it is one for the dead letters of that."""
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
"""In which store each lies, and what it is told to be."""
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
"""From each of these messages come to all of END, over four, three, two or one steps."""
REFUSED: Final = "road" + SubQueue.TRANSFER_DEAD_LETTER.value
FORWARDING_ENTITIES: Final = (
    *("before", "head", "middle", "road"),
    *(_subscription("fork/on"), _subscription("fork/checked")),
    "work" + SubQueue.DEAD_LETTER.value,
)
"""What lies here goes on by itself; no further than to one that is named after it, or to a place."""
ENTRY_POINTS: Final = ("work", "checked", "seats", "news", "road", *CHAIN)
"""What is sent to."""
TRANSACTION_ENTITIES: Final = ("work", "checked", "seats", "news", *NEWS)
"""What transactions are made on: a topic is only sent to, and a subscription only received from."""
DUPLICATE_DETECTING: Final = frozenset({"checked"})
"""Where a message that is sent again is known."""
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
"""Where messages can be dead-lettered."""


def destinations_of(entry: str, session: str | None) -> tuple[str, ...]:
    """Where a message that is sent to an entity arrives: in each of these once."""
    if entry in CHAIN:
        return CHAIN_END
    if entry == "news":
        return NEWS
    if entry == "road":
        return (REFUSED,) if session is None else ("by-session",)
    return (entry,)


def create_entities(catalogue_file: Path) -> None:
    """Make all entities, in the catalogue of a server that does not run."""
    catalogue, now_ms = Catalogue(catalogue_file), time.time_ns() // 1_000_000
    rule = RuleDescription(name=DEFAULT_RULE, created_ms=now_ms)
    locking: dict[str, object] = {"lock_duration_ms": LOCK_MS, "max_delivery_count": MAX_DELIVERY_COUNT}
    for name, (store, told) in QUEUES.items():
        queue = QueueDescription(**locking | told)  # type: ignore[arg-type]  # its fields, by their names
        catalogue.create(QUEUE, name, queue, [store], now_ms)
    for name, store in TOPICS.items():
        catalogue.create(TOPIC, name, TopicDescription(), [store], now_ms)
    for name, told in SUBSCRIPTIONS.items():
        subscription = SubscriptionDescription(**locking | told)  # type: ignore[arg-type]  # as above
        store = TOPICS[name.split("/")[0]]
        catalogue.create(SUBSCRIPTION, _subscription(name), subscription, [store], now_ms, [rule])
    catalogue.close()
