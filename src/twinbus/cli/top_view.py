"""Lines of `twinbus top`, for a terminal with 80 or more columns.

Owns the layout: a headline, the messages of the namespace, alerts and pairs, and the busiest entities.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from twinbus.cli.output import DEFAULT_COLUMNS, format_table, plural, printable
from twinbus.cli.units import format_duration, format_size

if TYPE_CHECKING:
    from twinbus.model.status import EntityStatus, Overview, PairingStatus

MAX_ALERTS: Final = 3
MAX_PAIRS: Final = 2
_SMALL_RATE: Final = 10.0
_COLUMNS: Final = ("path", "active", "dead", "locked", "in/s", "out/s", "done/s", "oldest")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Figures of a namespace at one time."""

    overview: Overview
    entities: list[EntityStatus]
    pairings: list[PairingStatus]


def lines_of(snapshot: Snapshot | None, failure: str | None, width: int, height: int | None) -> list[str]:
    """Return the lines of a screen; all entities if `height` is None."""
    width = max(width, DEFAULT_COLUMNS // 2)
    lines = [f"NOT REACHABLE, retrying: {failure}"] if failure is not None else []
    if snapshot is None:
        return [line[:width] for line in lines] or ["connecting"]
    lines += _headlines(snapshot)
    room = None if height is None else max(0, height - len(lines) - 4)
    ranked = sorted(snapshot.entities, key=_rank)
    table = format_table(_COLUMNS, [_row(entity) for entity in ranked[:room]], width)
    hidden = snapshot.overview.entities
    total = hidden.queues + hidden.topics + hidden.subscriptions
    shown = len(ranked[:room])
    footer = [f"{shown:,} of {plural(total, 'entity').replace('entitys', 'entities')}"] if shown < total else []
    if height is not None:
        footer = ["  ".join([*footer, "q: quit"])]
    return [line[:width] for line in (*lines, "", *table, *footer)]


def _headlines(snapshot: Snapshot) -> list[str]:
    now = snapshot.overview
    up = format_duration(max(0, round((now.time - now.started).total_seconds())) * 1000)
    counts, rates = now.counts, now.rates
    workers = f"{now.workers_up} of {plural(now.workers, 'worker')}"
    states = f"{counts.active:,} active, {counts.locked:,} locked, {counts.scheduled:,} scheduled"
    lines = [
        f"{printable(now.namespace)}  twinbus {printable(now.version)}  {now.time:%Y-%m-%d %H:%M:%S} UTC  up {up}",
        f"{plural(now.connections, 'connection')}, {workers} up, {format_size(now.size_bytes)} stored",
        f"messages: {states}, {counts.dead_lettered:,} dead",
        f"per second: {_rate(rates.sent)} sent, {_rate(rates.received)} received, {_rate(rates.settled)} settled",
    ]
    lines += [
        f"pair {printable(pair.primary)}: {plural(pair.clients, 'client')}, {pair.failed_over_entities:,} entities "
        f"failed over, {pair.spooled_messages:,} messages spooled"
        for pair in snapshot.pairings[:MAX_PAIRS]
    ]
    lines += [f"{alert.severity.upper()}: {printable(alert.text)}" for alert in now.alerts[:MAX_ALERTS]]
    if len(now.alerts) > MAX_ALERTS:
        lines.append(f"and {plural(len(now.alerts) - MAX_ALERTS, 'alert')} more")
    return lines


def _rank(entity: EntityStatus) -> tuple[float, int, str]:
    """Return the place of an entity in the list: the busiest first, then the fullest."""
    rates = entity.rates
    return -(rates.sent + rates.received), -entity.counts.active, entity.path


def _row(entity: EntityStatus) -> tuple[object, ...]:
    counts, rates = entity.counts, entity.rates
    age = None if entity.oldest_active_age_s is None else format_duration(round(entity.oldest_active_age_s) * 1000)
    path = entity.path if entity.is_available else f"{entity.path} (unavailable)"
    texts = (round(rate, 1) for rate in (rates.sent, rates.received, rates.settled))
    if entity.kind == "topic":
        return (path, None, None, None, *texts, None)
    return (path, counts.active, counts.dead_lettered, counts.locked, *texts, age)


def _rate(rate: float) -> str:
    """Return a rate with one decimal if it is small."""
    return f"{rate:,.1f}" if 0 < rate < _SMALL_RATE else f"{rate:,.0f}"
