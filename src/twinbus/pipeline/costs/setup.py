"""The description of a pair for a prediction, from a file, from options, or from both.

    setup = read_setup(Path("pair.toml"), {"queues": 5})        # overrides take precedence over the file

Owns the parameters of a pair and its traffic, their defaults and their validation. A month has `days` days. `what_if`
computes the costs.
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
"""Upper limit for any count; a larger value is probably a typing error."""
MAX_MESSAGE_BYTES: Final = 100 * 1024 * 1024
HUNDRED: Final = Decimal(100)


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Messages of one kind in a month. A file has any number of `[[traffic]]` tables."""

    name: str = "messages"
    messages: int = 1_000_000
    size: int = 1_024
    """Size of a message in bytes, including its properties."""
    subscriptions: int | None = None
    """Number of subscriptions that match each message, or None for a queue."""
    peek_lock: bool = True
    """Whether receivers use peek-lock and complete messages, rather than receive and delete."""
    parked: Decimal | None = None
    """Percentage of messages that are parked (default: the share of the month in which there is an outage)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Parameters of a pair."""

    days: int = 30
    queues: int = 10
    """Number of backlog queues."""
    hosts: int = 1
    """Number of programs that run the syphon."""
    poll_minutes: int = 15
    entities: int = 1
    """Number of queues and topics that an outage makes unavailable."""
    clients: int = 1
    factories: int = 1
    outage_minutes: tuple[int | Decimal, ...] = (0,)
    """Durations of the month's outages in minutes."""
    ping_seconds: int = 60
    processes: int = 1
    """Number of times per month that paired programs start."""
    missing_queues: int = 0
    """Number of backlog queues to be created in the month."""
    parking_bytes: int = 256
    """Additional size of a parked message, less than 2 KB."""
    other_operations: int = 0
    """The account's other operations in the month, which also count towards the tiers."""
    failed_calls: bool = True
    """Whether failed calls are charged, including pings to an unavailable entity."""
    egress: Decimal = Decimal(0)
    """Percentage of the bytes received by applications that leave the region.

    All bytes that a syphon receives leave the region.
    """
    premium_units: int = 1
    traffic: tuple[Traffic, ...] = (Traffic(),)

    @property
    def outage_percent(self) -> Decimal:
        """Percentage of the month in which there is an outage."""
        return min(HUNDRED, HUNDRED * sum(self.outage_minutes) / (self.days * 1_440))

    def parked_messages(self, traffic: Traffic) -> int:
        """Return the number of parked messages, rounded to a whole number."""
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
    """Read a setup from a file and overrides. Raise PipelineError if a value is invalid.

    Traffic overrides apply to a single kind of traffic, and are refused if the file has several kinds.
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
        raise PipelineError("the set-up: traffic: must be given as [[traffic]], at least once")
    overridden = {name: value for name, value in overrides.items() if name in _TRAFFIC_FIELDS}
    if overridden and len(kinds) > 1:
        raise PipelineError(f"the set-up has {len(kinds)} kinds of traffic: set {', '.join(overridden)} in its file")
    traffic = tuple(Traffic(**_parse_fields({**kind, **overridden}, _TRAFFIC_FIELDS)) for kind in kinds)  # type: ignore[arg-type]  # checked
    setup_overrides = {name: value for name, value in overrides.items() if name not in _TRAFFIC_FIELDS}
    fields = _parse_fields({**document, **setup_overrides}, _SETUP_FIELDS - {"traffic"})
    return Setup(**fields, traffic=traffic)  # type: ignore[arg-type]  # checked


def _parse_fields(values: Mapping[str, object], known_names: frozenset[str]) -> dict[str, object]:
    return {name: _parse_value(name, value, known_names) for name, value in values.items()}


def _parse_value(name: str, value: object, known_names: frozenset[str]) -> object:
    if name not in known_names:
        matches = difflib.get_close_matches(name, known_names, 1)
        raise PipelineError(
            f"the set-up: {name} is unknown{f' (did you mean {matches[0]}?)' if matches else ''}; use one of "
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
    minimum, maximum = _MINIMUMS.get(name, 0), _MAXIMUMS.get(name, MAX_COUNT)
    if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= maximum:
        raise PipelineError(f"the set-up: {name} = {value!r}: must be a whole number from {minimum:,} to {maximum:,}")
    return value


def _parse_outages(name: str, value: object) -> tuple[int | Decimal, ...]:
    durations = list(value) if isinstance(value, list | tuple) else [value]
    if len(durations) > _MAX_OUTAGES:
        raise PipelineError(f"the set-up: {name}: {len(durations):,} outages; at most {_MAX_OUTAGES:,}")
    return tuple(_parse_minutes(name, minutes) for minutes in durations)


def _parse_minutes(name: str, value: object) -> int | Decimal:
    if not isinstance(value, float | Decimal):
        return _parse_count(name, value)
    if not 0 <= value <= MAX_COUNT:  # false for NaN
        raise PipelineError(f"the set-up: {name} = {value!r}: must be a number of minutes, 0 or more")
    return int(value) if value == int(value) else Decimal(str(value))


def _parse_percent(name: str, value: object) -> Decimal:
    is_number = isinstance(value, int | float | Decimal) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= 100:  # type: ignore[operator]  # noqa: PLR2004  # a number; false for NaN
        raise PipelineError(f"the set-up: {name} = {value!r}: must be a percentage from 0 to 100")
    return Decimal(str(value))


def _parse_boolean(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise PipelineError(f"the set-up: {name} = {value!r}: must be true or false")
    return value


def _parse_text(name: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise PipelineError(f"the set-up: {name} = {value!r}: must be a non-empty string")
    return value
