"""What quantities cost under a tariff, exactly.

Owns: the arithmetic of tiers, connections, bandwidth, Premium and Basic. All of it is in whole numbers and decimals;
nothing is rounded before `to_the_cent`, which is for people.
"""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Context, Decimal
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from twinbus.pipeline.costs.tariff import Tariff

MILLION: Final = 1_000_000
ZERO: Final = Decimal(0)
_EXACT: Final = Context(prec=60)
_CENT: Final = Decimal("0.01")


def operations_cost(tariff: Tariff, operations: int) -> Decimal:
    """Of a calendar month under Standard, its base charge aside (C10)."""
    cost, begins = ZERO, tariff.included_operations
    for tier in tariff.tiers:
        ends = operations if tier.up_to is None else min(operations, tier.up_to)
        if ends > begins:
            cost += (ends - begins) * tier.per_million / MILLION
            begins = ends
    return cost


def connections_cost(tariff: Tariff, hourly_peaks: int) -> Decimal:
    """Of a calendar month under Standard: `hourly_peaks` is the sum of the highest number of each hour."""
    included = tariff.included_connections * tariff.hours_per_month
    beyond = max(0, hourly_peaks - included)
    return _EXACT.divide(beyond * tariff.per_connection_and_month, Decimal(tariff.hours_per_month))


def egress_cost(tariff: Tariff, size_bytes: int) -> Decimal:
    """Of bytes that leave a region (C11)."""
    return _EXACT.divide(size_bytes * tariff.egress_per_gb, Decimal(tariff.bytes_per_gb))


def premium_cost(tariff: Tariff, units: int, months: int = 1) -> Decimal:
    """Of messaging units; there is no charge for operations."""
    return units * months * tariff.premium_per_unit_and_month


def basic_cost(tariff: Tariff, operations: int) -> Decimal:
    """Of operations under Basic, which has queues only."""
    return operations * tariff.basic_per_million / MILLION


def rate_of(cost: Decimal, quantity: int) -> Decimal:
    """What one of a quantity costs on average; nothing where there is none."""
    return _EXACT.divide(cost, Decimal(quantity)) if quantity else ZERO


def to_the_cent(amount: Decimal) -> Decimal:
    """As on a bill."""
    return amount.quantize(_CENT, ROUND_HALF_UP)


def money(amount: Decimal, currency: str = "USD") -> str:
    """For people: $1,369.60, or 1,369.60 EUR."""
    rounded = to_the_cent(amount)
    if rounded == 0:
        rounded = abs(rounded)  # no minus before nothing
    sign = "-" if rounded < 0 else ""
    return f"{sign}${abs(rounded):,}" if currency == "USD" else f"{rounded:,} {currency}"
