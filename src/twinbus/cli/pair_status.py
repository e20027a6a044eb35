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

    from twinbus.cli.admin_client import AdminClient

HEALTHY: Final = "healthy"
SUSPECT: Final = "suspect"
DOWN: Final = "down"
"""A fragment: the entity itself may be healthy."""
FRAGMENT_SEPARATOR: Final = ", fragment "
"""Between the path of an entity, which has no space, and the number of one of its fragments."""
PAGE_SIZE: Final = 1_000


@dataclass(frozen=True, slots=True)
class ReportedEntity:
    """An entity of the primary, or one fragment of it, as one sender sees it."""

    path: str
    state: str
    reason: str
    since: dt.datetime | None
    next_ping: dt.datetime | None

    @property
    def entity_path(self) -> str:
        """The path of the entity, also of a fragment."""
        return self.path.partition(FRAGMENT_SEPARATOR)[0]

    @property
    def is_failed_over(self) -> bool:
        """Its messages are parked, or refused: they do not go to the primary."""
        return self.state not in (HEALTHY, SUSPECT)


@dataclass(frozen=True, slots=True)
class SpoolReport:
    """What a sender has on its disk because both namespaces were down."""

    messages: int
    bytes: int
    oldest: dt.datetime | None
    refused: int
    refused_bytes: int


@dataclass(frozen=True, slots=True)
class SenderReport:
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
    healthy_count: int
    """How many entities are."""
    unhealthy_entities: tuple[ReportedEntity, ...]
    """Those that are not."""
    omitted_entities: int
    """Unhealthy ones that the report had no room for."""
    unused_queues: dict[str, list[str]]
    """Backlog queues that this client does not use now, by the reason."""
    alarms: tuple[str, ...]
    spool: SpoolReport | None = None
    """None: it has no spool."""

    @property
    def key(self) -> tuple[str, str, str]:
        """What tells it from all others."""
        return self.primary.lower(), self.client, self.instance


@dataclass(frozen=True, slots=True)
class ParkedDestination:
    """Parked messages for one entity."""

    path: str
    messages: int
    oldest: dt.datetime | None


@dataclass(frozen=True, slots=True)
class BacklogQueueReport:
    """A backlog queue of a primary."""

    path: str
    primary: str
    parked: int
    dead_lettered: int
    read_count: int
    """How many messages `destinations` is from."""
    oldest: dt.datetime | None
    destinations: tuple[ParkedDestination, ...]
    without_destination: int
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
    senders: tuple[SenderReport, ...]
    queues: tuple[BacklogQueueReport, ...]

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
        return any(queue.read_count < queue.parked for queue in self.queues)

    @property
    def destinations(self) -> list[ParkedDestination]:
        """Parked messages of all queues by destination, those with the most messages first."""
        found: dict[str, list[ParkedDestination]] = {}
        for queue in self.queues:
            for one in queue.destinations:
                found.setdefault(one.path.lower(), []).append(one)
        merged = [_merge_destinations(some) for some in found.values()]
        return sorted(merged, key=lambda one: (-one.messages, one.path))

    def is_used(self, queue: BacklogQueueReport) -> bool:
        """Some sender has it in its rotation; or it is not known what they have."""
        counts = [sender.backlog_queues for sender in self.senders if sender.backlog_queues]
        return not counts or queue.index < max(counts)


@dataclass(slots=True)
class PairReports:
    """What the secondary said, as it came."""

    now: str = ""
    sender_reports: list[dict[str, Any]] = field(default_factory=list)
    queue_reports: list[dict[str, Any]] = field(default_factory=list)


def read_pair_reports(client: AdminClient, primary: str | None = None) -> PairReports:
    """The reports of all live senders, and what is in the backlog queues. ServiceFailed."""
    answers = PairReports(sender_reports=read_reports(client, primary))
    found = client.request("GET", "$pairing/$backlog", primary=primary)
    answers.now = _text_in(found, "now")
    answers.queue_reports = _objects_in(found, "queues")
    return answers


def read_senders(client: AdminClient, primary: str | None = None) -> list[SenderReport]:
    """All live senders. ServiceFailed."""
    return [_parse_sender(report) for report in read_reports(client, primary)]


def read_reports(client: AdminClient, primary: str | None = None) -> list[dict[str, Any]]:
    """Their reports as they came. ServiceFailed."""
    reports: list[dict[str, Any]] = []
    skip: object = 0
    while isinstance(skip, int):
        page = client.request("GET", "$pairing", primary=primary, **{"$skip": skip, "$top": PAGE_SIZE})
        reports += _objects_in(page, "reports")
        following = page.get("next")
        skip = following if isinstance(following, int) and following > skip else None
    return reports


def to_pair_statuses(reports: PairReports) -> list[PairStatus]:
    """The pairs, in the order of their primaries' names."""
    now = _parse_time(reports.now) or dt.datetime.now(dt.UTC)
    senders = [_parse_sender(report) for report in reports.sender_reports]
    queues = [_parse_queue(one) for one in reports.queue_reports]
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


def _parse_sender(report: dict[str, Any]) -> SenderReport:
    reported, sent = _parse_time(report.get("reported")), _parse_time(report.get("at"))
    skew = reported - sent if reported is not None and sent is not None else dt.timedelta(0)
    return SenderReport(
        client=_text_in(report, "client"),
        instance=_text_in(report, "instance"),
        host=_text_in(report, "host"),
        pid=_text_in(report, "pid"),
        primary=_text_in(report, "primary"),
        reported=reported,
        ping_interval_s=_number_in(report, "ping_interval_s"),
        runs_syphon=report.get("runs_syphon") is True,
        is_protected=report.get("is_protected") is not False,
        backlog_queues=int(_number_in(report, "backlog_queues")),
        healthy_count=int(_number_in(report, "healthy")),
        unhealthy_entities=tuple(
            state for one in _objects_in(report, "entities") for state in _parse_entities(one, skew)
        ),
        omitted_entities=int(_number_in(report, "entities_not_shown")),
        unused_queues=_parse_unused_queues(_objects_in(report, "backlog")),
        alarms=tuple(f"{_text_in(one, 'kind')}: {_text_in(one, 'reason')}" for one in _objects_in(report, "alarms")),
        spool=_parse_spool(report.get("spool"), skew),
    )


def _parse_spool(report: object, skew: dt.timedelta) -> SpoolReport | None:
    if not isinstance(report, dict):
        return None
    count, size, refused, refused_size = (
        int(_number_in(report, name)) for name in ("count", "bytes", "refused", "refused_bytes")
    )
    return SpoolReport(count, size, _parse_time(report.get("oldest"), skew), refused, refused_size)


def _parse_unused_queues(queues: list[dict[str, Any]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for one in queues:
        found.setdefault(_text_in(one, "why_out"), []).append(_text_in(one, "path"))
    return found


def _parse_entities(entity: dict[str, Any], skew: dt.timedelta) -> Iterator[ReportedEntity]:
    """An entity that is not healthy, and those of its fragments that are down by themselves."""
    if _text_in(entity, "state") != HEALTHY:
        yield _parse_entity(_text_in(entity, "path"), _text_in(entity, "state"), entity, skew)
    for one in _objects_in(entity, "fragments_down"):
        yield _parse_entity(
            f"{_text_in(entity, 'path')}{FRAGMENT_SEPARATOR}{_text_in(one, 'fragment')}", DOWN, one, skew
        )


def _parse_entity(path: str, state: str, report: dict[str, Any], skew: dt.timedelta) -> ReportedEntity:
    since, next_ping = (_parse_time(report.get(name), skew) for name in ("since", "next_ping"))
    return ReportedEntity(path, state, _text_in(report, "why"), since, next_ping)


def _parse_queue(report: dict[str, Any]) -> BacklogQueueReport:
    return BacklogQueueReport(
        path=_text_in(report, "path"),
        primary=_text_in(report, "primary"),
        parked=int(_number_in(report, "parked")),
        dead_lettered=int(_number_in(report, "dead_lettered")),
        read_count=int(_number_in(report, "read")),
        oldest=_parse_time(report.get("oldest")),
        destinations=tuple(
            ParkedDestination(_text_in(one, "path"), int(_number_in(one, "messages")), _parse_time(one.get("oldest")))
            for one in _objects_in(report, "destinations")
        ),
        without_destination=int(_number_in(report, "unknown")),
        is_available=report.get("is_available") is not False,
        error=_text_in(report, "error"),
    )


def _merge_destinations(destinations: Iterable[ParkedDestination]) -> ParkedDestination:
    same = list(destinations)
    oldest = min((one.oldest for one in same if one.oldest is not None), default=None)
    return ParkedDestination(same[0].path, sum(one.messages for one in same), oldest)


def _objects_in(report: dict[str, Any], name: str) -> list[dict[str, Any]]:
    items = report.get(name)
    return [one for one in items if isinstance(one, dict)] if isinstance(items, list) else []


def _text_in(report: dict[str, Any], name: str) -> str:
    value = report.get(name)
    return "" if value is None else str(value)


def _number_in(report: dict[str, Any], name: str) -> float:
    value = report.get(name)
    return value if isinstance(value, int | float) else 0


def _parse_time(value: object, skew: dt.timedelta = dt.timedelta(0)) -> dt.datetime | None:
    """A time by a clock that is behind ours by `skew`; None if it is no time, or none that there can be."""
    try:
        moment = dt.datetime.fromisoformat(value) + skew if isinstance(value, str) else None
    except (ValueError, OverflowError):
        return None
    return moment if moment is None or moment.tzinfo is not None else moment.replace(tzinfo=dt.UTC)
