"""The bill of a month: its terms, what quantities cost under a tariff, and what one operation cost on average.

Owns: what is added up, and the arithmetic of tiers, connections, bandwidth, Premium and Basic. All of it is in whole
numbers and decimals; nothing is rounded before `to_the_cent`, which is for people. Needs no Spark. Operations of all
namespaces are billed together, as an account's are: which of them was the one that began a dearer tier is nobody's
fault, so all of a month's cost the same.
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
    # What is left after the first sum is small: more partitions would cost more than they carry.
    "spark.sql.shuffle.partitions": "8",
    # Hours are small files, and there are thousands of them: many are read in one task.
    "spark.sql.files.openCostInBytes": "1048576",
}
"""The settings of Spark that such a job wants."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BillingTerms:
    """What a bill is made by."""

    tariff: Tariff
    model: Model = Model.OPERATION
    bills_failed: bool = True
    egress_percent: Decimal = Decimal(0)
    """Per cent of what applications receive that leaves the region. What a syphon receives always does."""
    period: Period = Period.DAY
    since: dt.datetime | None = None
    until: dt.datetime | None = None


# --- what quantities cost under a tariff ------------------------------------------------------------------------------

MILLION: Final = 1_000_000
ZERO: Final = Decimal(0)
_EXACT_CONTEXT: Final = Context(prec=60)
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


def connections_cost(tariff: Tariff, hourly_connection_peaks: int) -> Decimal:
    """Of a calendar month under Standard: `hourly_peaks` is the sum of the highest number of each hour."""
    included = tariff.included_connections * tariff.hours_per_month
    beyond = max(0, hourly_connection_peaks - included)
    return _EXACT_CONTEXT.divide(beyond * tariff.per_connection_and_month, Decimal(tariff.hours_per_month))


def egress_cost(tariff: Tariff, size_bytes: int) -> Decimal:
    """Of bytes that leave a region (C11)."""
    return _EXACT_CONTEXT.divide(size_bytes * tariff.egress_per_gb, Decimal(tariff.bytes_per_gb))


def premium_cost(tariff: Tariff, units: int, months: int = 1) -> Decimal:
    """Of messaging units; there is no charge for operations."""
    return units * months * tariff.premium_per_unit_and_month


def basic_cost(tariff: Tariff, operations: int) -> Decimal:
    """Of operations under Basic, which has queues only."""
    return operations * tariff.basic_per_million / MILLION


def average_rate(cost: Decimal, quantity: int) -> Decimal:
    """What one of a quantity costs on average; nothing where there is none."""
    return _EXACT_CONTEXT.divide(cost, Decimal(quantity)) if quantity else ZERO


def round_to_cent(amount: Decimal) -> Decimal:
    """As on a bill."""
    return amount.quantize(_CENT, ROUND_HALF_UP)


def money(amount: Decimal, currency: str = "USD") -> str:
    """For people: $1,369.60, or 1,369.60 EUR."""
    rounded = round_to_cent(amount)
    if rounded == 0:
        rounded = abs(rounded)  # no minus before nothing
    sign = "-" if rounded < 0 else ""
    return f"{sign}${abs(rounded):,}" if currency == "USD" else f"{rounded:,} {currency}"


# --- the bill of a month ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """Of a month, under one model."""

    operations: Decimal = ZERO
    base: Decimal = ZERO
    connections: Decimal = ZERO
    egress: Decimal = ZERO

    @property
    def total(self) -> Decimal:
        """To be paid."""
        return self.operations + self.base + self.connections + self.egress


@dataclass(frozen=True, slots=True, kw_only=True)
class MonthlyUsage:
    """What was used in it."""

    first_day: dt.date
    charges: Charges = NO_CHARGES
    hourly_connection_peaks: int = 0
    egress_bytes: int = 0

    @property
    def end_day(self) -> dt.date:
        """The first day of the next."""
        return (self.first_day + dt.timedelta(days=32)).replace(day=1)

    def bill(self, tariff: Tariff, model: Model) -> Bill:
        """What that costs."""
        return Bill(
            operations=operations_cost(tariff, self.charges.for_model(model)),
            base=tariff.base_per_month,
            connections=self.connections_cost(tariff),
            egress=egress_cost(tariff, self.egress_bytes),
        )

    def connections_cost(self, tariff: Tariff) -> Decimal:
        """The same in both models."""
        return connections_cost(tariff, self.hourly_connection_peaks)

    def rate(self, tariff: Tariff, model: Model) -> Decimal:
        """Of one operation."""
        return average_rate(operations_cost(tariff, self.charges.for_model(model)), self.charges.for_model(model))

    def savings_without(self, tariff: Tariff, model: Model, charges: Charges) -> Decimal:
        """By how much the bill would be lower if these had not been."""
        all_of_it = self.charges.for_model(model)
        rest = max(0, all_of_it - charges.for_model(model))
        return operations_cost(tariff, all_of_it) - operations_cost(tariff, rest)
