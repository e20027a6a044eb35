"""Tariff files, the costs computed from them, and the errors for invalid ones."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import TYPE_CHECKING

import pytest

from twinbus.model.usage import units_of
from twinbus.pipeline.costs.bill import (
    basic_cost,
    connections_cost,
    egress_cost,
    money,
    operations_cost,
    premium_cost,
    round_to_cent,
)
from twinbus.pipeline.costs.tariff import default_tariff_path, read_tariff
from twinbus.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pathlib import Path

MILLION = 1_000_000
TARIFF = read_tariff()


@pytest.mark.parametrize(
    ("operations", "dollars"),
    [
        (0, "0.00"),
        (10 * MILLION, "0.00"),
        (13 * MILLION, "0.00"),
        (50 * MILLION, "29.60"),
        (100 * MILLION, "69.60"),
        (150 * MILLION, "94.60"),
        (2_500 * MILLION, "1269.60"),
        (3_000 * MILLION, "1369.60"),
    ],
)
def test_c10_the_operations_of_a_month_have_the_price_of_the_tariff(operations: int, dollars: str) -> None:
    assert operations_cost(TARIFF, operations) == Decimal(dollars)


def test_c10_a_single_operation_beyond_those_included_is_charged_exactly() -> None:
    assert operations_cost(TARIFF, 13 * MILLION + 1) == Decimal("0.0000008")


def test_c10_the_base_charge_is_separate() -> None:
    assert TARIFF.base_per_month == Decimal("9.81")


def test_c10_connections_beyond_a_thousand_cost_three_cents_each_by_their_hourly_peaks() -> None:
    assert connections_cost(TARIFF, 1_000 * 744) == 0
    assert connections_cost(TARIFF, 3_500 * 744) == Decimal("75.00")
    assert round_to_cent(connections_cost(TARIFF, 1_000 * 744 + 10_000 * 372)) == Decimal("150.00")


def test_c10_premium_is_paid_by_unit_and_basic_by_operation() -> None:
    assert premium_cost(TARIFF, 2) == Decimal("1354.16")
    assert basic_cost(TARIFF, 150 * MILLION) == Decimal("7.50")


def test_c11_egress_is_charged_by_the_gigabyte() -> None:
    assert egress_cost(TARIFF, 10 * 2**30) == Decimal("0.87")


@pytest.mark.parametrize(("kilobytes", "units"), [(0, 1), (8, 1), (64, 1), (96, 2), (128, 2), (256, 4)])
def test_c02_one_operation_is_charged_for_each_started_64_kb(kilobytes: int, units: int) -> None:
    assert units_of(kilobytes * 1024) == units


def test_c02_one_byte_more_starts_the_next_step() -> None:
    assert (units_of(65_536), units_of(65_537)) == (1, 2)


def test_money_is_shown_to_the_cent_and_zero_has_no_minus() -> None:
    assert money(Decimal("1369.6")) == "$1,369.60"
    assert money(Decimal("-0.001")) == "$0.00"
    assert money(Decimal("-1.5")) == "-$1.50"
    assert money(Decimal("1369.6"), "EUR") == "1,369.60 EUR"


def test_no_price_is_in_the_code() -> None:
    prices = re.findall(r'"(\d+\.\d+)"', default_tariff_path().read_text())
    assert {"9.81", "0.80", "677.08"} <= set(prices)
    for file in default_tariff_path().parent.rglob("*.py"):
        for price in prices:
            assert f'"{price}"' not in re.sub(r'""".*?"""|such as "0.80"', "", file.read_text(), flags=re.DOTALL), file


def test_the_tariff_names_its_source_and_date() -> None:
    assert "azure.microsoft.com" in TARIFF.source
    assert default_tariff_path().stem == f"tariff-{TARIFF.date:%Y-%m}"


def write_changed_tariff(tmp_path: Path, old: str, new: str) -> Path:
    text = default_tariff_path().read_text()
    assert old in text
    file = tmp_path / "tariff.toml"
    file.write_text(text.replace(old, new, 1))
    return file


def test_a_custom_tariff_is_used(tmp_path: Path) -> None:
    tariff = read_tariff(write_changed_tariff(tmp_path, '"0.80"', '"1.00"'))
    assert operations_cost(tariff, 14 * MILLION) == Decimal(1)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"0.80"', "0.80", r'0\.8: must be a string such as "0\.80"'),
        ('"0.80"', '"-1"', r"'-1': must be a string"),
        ('"0.80"', '"1e3"', r"'1e3': must be a string"),
        ("up_to = 100_000_000", "up_to = 5", r"number 1\)\.up_to: 5: must be a whole number of at least 13,000,001"),
        ("up_to = 100_000_000", "", r"number 1\): all tiers but the last must have up_to"),
        ("up_to = 100_000_000", "upto = 100_000_000", r"number 1\)\.upto: is unknown; use one of per_million, up_to"),
        (
            "[[standard.tiers]] # the last",
            "[[standard.tiers]]\nup_to = 9_000_000_000 # the last",
            "last tier must not have up_to",
        ),
        ("included_operations = 13_000_000", "", "included_operations: missing"),
        ("included_operations = 13_000_000", "included_operations = true", "included_operations: True"),
        ("date = 2026-11-01", 'date = "2026-11-01"', "date: '2026-11-01': must be a date"),
        ('currency = "USD"', 'currency = "dollars"', "currency: 'dollars': must be a code of three letters"),
        ("[premium]", "[platinum]", "platinum: is unknown"),
        ("[premium]\nper_unit_and_month", "[basic.x]\nper_unit_and_month", r"the table \[premium\] is missing"),
        ("[tariff]", "[tariff", "is not TOML"),
    ],
)
def test_an_invalid_tariff_is_refused_with_the_reason(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        read_tariff(write_changed_tariff(tmp_path, old, new))


def test_a_missing_tariff_is_named(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"absent\.toml cannot be read: No such file"):
        read_tariff(tmp_path / "absent.toml")
