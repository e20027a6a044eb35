"""Numbers of a pair for Prometheus.

    pairing.metrics()   # then they are in prometheus_client's default registry

Owns: what is counted, under which names and labels. Counting is adding to a number; what a scrape gets is put together
when it is asked for, and asks nobody: what lies in the backlog is what was seen at the last look (`alarms`). Several
pairs of a program share a registry: the label `primary` tells them apart.
"""

from __future__ import annotations

import weakref
from collections import Counter
from typing import TYPE_CHECKING, Final

from twinbus.client.events import SendFailed, Sent
from twinbus.client.pairing.failover.entity_health import EntityState
from twinbus.client.pairing.observe.alarms import AlarmKind
from twinbus.client.pairing.observe.events import EventKind
from twinbus.model.errors import ServiceBusError
from twinbus.model.times import milliseconds_of

try:
    from prometheus_client import REGISTRY
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector
except ImportError as error:
    raise ImportError("metrics are made with prometheus-client: pip install twinbus[metrics]") from error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from prometheus_client import CollectorRegistry

    from twinbus.client.pairing.observe.events import PairingEvent
    from twinbus.client.pairing.pairing import Pairing

MAX_ENTITY_LABELS: Final = 1_000
"""Entities with a label of their own; the others are counted together."""
OTHERS: Final = "(others)"
_COUNTERS: Final = {
    "sent": ("Messages that the primary took", ("entity",)),
    "parked": ("Messages that were parked in a backlog queue", ("entity",)),
    "spooled": ("Messages that went to the local disk", ("entity",)),
    "failed": ("Messages whose send was given up", ("entity", "failure")),
    "pings": ("Pings", ("entity", "outcome")),
    "moved": ("Parked messages that this client's syphon brought back", ("backlog_queue",)),
    "deferred": ("Parked messages that the syphon put aside", ("backlog_queue",)),
    "dead_lettered": ("Parked messages that cannot be delivered", ("backlog_queue",)),
}
_BY_ENTITY: Final = {EventKind.PARKED: "parked", EventKind.SPOOLED: "spooled"}
_BY_QUEUE: Final = {
    EventKind.MOVED: "moved",
    EventKind.DEFERRED: "deferred",
    EventKind.DEAD_LETTERED: "dead_lettered",
}
_EVENT_KINDS: Final = frozenset({*_BY_ENTITY, *_BY_QUEUE, EventKind.PINGED})


class Metrics:
    """Of one pairing."""

    def __init__(self, pairing: Pairing) -> None:
        """Everything is 0."""
        self.primary = pairing.primary_name
        self.counts: dict[str, Counter[tuple[str, ...]]] = {name: Counter() for name in _COUNTERS}
        """By the values of the labels."""
        self.registry: CollectorRegistry | None = None
        """Where they are scraped; None: in the default one."""
        self._pairing = pairing
        self._labels: set[str] = set()
        self._collector: _PairsCollector | None = None
        self._unsubscribes: list[Callable[[], None]] = []

    def register(self, registry: CollectorRegistry | None) -> None:
        """Count from now on, and have the numbers scraped."""
        self.registry = registry
        self._collector = _collector_of(REGISTRY if registry is None else registry)
        self._collector.pairs.append(self)
        self._unsubscribes = [
            self._pairing.primary.events.listen(self.on_event, {Sent, SendFailed}),
            self._pairing.event_publisher.listen(self.on_event, _EVENT_KINDS),
        ]

    def unregister(self) -> None:
        """Nothing more is counted."""
        if self._collector is not None:
            self._collector.pairs.remove(self)
            self._collector = None
        for end in self._unsubscribes:
            end()

    # --- counting -----------------------------------------------------------------------------------------------------

    def on_event(self, event: Sent | SendFailed | PairingEvent) -> None:
        """Add to a number. A send fails for a cause of one of the three classes, or is cancelled by the application."""
        if isinstance(event, Sent):
            self.counts["sent"][self._label(event.path),] += len(event.messages)
        elif isinstance(event, SendFailed):
            failure = event.error.failure_class.value if isinstance(event.error, ServiceBusError) else "cancelled"
            self.counts["failed"][self._label(event.path), failure] += len(event.messages)
        elif event.kind is EventKind.PINGED:
            outcome = "succeeded" if event.reason is None else "failed"
            self.counts["pings"][self._label(event.path), outcome] += 1
        elif event.kind in _BY_ENTITY:
            self.counts[_BY_ENTITY[event.kind]][self._label(event.path),] += event.count
        else:
            self.counts[_BY_QUEUE[event.kind]][event.backlog_queue or OTHERS,] += event.count

    def _label(self, path: str | None) -> str:
        if path is None:
            return OTHERS
        if path not in self._labels:
            if len(self._labels) >= MAX_ENTITY_LABELS:
                return OTHERS
            self._labels.add(path)
        return path

    # --- what is so now -----------------------------------------------------------------------------------------------

    def entities_by_state(self) -> Counter[EntityState]:
        """How many entities are in which state."""
        return Counter(health.state for health in self._pairing.entity_healths)

    @property
    def fragments_down(self) -> int:
        """How many fragments of entities are held to be down by themselves."""
        return sum(len(health.fragment_outages.down) for health in self._pairing.entity_healths)

    def alarms_by_kind(self) -> Counter[AlarmKind]:
        """How many alarms of which kind there are."""
        return Counter(alarm.kind for alarm in self._pairing.observers.alarms.raised)

    def backlog(self) -> Iterator[tuple[str, int | None, float | None]]:
        """Of each backlog queue at the last look: how many messages, and for how long the oldest is there (seconds)."""
        now_ms = self._pairing.primary.settings.clock.wall_ms()
        for path, found in list(self._pairing.observers.alarms.contents.items()):
            if found.oldest is not None:
                age_s: float | None = (now_ms - milliseconds_of(found.oldest)) / 1000
            else:
                age_s = 0.0 if found.parked == 0 else None
            yield path, found.parked, age_s

    @property
    def is_protected(self) -> bool:
        """Backlog queues are there."""
        return self._pairing.is_protected


class _PairsCollector(Collector):
    """All pairs of one registry. Those that have one primary are told together: a series is there once."""

    def __init__(self) -> None:
        self.pairs: list[Metrics] = []

    def collect(self) -> Iterable[Metric]:
        """What a scrape gets. It may be another thread's: what is counted meanwhile is in the next one."""
        pairs = list(self.pairs)
        for name, (text, labels) in _COUNTERS.items():
            family = CounterMetricFamily(f"twinbus_pairing_{name}", text, labels=("primary", *labels))
            counted: Counter[tuple[str, ...]] = Counter()
            for pair in pairs:
                for values, count in list(pair.counts[name].items()):
                    counted[pair.primary, *values] += count
            for values, count in counted.items():
                family.add_metric(values, count)
            yield family
        yield from _state_metrics(pairs)
        yield from _backlog_metrics(pairs)


def _state_metrics(pairs: Sequence[Metrics]) -> Iterator[Metric]:
    entities = GaugeMetricFamily("twinbus_pairing_entities", "Entities by state", labels=("primary", "state"))
    alarms = GaugeMetricFamily("twinbus_pairing_alarms", "Alarms by kind", labels=("primary", "kind"))
    fragments = GaugeMetricFamily("twinbus_pairing_fragments_down", "Fragments held to be down", labels=("primary",))
    protected = GaugeMetricFamily("twinbus_pairing_protected", "1: backlog queues are there", labels=("primary",))
    for primary in dict.fromkeys(pair.primary for pair in pairs):
        mine = [pair for pair in pairs if pair.primary == primary]
        states, raised = (
            sum([one.entities_by_state() for one in mine], Counter()),
            sum([one.alarms_by_kind() for one in mine], Counter()),
        )
        for state in EntityState:
            entities.add_metric((primary, state.value), states[state])
        for kind in AlarmKind:
            alarms.add_metric((primary, kind.name.lower()), raised[kind])
        fragments.add_metric((primary,), sum(one.fragments_down for one in mine))
        protected.add_metric((primary,), all(one.is_protected for one in mine))
    yield from (entities, fragments, alarms, protected)


def _backlog_metrics(pairs: Sequence[Metrics]) -> Iterator[Metric]:
    labels = ("primary", "backlog_queue")
    parked = GaugeMetricFamily("twinbus_pairing_parked_messages", "Messages at the last look", labels=labels)
    age = GaugeMetricFamily(
        "twinbus_pairing_oldest_parked_age_seconds", "For how long the oldest message is parked", labels=labels
    )
    counts: dict[tuple[str, str], int] = {}
    ages_s: dict[tuple[str, str], float] = {}
    for pair in pairs:
        for path, count, age_s in pair.backlog():
            if count is not None:
                counts[pair.primary, path] = max(count, counts.get((pair.primary, path), 0))
            if age_s is not None:
                ages_s[pair.primary, path] = max(age_s, ages_s.get((pair.primary, path), 0.0))
    for values, count in counts.items():
        parked.add_metric(values, count)
    for values, age_s in ages_s.items():
        age.add_metric(values, age_s)
    yield from (parked, age)


_COLLECTORS: Final[weakref.WeakKeyDictionary[CollectorRegistry, _PairsCollector]] = weakref.WeakKeyDictionary()


def _collector_of(registry: CollectorRegistry) -> _PairsCollector:
    collector = _COLLECTORS.get(registry)
    if collector is None:
        collector = _COLLECTORS[registry] = _PairsCollector()
        registry.register(collector)
    return collector
