"""Conversion of times and durations between Python and the wire.

On the wire, a time is a number of milliseconds since 1970 (`Timestamp`), and a duration in a property is .NET's
`com.microsoft:timespan` in units of 100 nanoseconds.
"""

from __future__ import annotations

import datetime as dt
from typing import Final

from twinbus.amqp.types import Described, Symbol, Timestamp
from twinbus.model.description import FOREVER_MS

TIMESPAN: Final = Symbol("com.microsoft:timespan")
FOREVER: Final = dt.timedelta.max
"""Python's longest duration, which stands for "never"; the .NET equivalent is `FOREVER_MS`."""
TICKS_PER_MS: Final = 10_000
"""Ticks per millisecond; a .NET tick of 100 nanoseconds is the finest resolution that any client sends."""
EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MILLISECOND: Final = dt.timedelta(milliseconds=1)


def datetime_of(epoch_ms: int) -> dt.datetime:
    """Return the time `epoch_ms` milliseconds after 1970, or raise OverflowError if Python cannot represent it."""
    return EPOCH + dt.timedelta(milliseconds=epoch_ms)


def milliseconds_of(moment: dt.datetime) -> int:
    """Return the milliseconds since 1970. A time without a time zone counts as UTC, as the property names say."""
    return ((moment if moment.tzinfo is not None else moment.replace(tzinfo=dt.UTC)) - EPOCH) // _MILLISECOND


def duration_ms(duration: dt.timedelta | float) -> int:
    """Return a duration (timedelta or seconds) in milliseconds, at most .NET's longest duration."""
    if not isinstance(duration, dt.timedelta):
        return min(round(duration * 1000), FOREVER_MS)
    return min(duration // _MILLISECOND, FOREVER_MS)


def duration_s(duration: dt.timedelta | float) -> float:
    """Return a duration (timedelta or seconds) in seconds."""
    return duration.total_seconds() if isinstance(duration, dt.timedelta) else float(duration)


def timedelta_of(milliseconds: int) -> dt.timedelta:
    """Return a duration in milliseconds as a timedelta; .NET's longest duration becomes `FOREVER`."""
    return FOREVER if milliseconds >= FOREVER_MS else dt.timedelta(milliseconds=milliseconds)


def to_wire(value: object) -> object:
    """Convert a property value to AMQP: datetimes and timedeltas change, other values do not."""
    if isinstance(value, dt.datetime):
        return Timestamp(milliseconds_of(value))
    if isinstance(value, dt.timedelta):
        return timespan(duration_ms(value))
    return value


def from_wire(value: object) -> object:
    """Convert a property value from AMQP. A time that Python cannot represent stays a Timestamp."""
    if type(value) is Timestamp:
        try:
            return datetime_of(value)
        except OverflowError:
            return value
    if isinstance(value, Described) and value.descriptor == TIMESPAN and isinstance(value.value, int):
        return timedelta_of(value.value // TICKS_PER_MS)
    return value


def timespan(milliseconds: int) -> Described:
    """Return a duration as an AMQP property value."""
    return Described(TIMESPAN, milliseconds * TICKS_PER_MS)
