"""The bill for a month: its terms, the cost of quantities under a tariff, and the average cost of an operation.

Owns the sums and the arithmetic of tiers, connections, bandwidth, Premium and Basic. Amounts are integers and decimals;
only `round_to_cent` rounds, for display. Needs no Spark. Operations in all namespaces are billed together. Each
operation in a month has the average cost of all operations in that month, because the tiers apply to the sum of all
namespaces.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import TYPE_CHECKING, Final

from twinbus.pipeline.costs.charges import NO_CHARGES, Charges, Model
from twinbus.pipeline.costs.operation_kinds import Period

if TYPE_CHECKING:
    from twinbus.pipeline.costs.tariff import Tariff

# --- terms ------------------------------------------------------------------------------------------------------------

SPARK_SETTINGS: Final = {
    "spark.driver.memory": "2g",
    # Data after the first sum is small: more partitions would cost more than they save.
    "spark.sql.shuffle.partitions": "8",
    # There are thousands of small hourly files: read many files in one task.
    "spark.sql.files.openCostInBytes": "1048576",
}
"""Spark settings for cost reports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BillingTerms:
    """The terms that a bill is based on."""

    tariff: Tariff
    model: Model = Model.OPERATION
    bills_failed: bool = True
    egress_percent: Decimal = Decimal(0)
    """Percentage of the bytes received by applications that leave the region.

    All bytes that a syphon receives leave the region.
    """
    period: Period = Period.DAY
    since: dt.datetime | None = None
    until: dt.datetime | None = None


# --- what quantities cost under a tariff ------------------------------------------------------------------------------

MILLION: Final = 1_000_000
ZERO: Final = Decimal(0)
_EXACT_CONTEXT: Final = Context(prec=60)
_CENT: Final = Decimal("0.01")


def operations_cost(tariff: Tariff, operations: int) -> Decimal:
    """Return the cost of a month's operations under Standard, without the base charge."""
    cost, tier_start = ZERO, tariff.included_operations
    for tier in tariff.tiers:
        tier_end = operations if tier.up_to is None else min(operations, tier.up_to)
        if tier_end > tier_start:
            cost += (tier_end - tier_start) * tier.per_million / MILLION
            tier_start = tier_end
    return cost


def connections_cost(tariff: Tariff, hourly_connection_peaks: int) -> Decimal:
    """Return the cost of a month's connections under Standard, from the sum of the hourly peaks."""
    included = tariff.included_connections * tariff.hours_per_month
    charged = max(0, hourly_connection_peaks - included)
    return _EXACT_CONTEXT.divide(charged * tariff.per_connection_and_month, Decimal(tariff.hours_per_month))


def egress_cost(tariff: Tariff, size_bytes: int) -> Decimal:
    """Return the cost of bytes that leave a region."""
    return _EXACT_CONTEXT.divide(size_bytes * tariff.egress_per_gb, Decimal(tariff.bytes_per_gb))


def premium_cost(tariff: Tariff, units: int, months: int = 1) -> Decimal:
    """Return the cost of Premium messaging units. Premium does not charge for operations."""
    return units * months * tariff.premium_per_unit_and_month


def basic_cost(tariff: Tariff, operations: int) -> Decimal:
    """Return the cost of operations under Basic, which has queues only."""
    return operations * tariff.basic_per_million / MILLION


def average_rate(cost: Decimal, quantity: int) -> Decimal:
    """Return the average cost of one unit, or 0 if `quantity` is 0."""
    return _EXACT_CONTEXT.divide(cost, Decimal(quantity)) if quantity else ZERO


def round_to_cent(amount: Decimal) -> Decimal:
    """Round an amount to cents, half up."""
    return amount.quantize(_CENT, ROUND_HALF_UP)


def money(amount: Decimal, currency: str = "USD") -> str:
    """Format an amount: $1,369.60, or 1,369.60 EUR."""
    rounded = round_to_cent(amount)
    if rounded == 0:
        rounded = abs(rounded)  # no minus sign before zero
    sign = "-" if rounded < 0 else ""
    return f"{sign}${abs(rounded):,}" if currency == "USD" else f"{rounded:,} {currency}"


# --- the bill of a month ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """Bill for a month under one billing model."""

    operations: Decimal = ZERO
    base: Decimal = ZERO
    connections: Decimal = ZERO
    egress: Decimal = ZERO

    @property
    def total(self) -> Decimal:
        """Total amount."""
        return self.operations + self.base + self.connections + self.egress


@dataclass(frozen=True, slots=True, kw_only=True)
class MonthlyUsage:
    """Usage in a month."""

    first_day: dt.date
    charges: Charges = NO_CHARGES
    hourly_connection_peaks: int = 0
    egress_bytes: int = 0

    @property
    def end_day(self) -> dt.date:
        """First day of the next month."""
        return (self.first_day + dt.timedelta(days=32)).replace(day=1)

    def bill(self, tariff: Tariff, model: Model) -> Bill:
        """Return the bill for the month under the given billing model."""
        return Bill(
            operations=operations_cost(tariff, self.charges.for_model(model)),
            base=tariff.base_per_month,
            connections=self.connections_cost(tariff),
            egress=egress_cost(tariff, self.egress_bytes),
        )

    def connections_cost(self, tariff: Tariff) -> Decimal:
        """Return the cost of connections, which is the same in both models."""
        return connections_cost(tariff, self.hourly_connection_peaks)

    def rate(self, tariff: Tariff, model: Model) -> Decimal:
        """Return the average cost of one operation."""
        return average_rate(operations_cost(tariff, self.charges.for_model(model)), self.charges.for_model(model))

    def savings_without(self, tariff: Tariff, model: Model, charges: Charges) -> Decimal:
        """Return the amount by which the bill would be lower without these charges."""
        total = self.charges.for_model(model)
        remaining = max(0, total - charges.for_model(model))
        return operations_cost(tariff, total) - operations_cost(tariff, remaining)
