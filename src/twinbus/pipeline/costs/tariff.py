"""Tariffs: what a provider charges, read from a dated file.

    tariff = read_tariff()                      # the newest that comes with twinbus
    tariff = read_tariff(Path("ours.toml"))

Owns: the form of such a file, and what is wrong with one that is not of this form. Money is a text in it ("0.80"), so
that it is read exactly. What a tariff makes of quantities is in `bill`.
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

_MONEY: Final = re.compile(r"\d{1,9}(\.\d{1,9})?")
_CURRENCY: Final = re.compile(r"[A-Z]{3}")


@dataclass(frozen=True, slots=True)
class Tier:
    """Operations up to a number, that of the tiers before it excluded."""

    up_to: int | None
    """None: the last one has no end."""
    per_million: Decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class Tariff:
    """One file."""

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


def shipped_tariff() -> Path:
    """The newest that comes with twinbus: dates sort as their names do."""
    return max(Path(__file__).parent.glob("tariff-*.toml"))


def read_tariff(path: Path | None = None) -> Tariff:
    """What a file says, or the one that comes with twinbus. PipelineError says what is wrong in it."""
    path = path if path is not None else shipped_tariff()
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PipelineError(f"the tariff {path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise PipelineError(f"the tariff {path} is not TOML: {error}") from error
    return _Reader(path).tariff(document)


class _Reader:
    """Takes a document apart, and knows where it is while it does."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def tariff(self, document: dict[str, object]) -> Tariff:
        self._refuse_others(document, "", {"tariff", "standard", "premium", "basic", "bandwidth"})
        about = self._table(document, "tariff", {"name", "source", "date", "currency"})
        standard = self._table(document, "standard", {"base_per_month", "included_operations", "tiers", "connections"})
        connections = self._table(standard, "standard.connections", {"included", "per_month", "hours_per_month"})
        premium = self._table(document, "premium", {"per_unit_and_month"})
        basic = self._table(document, "basic", {"per_million"})
        bandwidth = self._table(document, "bandwidth", {"egress_per_gb", "bytes_per_gb"})
        included = self._count(standard, "standard.included_operations", least=0)
        return Tariff(
            name=self._text(about, "tariff.name"),
            source=self._text(about, "tariff.source"),
            date=self._date(about, "tariff.date"),
            currency=self._currency(about),
            base_per_month=self._money(standard, "standard.base_per_month"),
            included_operations=included,
            tiers=self._tiers(standard.get("tiers"), included),
            included_connections=self._count(connections, "standard.connections.included", least=0),
            per_connection_and_month=self._money(connections, "standard.connections.per_month"),
            hours_per_month=self._count(connections, "standard.connections.hours_per_month"),
            premium_per_unit_and_month=self._money(premium, "premium.per_unit_and_month"),
            basic_per_million=self._money(basic, "basic.per_million"),
            egress_per_gb=self._money(bandwidth, "bandwidth.egress_per_gb"),
            bytes_per_gb=self._count(bandwidth, "bandwidth.bytes_per_gb"),
        )

    def _tiers(self, found: object, included: int) -> tuple[Tier, ...]:
        if not isinstance(found, list) or not found:
            raise self._wrong("standard.tiers", "there has to be at least one [[standard.tiers]]")
        tiers, begins = [], included
        for number, one in enumerate(found, 1):
            where = f"standard.tiers (number {number})"
            if not isinstance(one, dict):
                raise self._wrong(where, "is to be a table")
            self._refuse_others(one, where, {"up_to", "per_million"})
            is_last = number == len(found)
            if is_last == ("up_to" in one):
                raise self._wrong(where, "the last one has no up_to" if is_last else "all but the last have an up_to")
            up_to = None if is_last else self._count(one, f"{where}.up_to", least=begins + 1)
            begins = begins if up_to is None else up_to
            tiers.append(Tier(up_to, self._money(one, f"{where}.per_million")))
        return tuple(tiers)

    def _table(self, parent: dict[str, object], where: str, names: set[str]) -> dict[str, object]:
        found = parent.get(_last(where))
        if not isinstance(found, dict):
            raise self._wrong(where, f"there is no [{where}]")
        self._refuse_others(found, where, names)
        return found

    def _refuse_others(self, table: dict[str, object], where: str, names: set[str]) -> None:
        for name in table:
            if name not in names:
                raise self._wrong(f"{where}.{name}".lstrip("."), f"is not known; known are {', '.join(sorted(names))}")

    def _money(self, table: dict[str, object], where: str) -> Decimal:
        found = table.get(_last(where))
        if not isinstance(found, str) or not _MONEY.fullmatch(found):
            raise self._wrong(where, f'{_said(found)}: an amount is a text such as "0.80", so that it is exact')
        return Decimal(found)

    def _count(self, table: dict[str, object], where: str, least: int = 1) -> int:
        found = table.get(_last(where))
        if not isinstance(found, int) or isinstance(found, bool) or found < least:
            raise self._wrong(where, f"{_said(found)}: is to be a whole number of at least {least:,}")
        return found

    def _text(self, table: dict[str, object], where: str) -> str:
        found = table.get(_last(where))
        if not isinstance(found, str) or not found.strip():
            raise self._wrong(where, f"{_said(found)}: is to be a text")
        return found

    def _currency(self, table: dict[str, object]) -> str:
        found = self._text(table, "tariff.currency")
        if not _CURRENCY.fullmatch(found):
            raise self._wrong("tariff.currency", f'{found!r}: is to be a code of three letters such as "USD"')
        return found

    def _date(self, table: dict[str, object], where: str) -> dt.date:
        found = table.get(_last(where))
        if not isinstance(found, dt.date) or isinstance(found, dt.datetime):
            raise self._wrong(where, f"{_said(found)}: is to be a date such as 2026-11-01, without quotes")
        return found

    def _wrong(self, where: str, why: str) -> PipelineError:
        return PipelineError(f"the tariff {self._path}: {where}: {why}")


def _last(where: str) -> str:
    return where.rpartition(".")[2]


def _said(found: object) -> str:
    return "missing" if found is None else repr(found)
