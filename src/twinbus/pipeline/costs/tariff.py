"""Tariffs: the prices of a provider, read from a dated file.

    tariff = read_tariff()                      # the newest tariff that comes with twinbus
    tariff = read_tariff(Path("ours.toml"))

Owns the file format and its validation. Amounts are strings ("0.80"), so that they are read exactly. `bill` applies a
tariff to quantities.
"""

from __future__ import annotations

import datetime as dt
import re
import tomllib
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Final

from twinbus.pipeline.errors import PipelineError

_MONEY_PATTERN: Final = re.compile(r"\d{1,9}(\.\d{1,9})?")
_CURRENCY_PATTERN: Final = re.compile(r"[A-Z]{3}")


@dataclass(frozen=True, slots=True)
class Tier:
    """A tier of operations, from the end of the previous tier up to `up_to`."""

    up_to: int | None
    """Number of the last operation in the tier; None for the last tier, which has no end."""
    per_million: Decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class Tariff:
    """The prices in one file."""

    name: str
    source: str
    date: dt.date
    currency: str
    base_per_month: Decimal
    included_operations: int
    tiers: tuple[Tier, ...]
    included_connections: int
    per_connection_and_month: Decimal
    hours_per_month: int
    premium_per_unit_and_month: Decimal
    basic_per_million: Decimal
    egress_per_gb: Decimal
    bytes_per_gb: int


def default_tariff_path() -> Path:
    """Return the path of the newest tariff that comes with twinbus. File names sort by date."""
    return max(Path(__file__).parent.glob("tariff-*.toml"))


def read_tariff(path: Path | None = None) -> Tariff:
    """Read a tariff (default: the newest tariff in twinbus). Raise PipelineError if the file is invalid."""
    path = path if path is not None else default_tariff_path()
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PipelineError(f"the tariff {path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise PipelineError(f"the tariff {path} is not TOML: {error}") from error
    return _TariffParser(path).parse(document)


class _TariffParser:
    """Parser for a tariff document. Errors contain the path of the key."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def parse(self, document: dict[str, object]) -> Tariff:
        self._reject_unknown_keys(document, "", {"tariff", "standard", "premium", "basic", "bandwidth"})
        about = self._table(document, "tariff", {"name", "source", "date", "currency"})
        standard = self._table(document, "standard", {"base_per_month", "included_operations", "tiers", "connections"})
        connections = self._table(standard, "standard.connections", {"included", "per_month", "hours_per_month"})
        premium = self._table(document, "premium", {"per_unit_and_month"})
        basic = self._table(document, "basic", {"per_million"})
        bandwidth = self._table(document, "bandwidth", {"egress_per_gb", "bytes_per_gb"})
        included = self._count(standard, "standard.included_operations", min_value=0)
        return Tariff(
            name=self._text(about, "tariff.name"),
            source=self._text(about, "tariff.source"),
            date=self._date(about, "tariff.date"),
            currency=self._currency(about),
            base_per_month=self._money(standard, "standard.base_per_month"),
            included_operations=included,
            tiers=self._parse_tiers(standard.get("tiers"), included),
            included_connections=self._count(connections, "standard.connections.included", min_value=0),
            per_connection_and_month=self._money(connections, "standard.connections.per_month"),
            hours_per_month=self._count(connections, "standard.connections.hours_per_month"),
            premium_per_unit_and_month=self._money(premium, "premium.per_unit_and_month"),
            basic_per_million=self._money(basic, "basic.per_million"),
            egress_per_gb=self._money(bandwidth, "bandwidth.egress_per_gb"),
            bytes_per_gb=self._count(bandwidth, "bandwidth.bytes_per_gb"),
        )

    def _parse_tiers(self, value: object, included_operations: int) -> tuple[Tier, ...]:
        if not isinstance(value, list) or not value:
            raise self._error("standard.tiers", "at least one [[standard.tiers]] is required")
        tiers, tier_start = [], included_operations
        for number, tier in enumerate(value, 1):
            key_path = f"standard.tiers (number {number})"
            if not isinstance(tier, dict):
                raise self._error(key_path, "must be a table")
            self._reject_unknown_keys(tier, key_path, {"up_to", "per_million"})
            is_last = number == len(value)
            if is_last == ("up_to" in tier):
                raise self._error(
                    key_path,
                    "the last tier must not have up_to" if is_last else "all tiers but the last must have up_to",
                )
            up_to = None if is_last else self._count(tier, f"{key_path}.up_to", min_value=tier_start + 1)
            tier_start = tier_start if up_to is None else up_to
            tiers.append(Tier(up_to, self._money(tier, f"{key_path}.per_million")))
        return tuple(tiers)

    def _table(self, parent: dict[str, object], key_path: str, known_names: set[str]) -> dict[str, object]:
        table = parent.get(_last_key(key_path))
        if not isinstance(table, dict):
            raise self._error(key_path, f"the table [{key_path}] is missing")
        self._reject_unknown_keys(table, key_path, known_names)
        return table

    def _reject_unknown_keys(self, table: dict[str, object], key_path: str, known_names: set[str]) -> None:
        for name in table:
            if name not in known_names:
                raise self._error(
                    f"{key_path}.{name}".lstrip("."), f"is unknown; use one of {', '.join(sorted(known_names))}"
                )

    def _money(self, table: dict[str, object], key_path: str) -> Decimal:
        value = table.get(_last_key(key_path))
        if not isinstance(value, str) or not _MONEY_PATTERN.fullmatch(value):
            raise self._error(
                key_path, f'{_describe_value(value)}: must be a string such as "0.80", so that it is exact'
            )
        return Decimal(value)

    def _count(self, table: dict[str, object], key_path: str, min_value: int = 1) -> int:
        value = table.get(_last_key(key_path))
        if not isinstance(value, int) or isinstance(value, bool) or value < min_value:
            raise self._error(key_path, f"{_describe_value(value)}: must be a whole number of at least {min_value:,}")
        return value

    def _text(self, table: dict[str, object], key_path: str) -> str:
        value = table.get(_last_key(key_path))
        if not isinstance(value, str) or not value.strip():
            raise self._error(key_path, f"{_describe_value(value)}: must be a non-empty string")
        return value

    def _currency(self, table: dict[str, object]) -> str:
        value = self._text(table, "tariff.currency")
        if not _CURRENCY_PATTERN.fullmatch(value):
            raise self._error("tariff.currency", f'{value!r}: must be a code of three letters such as "USD"')
        return value

    def _date(self, table: dict[str, object], key_path: str) -> dt.date:
        value = table.get(_last_key(key_path))
        if not isinstance(value, dt.date) or isinstance(value, dt.datetime):
            raise self._error(key_path, f"{_describe_value(value)}: must be a date such as 2026-11-01, without quotes")
        return value

    def _error(self, key_path: str, reason: str) -> PipelineError:
        return PipelineError(f"the tariff {self._path}: {key_path}: {reason}")


def _last_key(key_path: str) -> str:
    return key_path.rpartition(".")[2]


def _describe_value(value: object) -> str:
    return "missing" if value is None else repr(value)
