"""The bill of a month, and what one operation of it cost on average.

Owns: what is added up. Operations of all namespaces are billed together, as an account's are: which of them was the one
that began a dearer tier is nobody's fault, so all of a month's cost the same.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import TYPE_CHECKING

from twinbus.pipeline.costs.charges import NONE, Charges, Model
from twinbus.pipeline.costs.charging import ZERO, connections_cost, egress_cost, operations_cost, rate_of

if TYPE_CHECKING:
    from decimal import Decimal

    from twinbus.pipeline.costs.tariff import Tariff


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
class Month:
    """What was used in it."""

    begins: dt.date
    charges: Charges = NONE
    hourly_peaks: int = 0
    egress_bytes: int = 0

    @property
    def ends(self) -> dt.date:
        """The first day of the next."""
        return (self.begins + dt.timedelta(days=32)).replace(day=1)

    def bill(self, tariff: Tariff, model: Model) -> Bill:
        """What that costs."""
        return Bill(
            operations=operations_cost(tariff, self.charges.by(model)),
            base=tariff.base_per_month,
            connections=self.connections_cost(tariff),
            egress=egress_cost(tariff, self.egress_bytes),
        )

    def connections_cost(self, tariff: Tariff) -> Decimal:
        """The same in both models."""
        return connections_cost(tariff, self.hourly_peaks)

    def rate(self, tariff: Tariff, model: Model) -> Decimal:
        """Of one operation."""
        return rate_of(operations_cost(tariff, self.charges.by(model)), self.charges.by(model))

    def saved_without(self, tariff: Tariff, model: Model, charges: Charges) -> Decimal:
        """By how much the bill would be lower if these had not been."""
        all_of_it = self.charges.by(model)
        rest = max(0, all_of_it - charges.by(model))
        return operations_cost(tariff, all_of_it) - operations_cost(tariff, rest)
