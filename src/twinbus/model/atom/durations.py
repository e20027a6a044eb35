"""Durations in XML notation: PT1M is one minute, P14D is fourteen days.

Owns the conversion between ISO 8601 and milliseconds. The model validates the durations of properties.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

from twinbus.model.description import FOREVER_MS
from twinbus.model.errors import InvalidArgument

FOREVER_TEXT: Final = "P10675199DT2H48M5.4775807S"
_SECOND_MS: Final = 1_000
_MINUTE_MS: Final = 60 * _SECOND_MS
_HOUR_MS: Final = 60 * _MINUTE_MS
_DAY_MS: Final = 24 * _HOUR_MS
_FOREVER_DAYS_MS: Final = FOREVER_MS // _DAY_MS * _DAY_MS

# Twelve digits are enough for any duration, and parsing a number of that length is cheap.
_DURATION: Final = re.compile(
    r"P(?=[0-9T])(?:(?P<years>[0-9]{1,12})Y)?(?:(?P<months>[0-9]{1,12})M)?(?:(?P<days>[0-9]{1,12})D)?"
    r"(?:T(?=[0-9])(?:(?P<hours>[0-9]{1,12})H)?(?:(?P<minutes>[0-9]{1,12})M)?"
    r"(?:(?P<seconds>[0-9]{1,12}(?:\.[0-9]{1,12})?)S)?)?"
)
_UNITS_MS: Final = {
    "years": 365 * _DAY_MS,  # .NET's definition of years and months, which Azure uses
    "months": 30 * _DAY_MS,
    "days": _DAY_MS,
    "hours": _HOUR_MS,
    "minutes": _MINUTE_MS,
    "seconds": _SECOND_MS,
}


def parse_duration(text: str) -> int:
    """Return a positive duration in milliseconds. Durations of 10,675,199 days or more become `FOREVER_MS`."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise InvalidArgument("it has to be an ISO 8601 duration, such as PT1M or P14D, and not negative")
    amounts = match.groupdict(default="0")
    total_ms = int(sum(Decimal(amounts[unit]) * unit_ms for unit, unit_ms in _UNITS_MS.items()))
    if total_ms == 0:
        raise InvalidArgument("it has to be a duration above zero")
    # The Python SDK writes the largest time span with fewer digits, and other clients may round it: all mean forever.
    return FOREVER_MS if total_ms >= _FOREVER_DAYS_MS else total_ms


def format_duration(duration_ms: int) -> str:
    """Return the shortest ISO 8601 notation in days, hours, minutes and seconds."""
    if duration_ms >= FOREVER_MS:
        return FOREVER_TEXT
    days, rest = divmod(duration_ms, _DAY_MS)
    hours, rest = divmod(rest, _HOUR_MS)
    minutes, rest = divmod(rest, _MINUTE_MS)
    seconds, milliseconds = divmod(rest, _SECOND_MS)
    fraction = f".{milliseconds:03}".rstrip("0") if milliseconds else ""
    time = "".join(
        f"{amount}{letter}"
        for amount, letter in ((hours, "H"), (minutes, "M"), (f"{seconds}{fraction}", "S"))
        if amount not in (0, "0")
    )
    date = f"{days}D" if days else ""
    return f"P{date}T{time}" if time or not date else f"P{date}"
