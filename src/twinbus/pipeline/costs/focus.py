"""Charges as FOCUS rows, the format that cloud cost tools read (FinOps Open Cost and Usage Specification, 1.2).

Owns the columns and their values; custom columns begin with `x_`. A row is the charge for one kind of operation of one
client on one entity in a period. Each month has other rows for the base charge, connections, and data that left the
region.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions

from twinbus.pipeline.costs.bill import MILLION
from twinbus.pipeline.costs.operation_kinds import Period

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from twinbus.pipeline.costs.bill import MonthlyUsage
    from twinbus.pipeline.costs.billing_account import BillingAccount
    from twinbus.pipeline.costs.tariff import Tariff

VERSION: Final = "1.2"
_COST_TYPE: Final = "decimal(38,18)"
_QUANTITY_TYPE: Final = "decimal(38,12)"
_QUANTITY_STEP: Final = Decimal(1).scaleb(-12)
_COST_STEP: Final = Decimal(1).scaleb(-18)
_PERIOD_INTERVALS: Final = {Period.DAY: "INTERVAL 1 DAY", Period.HOUR: "INTERVAL 1 HOUR"}
COLUMNS: Final = {
    "BilledCost": _COST_TYPE,
    "BillingAccountId": "string",
    "BillingAccountName": "string",
    "BillingCurrency": "string",
    "BillingPeriodEnd": "timestamp",
    "BillingPeriodStart": "timestamp",
    "ChargeCategory": "string",
    "ChargeClass": "string",
    "ChargeDescription": "string",
    "ChargeFrequency": "string",
    "ChargePeriodEnd": "timestamp",
    "ChargePeriodStart": "timestamp",
    "ConsumedQuantity": _QUANTITY_TYPE,
    "ConsumedUnit": "string",
    "ContractedCost": _COST_TYPE,
    "EffectiveCost": _COST_TYPE,
    "InvoiceIssuerName": "string",
    "ListCost": _COST_TYPE,
    "ListUnitPrice": _COST_TYPE,
    "PricingCategory": "string",
    "PricingQuantity": _QUANTITY_TYPE,
    "PricingUnit": "string",
    "ProviderName": "string",
    "PublisherName": "string",
    "ResourceId": "string",
    "ResourceName": "string",
    "ResourceType": "string",
    "ServiceCategory": "string",
    "ServiceName": "string",
    "ServiceSubcategory": "string",
    "SkuId": "string",
    "SubAccountId": "string",
    "x_Bytes": "bigint",
    "x_Client": "string",
    "x_DocumentCost": _COST_TYPE,
    "x_DocumentQuantity": "bigint",
    "x_Kind": "string",
    "x_Messages": "bigint",
    "x_Model": "string",
    "x_OperationCost": _COST_TYPE,
    "x_OperationQuantity": "bigint",
    "x_ParkedQuantity": _QUANTITY_TYPE,
    "x_Source": "string",
    "x_Stage": "string",
    "x_Tariff": "string",
}
SCHEMA: Final = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())


def focus_rows(account: BillingAccount) -> DataFrame:
    """Return all charges to an account. The costs in a month add up to the month's bill."""
    spark = account.rows.sparkSession
    return _operation_rows(account).unionByName(_egress_rows(account)).unionByName(_monthly_rows(spark, account))


def _operation_rows(account: BillingAccount) -> DataFrame:
    model = account.terms.model.value
    cost = functions.col(f"{model}_cost").cast(_COST_TYPE)
    month = functions.col(f"{model}_rate") * MILLION
    values = {
        **_common_columns(account),
        **_cost_columns(cost),
        **_period_columns(account),
        **_resource_columns(),
        "ChargeCategory": functions.lit("Usage"),
        "ChargeDescription": functions.expr("concat(stage, ': ', kind, ' at ', namespace, '/', entity)"),
        "ChargeFrequency": functions.lit("Usage-Based"),
        "ConsumedQuantity": functions.col(model),
        "ConsumedUnit": functions.lit("Operations"),
        "ListUnitPrice": month,
        "PricingCategory": functions.lit("Standard"),
        "PricingQuantity": functions.expr(f"CAST({model} AS decimal(18,0)) / {MILLION}"),
        "PricingUnit": functions.lit("1000000 Operations"),
        "SkuId": functions.lit("standard-operations"),
        "x_Bytes": functions.col("bytes"),
        "x_Client": functions.col("client"),
        "x_DocumentCost": functions.col("document_cost"),
        "x_DocumentQuantity": functions.col("document"),
        "x_Kind": functions.col("kind"),
        "x_Messages": functions.col("messages"),
        "x_OperationCost": functions.col("operation_cost"),
        "x_OperationQuantity": functions.col("operation"),
        "x_ParkedQuantity": functions.col(model) * functions.col("parked"),
        "x_Source": functions.col("source"),
        "x_Stage": functions.col("stage"),
    }
    return _select_columns(account.rows, values)  # also rows that only the other model charges


def _egress_rows(account: BillingAccount) -> DataFrame:
    """Return rows for data that left the region."""
    tariff = account.terms.tariff
    rate = (tariff.egress_per_gb / tariff.bytes_per_gb).quantize(_COST_STEP)
    cost = functions.expr(f"CAST(egress_bytes AS decimal(18,0)) * CAST('{rate:f}' AS decimal(19,18))")
    size = functions.expr(f"CAST(egress_bytes AS decimal(18,0)) / CAST({tariff.bytes_per_gb} AS decimal(13,0))")
    values = {
        **_common_columns(account),
        **_cost_columns(cost),
        **_period_columns(account),
        **_resource_columns(),
        "ChargeCategory": functions.lit("Usage"),
        "ChargeDescription": functions.expr("concat('data that left the region, from ', namespace, '/', entity)"),
        "ChargeFrequency": functions.lit("Usage-Based"),
        "ConsumedQuantity": size,
        "ConsumedUnit": functions.lit("GB"),
        "ListUnitPrice": functions.lit(tariff.egress_per_gb),
        "PricingCategory": functions.lit("Standard"),
        "PricingQuantity": size,
        "PricingUnit": functions.lit("GB"),
        "SkuId": functions.lit("egress"),
        "x_Bytes": functions.col("egress_bytes"),
        "x_Client": functions.col("client"),
        "x_DocumentCost": cost,
        "x_OperationCost": cost,
        "x_Kind": functions.lit("egress"),
        "x_Source": functions.col("source"),
        "x_Stage": functions.col("stage"),
    }
    return _select_columns(account.rows.where("egress_bytes > 0"), values)


def _monthly_rows(spark: SparkSession, account: BillingAccount) -> DataFrame:
    tariff = account.terms.tariff
    charges = [row for month in account.months for row in _charges_of_month(month, tariff)]
    columns = (
        "month date, until date, sku string, what string, category string, cost decimal(38,18), quantity decimal(38,12)"
    )
    rows = spark.createDataFrame(charges, columns)
    cost = functions.col("cost")
    is_base = functions.expr("sku = 'standard-base'")
    values = {
        **_common_columns(account),
        **_cost_columns(cost),
        "BillingPeriodStart": functions.col("month"),
        "BillingPeriodEnd": functions.col("until"),
        "ChargePeriodStart": functions.col("month"),
        "ChargePeriodEnd": functions.col("until"),
        "ChargeCategory": functions.col("category"),
        "ChargeDescription": functions.col("what"),
        "ChargeFrequency": functions.when(is_base, "Recurring").otherwise("Usage-Based"),
        "ConsumedQuantity": functions.when(~is_base, functions.col("quantity")),
        "ConsumedUnit": functions.when(~is_base, "Connections"),
        "PricingCategory": functions.lit("Standard"),
        "PricingQuantity": functions.col("quantity"),
        "PricingUnit": functions.when(is_base, "Months").otherwise("Connections"),
        "SkuId": functions.col("sku"),
        "x_DocumentCost": cost,
        "x_OperationCost": cost,
        "x_Kind": functions.col("sku"),
        "x_Source": functions.lit("servers"),
    }
    return _select_columns(rows, values)


def _charges_of_month(month: MonthlyUsage, tariff: Tariff) -> list[tuple[object, ...]]:
    period = (month.first_day, month.end_day)
    base = (tariff.base_per_month.quantize(_COST_STEP), Decimal(1))
    rows: list[tuple[object, ...]] = [(*period, "standard-base", "base charge of the month", "Purchase", *base)]
    if month.hourly_connection_peaks:
        average = (Decimal(month.hourly_connection_peaks) / tariff.hours_per_month).quantize(_QUANTITY_STEP)
        cost = month.connections_cost(tariff).quantize(_COST_STEP)
        description = f"connections, by their hourly peaks; {tariff.included_connections:,} are included"
        rows.append((*period, "standard-connections", description, "Usage", cost, average))
    return rows


def _common_columns(account: BillingAccount) -> dict[str, Column]:
    tariff = account.terms.tariff
    return {
        "BillingAccountId": functions.lit("twinbus"),
        "BillingAccountName": functions.lit("all namespaces"),
        "BillingCurrency": functions.lit(tariff.currency),
        "InvoiceIssuerName": functions.lit("Microsoft"),
        "ProviderName": functions.lit("Microsoft"),
        "PublisherName": functions.lit("Microsoft"),
        "ServiceCategory": functions.lit("Integration"),
        "ServiceName": functions.lit("Service Bus"),
        "ServiceSubcategory": functions.lit("Messaging"),
        "x_Model": functions.lit(account.terms.model.value),
        "x_Tariff": functions.lit(f"{tariff.name}, {tariff.date}"),
    }


def _cost_columns(cost: Column) -> dict[str, Column]:
    """Return all cost columns with the same value, because there are no discounts or commitments."""
    return dict.fromkeys(("BilledCost", "ContractedCost", "EffectiveCost", "ListCost"), cost)


def _period_columns(account: BillingAccount) -> dict[str, Column]:
    return {
        "BillingPeriodStart": functions.col("month"),
        "BillingPeriodEnd": functions.expr("month + INTERVAL 1 MONTH"),
        "ChargePeriodStart": functions.col("period"),
        "ChargePeriodEnd": functions.expr(f"period + {_PERIOD_INTERVALS[account.terms.period]}"),
    }


def _resource_columns() -> dict[str, Column]:
    return {
        "ResourceId": functions.expr("IF(entity = '', namespace, concat(namespace, '/', entity))"),
        "ResourceName": functions.expr("IF(entity = '', namespace, entity)"),
        "ResourceType": functions.expr("IF(entity = '', 'Namespace', 'Entity')"),
        "SubAccountId": functions.col("namespace"),
    }


def _select_columns(rows: DataFrame, values: dict[str, Column]) -> DataFrame:
    """Select all columns in order. Columns without a value are null."""
    null = functions.lit(None)
    return rows.select(*[values.get(name, null).cast(kind).alias(name) for name, kind in COLUMNS.items()])
