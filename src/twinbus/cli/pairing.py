"""The state of a pair as the commands read it from the secondary: reports of its senders, and the backlog queues.

Owns: reading the server's answers. Reports come from clients of any version, so nothing in one is taken for granted:
fields that are missing, or of another type, are left out.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from twinbus.cli.service import Service

HEALTHY: Final = "healthy"
SUSPECT: Final = "suspect"
DOWN: Final = "down"
"""A fragment: the entity itself may be healthy."""
FRAGMENT: Final = ", fragment "
"""Between the path of an entity, which has no space, and the number of one of its fragments."""
PAGE: Final = 1_000


@dataclass(frozen=True, slots=True)
class EntityState:
    """An entity of the primary, or one fragment of it, as one sender sees it."""

    path: str
    state: str
    why: str
    since: dt.datetime | None
    next_ping: dt.datetime | None

    @property
    def entity(self) -> str:
        """The path of the entity, also of a fragment."""
        return self.path.partition(FRAGMENT)[0]

    @property
    def is_failed_over(self) -> bool:
        """Its messages are parked, or refused: they do not go to the primary."""
        return self.state not in (HEALTHY, SUSPECT)


@dataclass(frozen=True, slots=True)
class Spool:
    """What a sender has on its disk because both namespaces were down."""

    messages: int
    bytes: int
    oldest: dt.datetime | None
    refused: int
    refused_bytes: int


@dataclass(frozen=True, slots=True)
class Sender:
    """One paired client, by its last report. All times are by the secondary's clock."""

    client: str
    instance: str
    host: str
    pid: str
    primary: str
    reported: dt.datetime | None
    ping_interval_s: float
    runs_syphon: bool
    is_protected: bool
    backlog_queues: int
    healthy: int
    """How many entities are."""
    entities: tuple[EntityState, ...]
    """Those that are not."""
    entities_not_shown: int
    """Unhealthy ones that the report had no room for."""
    queues_out: dict[str, list[str]]
    """Backlog queues that this client does not use now, by the reason."""
    alarms: tuple[str, ...]
    spool: Spool | None = None
    """None: it has no spool."""

    @property
    def key(self) -> tuple[str, str, str]:
        """What tells it from all others."""
        return self.primary.lower(), self.client, self.instance


@dataclass(frozen=True, slots=True)
class Destination:
    """Parked messages for one entity."""

    path: str
    messages: int
    oldest: dt.datetime | None


@dataclass(frozen=True, slots=True)
class BacklogQueue:
    """A backlog queue of a primary."""

    path: str
    primary: str
    parked: int
    dead_lettered: int
    read: int
    """How many messages `destinations` is from."""
    oldest: dt.datetime | None
    destinations: tuple[Destination, ...]
    unknown: int
    """Messages without a valid destination."""
    is_available: bool
    error: str

    @property
    def index(self) -> int:
        """Its number in its path."""
        number = self.path.rpartition("/")[2]
        return int(number) if number.isdecimal() else 0


@dataclass(frozen=True, slots=True)
class PairStatus:
    """All that is known of one primary's pairs."""

    primary: str
    now: dt.datetime
    """By the secondary's clock."""
    senders: tuple[Sender, ...]
    queues: tuple[BacklogQueue, ...]

    @property
    def parked(self) -> int:
        """Messages in all backlog queues."""
        return sum(queue.parked for queue in self.queues)

    @property
    def dead_lettered(self) -> int:
        """Messages in the dead-letter queues of all backlog queues."""
        return sum(queue.dead_lettered for queue in self.queues)

    @property
    def oldest(self) -> dt.datetime | None:
        """When the oldest of them was parked."""
        return min((queue.oldest for queue in self.queues if queue.oldest is not None), default=None)

    @property
    def is_sample(self) -> bool:
        """There are more messages than were read: `destinations` has the least that there are."""
        return any(queue.read < queue.parked for queue in self.queues)

    @property
    def destinations(self) -> list[Destination]:
        """Parked messages of all queues by destination, those with the most messages first."""
        found: dict[str, list[Destination]] = {}
        for queue in self.queues:
            for one in queue.destinations:
                found.setdefault(one.path.lower(), []).append(one)
        merged = [_merge(some) for some in found.values()]
        return sorted(merged, key=lambda one: (-one.messages, one.path))

    def is_used(self, queue: BacklogQueue) -> bool:
        """Some sender has it in its rotation; or it is not known what they have."""
        counts = [sender.backlog_queues for sender in self.senders if sender.backlog_queues]
        return not counts or queue.index < max(counts)


@dataclass(slots=True)
class Answers:
    """What the secondary said, as it came."""

    now: str = ""
    reports: list[dict[str, Any]] = field(default_factory=list)
    queues: list[dict[str, Any]] = field(default_factory=list)


def read_all(service: Service, primary: str | None = None) -> Answers:
    """The reports of all live senders, and what is in the backlog queues. ServiceFailed."""
    answers = Answers(reports=read_reports(service, primary))
    found = service.ask("GET", "$pairing/$backlog", primary=primary)
    answers.now = _text(found, "now")
    answers.queues = _objects(found, "queues")
    return answers


def read_senders(service: Service, primary: str | None = None) -> list[Sender]:
    """All live senders. ServiceFailed."""
    return [_sender(report) for report in read_reports(service, primary)]


def read_reports(service: Service, primary: str | None = None) -> list[dict[str, Any]]:
    """Their reports as they came. ServiceFailed."""
    reports: list[dict[str, Any]] = []
    skip: object = 0
    while isinstance(skip, int):
        page = service.ask("GET", "$pairing", primary=primary, **{"$skip": skip, "$top": PAGE})
        reports += _objects(page, "reports")
        following = page.get("next")
        skip = following if isinstance(following, int) and following > skip else None
    return reports


def status_of(answers: Answers) -> list[PairStatus]:
    """The pairs, in the order of their primaries' names."""
    now = _moment(answers.now) or dt.datetime.now(dt.UTC)
    senders = [_sender(report) for report in answers.reports]
    queues = [_queue(one) for one in answers.queues]
    named = [*(sender.primary for sender in senders), *(queue.primary for queue in queues)]
    names = {name.lower(): name for name in named}
    return [
        PairStatus(
            name,
            now,
            tuple(sorted((one for one in senders if one.primary.lower() == key), key=lambda one: one.key)),
            tuple(sorted((one for one in queues if one.primary.lower() == key), key=lambda one: one.index)),
        )
        for key, name in sorted(names.items())
    ]


# --- reading ----------------------------------------------------------------------------------------------------------


def _sender(report: dict[str, Any]) -> Sender:
    reported, sent = _moment(report.get("reported")), _moment(report.get("at"))
    skew = reported - sent if reported is not None and sent is not None else dt.timedelta(0)
    return Sender(
        client=_text(report, "client"),
        instance=_text(report, "instance"),
        host=_text(report, "host"),
        pid=_text(report, "pid"),
        primary=_text(report, "primary"),
        reported=reported,
        ping_interval_s=_number(report, "ping_interval_s"),
        runs_syphon=report.get("runs_syphon") is True,
        is_protected=report.get("is_protected") is not False,
        backlog_queues=int(_number(report, "backlog_queues")),
        healthy=int(_number(report, "healthy")),
        entities=tuple(state for one in _objects(report, "entities") for state in _states(one, skew)),
        entities_not_shown=int(_number(report, "entities_not_shown")),
        queues_out=_queues_out(_objects(report, "backlog")),
        alarms=tuple(f"{_text(one, 'kind')}: {_text(one, 'reason')}" for one in _objects(report, "alarms")),
        spool=_spool(report.get("spool"), skew),
    )


def _spool(found: object, skew: dt.timedelta) -> Spool | None:
    if not isinstance(found, dict):
        return None
    count, size, refused, refused_size = (
        int(_number(found, name)) for name in ("count", "bytes", "refused", "refused_bytes")
    )
    return Spool(count, size, _moment(found.get("oldest"), skew), refused, refused_size)


def _queues_out(queues: list[dict[str, Any]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for one in queues:
        found.setdefault(_text(one, "why_out"), []).append(_text(one, "path"))
    return found


def _states(entity: dict[str, Any], skew: dt.timedelta) -> Iterator[EntityState]:
    """An entity that is not healthy, and those of its fragments that are down by themselves."""
    if _text(entity, "state") != HEALTHY:
        yield _state(_text(entity, "path"), _text(entity, "state"), entity, skew)
    for one in _objects(entity, "fragments_down"):
        yield _state(f"{_text(entity, 'path')}{FRAGMENT}{_text(one, 'fragment')}", DOWN, one, skew)


def _state(path: str, state: str, found: dict[str, Any], skew: dt.timedelta) -> EntityState:
    since, next_ping = (_moment(found.get(name), skew) for name in ("since", "next_ping"))
    return EntityState(path, state, _text(found, "why"), since, next_ping)


def _queue(found: dict[str, Any]) -> BacklogQueue:
    return BacklogQueue(
        path=_text(found, "path"),
        primary=_text(found, "primary"),
        parked=int(_number(found, "parked")),
        dead_lettered=int(_number(found, "dead_lettered")),
        read=int(_number(found, "read")),
        oldest=_moment(found.get("oldest")),
        destinations=tuple(
            Destination(_text(one, "path"), int(_number(one, "messages")), _moment(one.get("oldest")))
            for one in _objects(found, "destinations")
        ),
        unknown=int(_number(found, "unknown")),
        is_available=found.get("is_available") is not False,
        error=_text(found, "error"),
    )


def _merge(some: Iterable[Destination]) -> Destination:
    same = list(some)
    oldest = min((one.oldest for one in same if one.oldest is not None), default=None)
    return Destination(same[0].path, sum(one.messages for one in same), oldest)


def _objects(found: dict[str, Any], name: str) -> list[dict[str, Any]]:
    items = found.get(name)
    return [one for one in items if isinstance(one, dict)] if isinstance(items, list) else []


def _text(found: dict[str, Any], name: str) -> str:
    value = found.get(name)
    return "" if value is None else str(value)


def _number(found: dict[str, Any], name: str) -> float:
    value = found.get(name)
    return value if isinstance(value, int | float) else 0


def _moment(found: object, skew: dt.timedelta = dt.timedelta(0)) -> dt.datetime | None:
    """A time by a clock that is behind ours by `skew`; None if it is no time, or none that there can be."""
    try:
        moment = dt.datetime.fromisoformat(found) + skew if isinstance(found, str) else None
    except (ValueError, OverflowError):
        return None
    return moment if moment is None or moment.tzinfo is not None else moment.replace(tzinfo=dt.UTC)
