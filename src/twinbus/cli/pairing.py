"""What the senders of an application report of their pairing, as the commands read it.

Owns: the reading of reports. They come from clients of any age, so nothing in one is taken for granted: what is not
there, or is something else, is not shown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from twinbus.cli.service import Service

HEALTHY: Final = "healthy"
_OF_STATE: Final = ("state", "why", "since", "next_ping")
_COUNTS: Final = ("count", "messages", "active", "parked")


@dataclass(frozen=True, slots=True)
class EntityState:
    """An entity of the primary, as one sender sees it."""

    path: str
    state: str
    why: str
    since: str
    next_ping: str

    @property
    def is_healthy(self) -> bool:
        """Messages go there, not to the backlog."""
        return self.state.lower() == HEALTHY


@dataclass(frozen=True, slots=True)
class Sender:
    """One client, as it has reported last."""

    client: str
    primary: str
    reported: str
    ping_interval_s: float
    entities: tuple[EntityState, ...]
    backlog: tuple[str, ...]
    """Each backlog queue, in words."""
    alarms: tuple[str, ...]

    @property
    def unhealthy(self) -> tuple[EntityState, ...]:
        """Entities whose messages are parked."""
        return tuple(entity for entity in self.entities if not entity.is_healthy)


def read_senders(service: Service, primary: str | None = None) -> list[Sender]:
    """All that have reported lately. ServiceFailed."""
    return [_sender(report) for report in read_reports(service, primary)]


def read_reports(service: Service, primary: str | None = None) -> list[dict[str, Any]]:
    """The same as they were reported."""
    reports: list[dict[str, Any]] = []
    skip: object = 0
    while isinstance(skip, int):
        page = service.ask("GET", "$pairing", primary=primary, **{"$skip": skip, "$top": 1_000})
        found = page.get("reports")
        reports += [report for report in found if isinstance(report, dict)] if isinstance(found, list) else []
        following = page.get("next")
        skip = following if isinstance(following, int) and following > skip else None
    return reports


def _sender(report: dict[str, Any]) -> Sender:
    interval = report.get("ping_interval_s")
    return Sender(
        _text(report, "client"),
        _text(report, "primary"),
        _text(report, "reported"),
        float(interval) if isinstance(interval, int | float) else 0.0,
        tuple(state for one in _items(report, "entities") if isinstance(one, dict) for state in _states(one)),
        tuple(_queue(one) for one in _items(report, "backlog")),
        tuple(_words(one) for one in _items(report, "alarms")),
    )


def _states(entity: dict[str, Any]) -> Iterator[EntityState]:
    """An entity, and those of its fragments that are down by themselves: each like an entity of its own."""
    yield EntityState(*(_text(entity, name) for name in ("path", *_OF_STATE)))
    for one in _items(entity, "fragments_down"):
        if isinstance(one, dict):
            path = f"{_text(entity, 'path')}, fragment {_text(one, 'fragment')}"
            yield EntityState(path, *(_text({"state": "down"} | one, name) for name in _OF_STATE))


def _queue(found: object) -> str:
    if not isinstance(found, dict):
        return _words(found)
    name = _text(found, "path") or _text(found, "queue")
    count = next((found[key] for key in _COUNTS if isinstance(found.get(key), int)), None)
    return _words(found) if not name or count is None else f"{name}: {count:,}"


def _items(report: dict[str, Any], name: str) -> Iterator[object]:
    found = report.get(name)
    return iter(found if isinstance(found, list) else ())


def _text(found: dict[str, Any], name: str) -> str:
    value = found.get(name)
    return "" if value is None else str(value)


def _words(found: object) -> str:
    if isinstance(found, dict):
        return ", ".join(f"{name}: {value}" for name, value in found.items())
    return str(found)
