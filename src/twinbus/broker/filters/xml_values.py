"""Values in rule descriptions: conversion from their XML text to expression values.

Owns the text format of each type in `model.rule.VALUE_KINDS`.
"""

from __future__ import annotations

import binascii
import re
from base64 import b64decode
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Final
from uuid import UUID

from twinbus.broker.filters.arithmetic import fits_long
from twinbus.broker.filters.values import MAX_DURATION_TICKS, Duration, Instant
from twinbus.model.errors import InvalidArgument
from twinbus.model.times import EPOCH

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from twinbus.model.rule import Value

_TICKS_PER_SECOND: Final = 10_000_000
_NUMBER: Final = re.compile(r"\s*[+-]?[0-9]{1,20}\s*")
_BOOLEANS: Final = {"true": True, "1": True, "false": False, "0": False}
_INFINITIES: Final = {"INF": "inf", "-INF": "-inf"}
_TIME: Final = re.compile(
    r"(?P<seconds>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(?P<fraction>\d{1,12}))?(?P<zone>Z|[+-]\d\d:\d\d)?",
    re.ASCII,
)
_DURATION: Final = re.compile(
    r"(?P<sign>-?)P(?=[0-9T])(?:(?P<years>\d{1,9})Y)?(?:(?P<months>\d{1,9})M)?(?:(?P<days>\d{1,9})D)?"
    r"(?:T(?=[0-9])(?:(?P<hours>\d{1,9})H)?(?:(?P<minutes>\d{1,9})M)?(?:(?P<seconds>\d{1,12}(?:\.\d{1,12})?)S)?)?",
    re.ASCII,
)
_UNITS: Final = {
    "years": 365 * 86_400,  # the lengths .NET uses
    "months": 30 * 86_400,
    "days": 86_400,
    "hours": 3_600,
    "minutes": 60,
    "seconds": 1,
}


def parse_values(values: Mapping[str, Value], label: str) -> dict[str, object]:
    """Parse all values; raise InvalidArgument, with `label` and the name, for the first invalid value."""
    return {name: parse_value(value, f"{label} {name!r:.60}") for name, value in values.items()}


def parse_value(value: Value, label: str) -> object:
    """Parse one value; raise InvalidArgument, with a text that starts with `label`, if the value is invalid."""
    try:
        return _PARSERS[value.kind](value.text)
    except (ValueError, KeyError, OverflowError):
        raise InvalidArgument(f"{label} is {value.text!r:.60}, not a valid {value.kind}") from None


def _parse_integer(text: str) -> int:
    if not _NUMBER.fullmatch(text) or not fits_long(int(text)):
        raise ValueError
    return int(text)


def _parse_double(text: str) -> float:
    return float(_INFINITIES.get(text.strip(), text))


def _parse_instant(text: str) -> Instant:
    match = _TIME.fullmatch(text.strip())
    if match is None:
        raise ValueError
    moment = datetime.fromisoformat(match["seconds"] + (match["zone"] or "Z"))
    since_epoch = moment - EPOCH
    fraction = (match["fraction"] or "").ljust(7, "0")[:7]
    return Instant((since_epoch.days * 86_400 + since_epoch.seconds) * _TICKS_PER_SECOND + int(fraction))


def _parse_duration(text: str) -> Duration:
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ValueError
    seconds = sum(Decimal(match[unit] or 0) * length for unit, length in _UNITS.items())
    # Clients write the largest duration with fewer digits, rounded up.
    ticks = min(int(seconds * _TICKS_PER_SECOND), MAX_DURATION_TICKS)
    return Duration(-ticks if match["sign"] else ticks)


def _parse_binary(text: str) -> bytes:
    try:
        return b64decode("".join(text.split()), validate=True)
    except binascii.Error:
        raise ValueError from None


_PARSERS: Final[dict[str, Callable[[str], object]]] = {
    "string": str,
    "int": _parse_integer,
    "long": _parse_integer,
    "double": _parse_double,
    "boolean": lambda text: _BOOLEANS[text.strip().lower()],
    "dateTime": _parse_instant,
    "duration": _parse_duration,
    "guid": lambda text: UUID(text.strip()),
    "binary": _parse_binary,
}
