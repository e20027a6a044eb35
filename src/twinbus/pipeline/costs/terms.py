"""What a bill is made by, and the settings of Spark that such a job wants. Neither needs Spark to be there."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Final

from twinbus.pipeline.costs.charges import Model
from twinbus.pipeline.costs.kinds import Period

if TYPE_CHECKING:
    import datetime as dt

    from twinbus.pipeline.costs.tariff import Tariff

SETTINGS: Final = {
    "spark.driver.memory": "2g",
    # What is left after the first sum is small: more partitions would cost more than they carry.
    "spark.sql.shuffle.partitions": "8",
    # Hours are small files, and there are thousands of them: many are read in one task.
    "spark.sql.files.openCostInBytes": "1048576",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Of one bill."""

    tariff: Tariff
    model: Model = Model.OPERATION
    bills_failed: bool = True
    egress: Decimal = Decimal(0)
    """Per cent of what applications receive that leaves the region. What a syphon receives always does."""
    period: Period = Period.DAY
    since: dt.datetime | None = None
    until: dt.datetime | None = None
