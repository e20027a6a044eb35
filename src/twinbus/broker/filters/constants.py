"""Values in descriptions of rules: from the text that XML has for them to what expressions deal in.

Owns: how each kind of `model.rule.KINDS` is written.
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
from twinbus.broker.filters.values import LONGEST_TICKS, Instant, Span
from twinbus.model.errors import InvalidArgument
from twinbus.model.times import EPOCH

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from twinbus.model.rule import Value

_TICKS_PER_SECOND: Final = 10_000_000
_NUMBER: Final = re.compile(r"\s*[+-]?[0-9]{1,20}\s*")
_TRUTHS: Final = {"true": True, "1": True, "false": False, "0": False}
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
    "years": 365 * 86_400,  # as .NET reads them
    "months": 30 * 86_400,
    "days": 86_400,
    "hours": 3_600,
    "minutes": 60,
    "seconds": 1,
}


def constants(values: Mapping[str, Value], what: str) -> dict[str, object]:
    """All of them. InvalidArgument names the one that is none; `what` says what they are."""
    return {name: constant(value, f"{what} {name!r:.60}") for name, value in values.items()}


def constant(value: Value, what: str) -> object:
    """One of them."""
    try:
        return _READERS[value.kind](value.text)
    except (ValueError, KeyError, OverflowError):
        raise InvalidArgument(f"{what} is {value.text!r:.60}, which is no {value.kind}") from None


def _whole(text: str) -> int:
    if not _NUMBER.fullmatch(text) or not fits_long(int(text)):
        raise ValueError
    return int(text)


def _double(text: str) -> float:
    return float(_INFINITIES.get(text.strip(), text))


def _instant(text: str) -> Instant:
    found = _TIME.fullmatch(text.strip())
    if found is None:
        raise ValueError
    moment = datetime.fromisoformat(found["seconds"] + (found["zone"] or "Z"))
    past = moment - EPOCH
    fraction = (found["fraction"] or "").ljust(7, "0")[:7]
    return Instant((past.days * 86_400 + past.seconds) * _TICKS_PER_SECOND + int(fraction))


def _span(text: str) -> Span:
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise ValueError
    seconds = sum(Decimal(found[unit] or 0) * length for unit, length in _UNITS.items())
    # Clients write the largest one with fewer digits, rounded up.
    ticks = min(int(seconds * _TICKS_PER_SECOND), LONGEST_TICKS)
    return Span(-ticks if found["sign"] else ticks)


def _binary(text: str) -> bytes:
    try:
        return b64decode("".join(text.split()), validate=True)
    except binascii.Error:
        raise ValueError from None


_READERS: Final[dict[str, Callable[[str], object]]] = {
    "string": str,
    "int": _whole,
    "long": _whole,
    "double": _double,
    "boolean": lambda text: _TRUTHS[text.strip().lower()],
    "dateTime": _instant,
    "duration": _span,
    "guid": lambda text: UUID(text.strip()),
    "binary": _binary,
}
