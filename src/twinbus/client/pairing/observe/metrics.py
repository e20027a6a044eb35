"""Prometheus metrics of a pair.

    pairing.metrics()   # adds them to prometheus_client's default registry

Owns: the metrics, their names and their labels. An event only increments a counter. A scrape collects the current
values and sends no request: the contents of the backlog are as of the last check (`alarms`). Several pairs of a program
can share a registry: the label `primary` distinguishes them.
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
    raise ImportError("metrics need prometheus-client: pip install twinbus[metrics]") from error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from prometheus_client import CollectorRegistry

    from twinbus.client.pairing.observe.events import PairingEvent
    from twinbus.client.pairing.pairing import Pairing

MAX_ENTITY_LABELS: Final = 1_000
"""The number of entities with their own label; all other entities share one label."""
OTHERS: Final = "(others)"
_COUNTERS: Final = {
    "sent": ("Messages that the primary accepted", ("entity",)),
    "parked": ("Messages that were parked in a backlog queue", ("entity",)),
    "spooled": ("Messages that were stored in the local spool", ("entity",)),
    "failed": ("Messages whose send failed or was cancelled", ("entity", "failure")),
    "pings": ("Pings of the primary", ("entity", "outcome")),
    "moved": ("Parked messages that this client's syphon moved to their destinations", ("backlog_queue",)),
    "deferred": ("Parked messages that the syphon deferred", ("backlog_queue",)),
    "dead_lettered": ("Parked messages that were dead-lettered", ("backlog_queue",)),
}
_BY_ENTITY: Final = {EventKind.PARKED: "parked", EventKind.SPOOLED: "spooled"}
_BY_QUEUE: Final = {
    EventKind.MOVED: "moved",
    EventKind.DEFERRED: "deferred",
    EventKind.DEAD_LETTERED: "dead_lettered",
}
_EVENT_KINDS: Final = frozenset({*_BY_ENTITY, *_BY_QUEUE, EventKind.PINGED})


class Metrics:
    """The metrics of one pairing."""

    def __init__(self, pairing: Pairing) -> None:
        """Create metrics with all counters at 0."""
        self.primary = pairing.primary_name
        self.counts: dict[str, Counter[tuple[str, ...]]] = {name: Counter() for name in _COUNTERS}
        """The counters, by metric name and label values."""
        self.registry: CollectorRegistry | None = None
        """The registry that exports the metrics, or None for the default registry."""
        self._pairing = pairing
        self._labels: set[str] = set()
        self._collector: _PairsCollector | None = None
        self._unsubscribes: list[Callable[[], None]] = []

    def register(self, registry: CollectorRegistry | None) -> None:
        """Start counting, and add the metrics to a registry."""
        self.registry = registry
        self._collector = _collector_of(REGISTRY if registry is None else registry)
        self._collector.pairs.append(self)
        self._unsubscribes = [
            self._pairing.primary.events.listen(self.on_event, {Sent, SendFailed}),
            self._pairing.event_publisher.listen(self.on_event, _EVENT_KINDS),
        ]

    def unregister(self) -> None:
        """Stop counting, and remove the metrics from the registry."""
        if self._collector is not None:
            self._collector.pairs.remove(self)
            self._collector = None
        for unsubscribe in self._unsubscribes:
            unsubscribe()

    # --- counting -----------------------------------------------------------------------------------------------------

    def on_event(self, event: Sent | SendFailed | PairingEvent) -> None:
        """Increment the counter for an event.

        The label of a failed send is one of the three failure classes, or `cancelled` if the application cancelled the
        send.
        """
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

    # --- current state ------------------------------------------------------------------------------------------------

    def entities_by_state(self) -> Counter[EntityState]:
        """Return the number of entities in each state."""
        return Counter(health.state for health in self._pairing.entity_healths)

    @property
    def fragments_down(self) -> int:
        """The number of fragments that are marked down."""
        return sum(len(health.fragment_outages.down) for health in self._pairing.entity_healths)

    def alarms_by_kind(self) -> Counter[AlarmKind]:
        """Return the number of alarms of each kind."""
        return Counter(alarm.kind for alarm in self._pairing.observers.alarms.raised)

    def backlog(self) -> Iterator[tuple[str, int | None, float | None]]:
        """Yield each queue's path, message count, and age of its oldest message in seconds, as of the last check."""
        now_ms = self._pairing.primary.settings.clock.wall_ms()
        for path, contents in list(self._pairing.observers.alarms.contents.items()):
            if contents.oldest is not None:
                age_s: float | None = (now_ms - milliseconds_of(contents.oldest)) / 1000
            else:
                age_s = 0.0 if contents.parked == 0 else None
            yield path, contents.parked, age_s

    @property
    def is_protected(self) -> bool:
        """Whether the backlog queues exist."""
        return self._pairing.is_protected


class _PairsCollector(Collector):
    """The collector of all pairs in one registry. Pairs with the same primary are combined into one series."""

    def __init__(self) -> None:
        self.pairs: list[Metrics] = []

    def collect(self) -> Iterable[Metric]:
        """Return the metrics for a scrape, which may run in another thread while events are counted."""
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
    fragments = GaugeMetricFamily("twinbus_pairing_fragments_down", "Fragments marked down", labels=("primary",))
    protected = GaugeMetricFamily("twinbus_pairing_protected", "1 if the backlog queues exist", labels=("primary",))
    for primary in dict.fromkeys(pair.primary for pair in pairs):
        same_primary = [pair for pair in pairs if pair.primary == primary]
        states, raised = (
            sum([metrics.entities_by_state() for metrics in same_primary], Counter()),
            sum([metrics.alarms_by_kind() for metrics in same_primary], Counter()),
        )
        for state in EntityState:
            entities.add_metric((primary, state.value), states[state])
        for kind in AlarmKind:
            alarms.add_metric((primary, kind.name.lower()), raised[kind])
        fragments.add_metric((primary,), sum(metrics.fragments_down for metrics in same_primary))
        protected.add_metric((primary,), all(metrics.is_protected for metrics in same_primary))
    yield from (entities, fragments, alarms, protected)


def _backlog_metrics(pairs: Sequence[Metrics]) -> Iterator[Metric]:
    labels = ("primary", "backlog_queue")
    parked = GaugeMetricFamily("twinbus_pairing_parked_messages", "Parked messages at the last check", labels=labels)
    age = GaugeMetricFamily(
        "twinbus_pairing_oldest_parked_age_seconds", "Age of the oldest parked message", labels=labels
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
