"""A pair as it is described for a prediction: in a file, by options, or both.

    setup = read_setup(Path("pair.toml"), {"queues": 5})        # what is given beside the file wins

Owns: what can be said of a pair and its traffic, the defaults, and what is wrong with a description. A month here has
`days` days. What it would cost is in `what_if`.
"""

from __future__ import annotations

import dataclasses
import difflib
import tomllib
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from typing import TYPE_CHECKING, Final

from twinbus.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MAX_COUNT: Final = 10**15
"""Of anything that is counted: beyond that somebody mistyped."""
MAX_MESSAGE_BYTES: Final = 100 * 1024 * 1024
HUNDRED: Final = Decimal(100)


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Messages of one kind, in a month. In a file: `[[traffic]]`, any number of times."""

    name: str = "messages"
    messages: int = 1_000_000
    size: int = 1_024
    """Bytes of one message, its properties included."""
    subscriptions: int | None = None
    """How many of a topic's subscriptions want each message. None: it goes to a queue."""
    peek_lock: bool = True
    """Receivers complete what they receive; else they receive and delete."""
    parked: Decimal | None = None
    """Per cent of these messages. None: as many as the outages last, of the month."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """A pair."""

    days: int = 30
    queues: int = 10
    """Backlog queues."""
    hosts: int = 1
    """Programs that run the syphon."""
    poll_minutes: int = 15
    entities: int = 1
    """Queues and topics that an outage makes unavailable."""
    clients: int = 1
    factories: int = 1
    outage_minutes: tuple[int | Decimal, ...] = (0,)
    """How long each outage of the month lasts; parts of a minute, too."""
    ping_seconds: int = 60
    processes: int = 1
    """Starts of programs that pair, in a month."""
    missing_queues: int = 0
    """Backlog queues that have to be created in this month."""
    parking_bytes: int = 256
    """What a message grows by in the backlog: less than 2 KB."""
    other_operations: int = 0
    """Of the same account, in the month: they fill the cheaper and the dearer tiers, too."""
    failed_calls: bool = True
    """Calls that fail are charged, pings to an entity that is down among them (C09)."""
    egress: Decimal = Decimal(0)
    """Per cent of what applications receive that leaves the region. What a syphon receives always does."""
    premium_units: int = 1
    traffic: tuple[Traffic, ...] = (Traffic(),)

    @property
    def outage_percent(self) -> Decimal:
        """Of the month, in per cent."""
        return min(HUNDRED, HUNDRED * sum(self.outage_minutes) / (self.days * 1_440))

    def parked_messages(self, traffic: Traffic) -> int:
        """Whole ones."""
        share = traffic.parked if traffic.parked is not None else self.outage_percent
        return int((traffic.messages * share / HUNDRED).to_integral_value(ROUND_HALF_UP))


_MINIMUMS: Final = {
    "days": 1,
    "queues": 1,
    "poll_minutes": 1,
    "ping_seconds": 1,
    "premium_units": 1,
    "subscriptions": 0,
}
_MAXIMUMS: Final = {"days": 366, "size": MAX_MESSAGE_BYTES, "ping_seconds": 86_400, "poll_minutes": 1_440}
_MAX_OUTAGES: Final = 10_000
_PERCENT_FIELDS: Final = frozenset({"egress", "parked"})
_BOOLEAN_FIELDS: Final = frozenset({"failed_calls", "peek_lock"})
_TRAFFIC_FIELDS: Final = frozenset(field.name for field in dataclasses.fields(Traffic))
_SETUP_FIELDS: Final = frozenset(field.name for field in dataclasses.fields(Setup))


def read_setup(path: Path | None = None, overrides: Mapping[str, object] | None = None) -> Setup:
    """What a file says, and what is given beside it. PipelineError says what is wrong.

    What is given of traffic holds for the one kind there is; with several kinds in the file it is refused.
    """
    document: dict[str, object] = {}
    if path is not None:
        try:
            document = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise PipelineError(f"the set-up {path} cannot be read: {error.strerror}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise PipelineError(f"the set-up {path} is not TOML: {error}") from error
    return _parse_setup(document, dict(overrides or {}))


def _parse_setup(document: dict[str, object], overrides: dict[str, object]) -> Setup:
    kinds = document.pop("traffic", [{}])
    if not isinstance(kinds, list) or not kinds or not all(isinstance(kind, dict) for kind in kinds):
        raise PipelineError("the set-up: traffic: is to be given as [[traffic]], at least once")
    of_traffic = {name: value for name, value in overrides.items() if name in _TRAFFIC_FIELDS}
    if of_traffic and len(kinds) > 1:
        raise PipelineError(
            f"the set-up has {len(kinds)} kinds of traffic: {', '.join(of_traffic)} belongs into its file"
        )
    traffic = tuple(Traffic(**_parse_fields({**kind, **of_traffic}, _TRAFFIC_FIELDS)) for kind in kinds)  # type: ignore[arg-type]  # checked
    of_setup = {name: value for name, value in overrides.items() if name not in _TRAFFIC_FIELDS}
    fields = _parse_fields({**document, **of_setup}, _SETUP_FIELDS - {"traffic"})
    return Setup(**fields, traffic=traffic)  # type: ignore[arg-type]  # checked


def _parse_fields(values: Mapping[str, object], known_names: frozenset[str]) -> dict[str, object]:
    return {name: _parse_value(name, value, known_names) for name, value in values.items()}


def _parse_value(name: str, value: object, known_names: frozenset[str]) -> object:
    if name not in known_names:
        close = difflib.get_close_matches(name, known_names, 1)
        raise PipelineError(
            f"the set-up: {name} is not known{f': {close[0]}?' if close else ''}; known are "
            f"{', '.join(sorted(known_names))}"
        )
    if name == "name":
        return _parse_text(name, value)
    if name in _BOOLEAN_FIELDS:
        return _parse_boolean(name, value)
    if name in _PERCENT_FIELDS:
        return _parse_percent(name, value)
    if name == "outage_minutes":
        return _parse_outages(name, value)
    return _parse_count(name, value)


def _parse_count(name: str, value: object) -> int:
    least, most = _MINIMUMS.get(name, 0), _MAXIMUMS.get(name, MAX_COUNT)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise PipelineError(f"the set-up: {name} = {value!r}: is to be a whole number from {least:,} to {most:,}")
    return value


def _parse_outages(name: str, value: object) -> tuple[int | Decimal, ...]:
    found = list(value) if isinstance(value, list | tuple) else [value]
    if len(found) > _MAX_OUTAGES:
        raise PipelineError(f"the set-up: {name}: {len(found):,} outages; at most {_MAX_OUTAGES:,}")
    return tuple(_parse_minutes(name, one) for one in found)


def _parse_minutes(name: str, value: object) -> int | Decimal:
    if not isinstance(value, float | Decimal):
        return _parse_count(name, value)
    if not 0 <= value <= MAX_COUNT:  # NaN is not
        raise PipelineError(f"the set-up: {name} = {value!r}: is to be a number of minutes, 0 or more")
    return int(value) if value == int(value) else Decimal(str(value))


def _parse_percent(name: str, value: object) -> Decimal:
    is_number = isinstance(value, int | float | Decimal) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= 100:  # type: ignore[operator]  # noqa: PLR2004  # it is a number; NaN is not
        raise PipelineError(f"the set-up: {name} = {value!r}: is to be from 0 to 100, per cent")
    return Decimal(str(value))


def _parse_boolean(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise PipelineError(f"the set-up: {name} = {value!r}: is to be true or false")
    return value


def _parse_text(name: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise PipelineError(f"the set-up: {name} = {value!r}: is to be a text")
    return value
