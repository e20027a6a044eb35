"""The state of a pair, read from the secondary: the reports of its senders, and its backlog queues.

Owns the parsing of the server's responses. Reports come from clients of any version, so missing fields and fields of an
unexpected type are ignored. Printing is in `pair_view`.
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
"""State of a fragment that is down; the entity itself may be healthy."""
FRAGMENT_SEPARATOR: Final = ", fragment "
"""Separator between the path of an entity, which has no spaces, and the number of a fragment."""
PAGE_SIZE: Final = 1_000


@dataclass(frozen=True, slots=True)
class ReportedEntity:
    """State of an entity of the primary, or of one of its fragments, as reported by one sender."""

    path: str
    state: str
    reason: str
    since: dt.datetime | None
    next_ping: dt.datetime | None

    @property
    def entity_path(self) -> str:
        """Path of the entity, without the fragment number."""
        return self.path.partition(FRAGMENT_SEPARATOR)[0]

    @property
    def is_failed_over(self) -> bool:
        """Whether messages for the entity are parked or refused instead of sent to the primary."""
        return self.state not in (HEALTHY, SUSPECT)


@dataclass(frozen=True, slots=True)
class SpoolReport:
    """Spool of a sender: messages on its local disk, stored while both namespaces were down."""

    messages: int
    bytes: int
    oldest: dt.datetime | None
    refused: int
    refused_bytes: int


@dataclass(frozen=True, slots=True)
class SenderReport:
    """Last report of one paired client. All times are according to the secondary's clock."""

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
    """Number of healthy entities."""
    unhealthy_entities: tuple[ReportedEntity, ...]
    """Entities and fragments that are not healthy."""
    omitted_entities: int
    """Number of unhealthy entities that did not fit into the report."""
    unused_queues: dict[str, list[str]]
    """Backlog queues that the client does not use now, by reason."""
    alarms: tuple[str, ...]
    spool: SpoolReport | None = None
    """Spool of the client; None if it has no spool."""

    @property
    def key(self) -> tuple[str, str, str]:
        """Unique key of the sender."""
        return self.primary.lower(), self.client, self.instance


@dataclass(frozen=True, slots=True)
class ParkedDestination:
    """Parked messages for one destination entity."""

    path: str
    messages: int
    oldest: dt.datetime | None


@dataclass(frozen=True, slots=True)
class BacklogQueueReport:
    """State of one of a primary's backlog queues."""

    path: str
    primary: str
    parked: int
    dead_lettered: int
    read_count: int
    """Number of messages that were read for `destinations`."""
    oldest: dt.datetime | None
    destinations: tuple[ParkedDestination, ...]
    without_destination: int
    """Number of messages without a valid destination."""
    is_available: bool
    error: str

    @property
    def index(self) -> int:
        """Number of the queue, from its path."""
        number = self.path.rpartition("/")[2]
        return int(number) if number.isdecimal() else 0


@dataclass(frozen=True, slots=True)
class PairStatus:
    """State of the pairs of one primary."""

    primary: str
    now: dt.datetime
    """Current time, according to the secondary's clock."""
    senders: tuple[SenderReport, ...]
    queues: tuple[BacklogQueueReport, ...]

    @property
    def parked(self) -> int:
        """Number of messages in all backlog queues."""
        return sum(queue.parked for queue in self.queues)

    @property
    def dead_lettered(self) -> int:
        """Number of messages in the dead-letter queues of all backlog queues."""
        return sum(queue.dead_lettered for queue in self.queues)

    @property
    def oldest(self) -> dt.datetime | None:
        """When the oldest message was parked; None if there is none."""
        return min((queue.oldest for queue in self.queues if queue.oldest is not None), default=None)

    @property
    def is_sample(self) -> bool:
        """Whether not all messages were read, so that the counts in `destinations` are lower bounds."""
        return any(queue.read_count < queue.parked for queue in self.queues)

    @property
    def destinations(self) -> list[ParkedDestination]:
        """Parked messages in all queues by destination, largest count first."""
        by_path: dict[str, list[ParkedDestination]] = {}
        for queue in self.queues:
            for destination in queue.destinations:
                by_path.setdefault(destination.path.lower(), []).append(destination)
        merged = [_merge_destinations(same_path) for same_path in by_path.values()]
        return sorted(merged, key=lambda destination: (-destination.messages, destination.path))

    def is_used(self, queue: BacklogQueueReport) -> bool:
        """Return whether a sender uses the backlog queue; also True if no sender has reported its number of queues."""
        counts = [sender.backlog_queues for sender in self.senders if sender.backlog_queues]
        return not counts or queue.index < max(counts)


@dataclass(slots=True)
class PairReports:
    """Unparsed reports from the secondary."""

    now: str = ""
    sender_reports: list[dict[str, Any]] = field(default_factory=list)
    queue_reports: list[dict[str, Any]] = field(default_factory=list)


def read_pair_reports(client: AdminClient, primary: str | None = None) -> PairReports:
    """Return the reports of all live senders and backlog queues. Raise AdminRequestFailed if a request fails."""
    reports = PairReports(sender_reports=read_reports(client, primary))
    backlog = client.request("GET", "$pairing/$backlog", primary=primary)
    reports.now = _text_in(backlog, "now")
    reports.queue_reports = _objects_in(backlog, "queues")
    return reports


def read_senders(client: AdminClient, primary: str | None = None) -> list[SenderReport]:
    """Return the parsed reports of all live senders. Raise AdminRequestFailed if a request fails."""
    return [_parse_sender(report) for report in read_reports(client, primary)]


def read_reports(client: AdminClient, primary: str | None = None) -> list[dict[str, Any]]:
    """Return the unparsed reports of all live senders. Raise AdminRequestFailed if a request fails."""
    reports: list[dict[str, Any]] = []
    skip: object = 0
    while isinstance(skip, int):
        page = client.request("GET", "$pairing", primary=primary, **{"$skip": skip, "$top": PAGE_SIZE})
        reports += _objects_in(page, "reports")
        next_skip = page.get("next")
        skip = next_skip if isinstance(next_skip, int) and next_skip > skip else None
    return reports


def to_pair_statuses(reports: PairReports) -> list[PairStatus]:
    """Return the state of each pair, sorted by the name of the primary."""
    now = _parse_time(reports.now) or dt.datetime.now(dt.UTC)
    senders = [_parse_sender(report) for report in reports.sender_reports]
    queues = [_parse_queue(item) for item in reports.queue_reports]
    named = [*(sender.primary for sender in senders), *(queue.primary for queue in queues)]
    names = {name.lower(): name for name in named}
    return [
        PairStatus(
            name,
            now,
            tuple(sorted((item for item in senders if item.primary.lower() == key), key=lambda item: item.key)),
            tuple(sorted((item for item in queues if item.primary.lower() == key), key=lambda item: item.index)),
        )
        for key, name in sorted(names.items())
    ]


# --- parsing ----------------------------------------------------------------------------------------------------------


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
            state for item in _objects_in(report, "entities") for state in _parse_entities(item, skew)
        ),
        omitted_entities=int(_number_in(report, "entities_not_shown")),
        unused_queues=_parse_unused_queues(_objects_in(report, "backlog")),
        alarms=tuple(f"{_text_in(item, 'kind')}: {_text_in(item, 'reason')}" for item in _objects_in(report, "alarms")),
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
    by_reason: dict[str, list[str]] = {}
    for queue in queues:
        by_reason.setdefault(_text_in(queue, "why_out"), []).append(_text_in(queue, "path"))
    return by_reason


def _parse_entities(entity: dict[str, Any], skew: dt.timedelta) -> Iterator[ReportedEntity]:
    """Yield an entity if it is not healthy, and its fragments that are down, even if the entity itself is healthy."""
    if _text_in(entity, "state") != HEALTHY:
        yield _parse_entity(_text_in(entity, "path"), _text_in(entity, "state"), entity, skew)
    for fragment in _objects_in(entity, "fragments_down"):
        yield _parse_entity(
            f"{_text_in(entity, 'path')}{FRAGMENT_SEPARATOR}{_text_in(fragment, 'fragment')}", DOWN, fragment, skew
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
            ParkedDestination(
                _text_in(destination, "path"),
                int(_number_in(destination, "messages")),
                _parse_time(destination.get("oldest")),
            )
            for destination in _objects_in(report, "destinations")
        ),
        without_destination=int(_number_in(report, "unknown")),
        is_available=report.get("is_available") is not False,
        error=_text_in(report, "error"),
    )


def _merge_destinations(destinations: Iterable[ParkedDestination]) -> ParkedDestination:
    same = list(destinations)
    oldest = min((destination.oldest for destination in same if destination.oldest is not None), default=None)
    return ParkedDestination(same[0].path, sum(destination.messages for destination in same), oldest)


def _objects_in(report: dict[str, Any], name: str) -> list[dict[str, Any]]:
    items = report.get(name)
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []


def _text_in(report: dict[str, Any], name: str) -> str:
    value = report.get(name)
    return "" if value is None else str(value)


def _number_in(report: dict[str, Any], name: str) -> float:
    value = report.get(name)
    return value if isinstance(value, int | float) else 0


def _parse_time(value: object, skew: dt.timedelta = dt.timedelta(0)) -> dt.datetime | None:
    """Return the time plus `skew`, which is the lag of the sender's clock; None if the value is not a valid time."""
    try:
        moment = dt.datetime.fromisoformat(value) + skew if isinstance(value, str) else None
    except (ValueError, OverflowError):
        return None
    return moment if moment is None or moment.tzinfo is not None else moment.replace(tzinfo=dt.UTC)
