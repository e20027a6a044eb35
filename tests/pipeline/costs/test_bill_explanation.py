"""The explanation of a bill: by stage, entity and outage, in both models, and as FOCUS rows that add up to the bill."""

from __future__ import annotations

import datetime as dt
import re
from decimal import Decimal
from typing import TYPE_CHECKING

import pytest

from tests.pipeline.costs.conftest import BACKLOG
from tests.pipeline.costs.recorded_usage import NOON, JournalRecorder, UsageRecorder, usage_row
from twinbus.model.usage import DOCUMENT_TERMS, FAILED_TERMS, OPERATION_TERMS
from twinbus.pipeline.costs.bill import BillingTerms, round_to_cent
from twinbus.pipeline.costs.charges import PARKED_STAGES, Charges, Model, Stage
from twinbus.pipeline.costs.operation_kinds import OPERATION_KINDS, Period, sum_usage
from twinbus.pipeline.costs.report import CostReportSettings, explain
from twinbus.pipeline.costs.server_activity import read_server_activity
from twinbus.pipeline.costs.tariff import read_tariff
from twinbus.pipeline.errors import PipelineError
from twinbus.pipeline.usage import read_usage

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.pipeline.costs.conftest import ExplainedBill, Outage
    from twinbus.pipeline.costs.report import CostReport

TARIFF = read_tariff()
FOCUS = {
    *("AvailabilityZone", "BilledCost", "BillingAccountId", "BillingAccountName", "BillingAccountType"),
    *("BillingCurrency", "BillingPeriodEnd", "BillingPeriodStart", "CapacityReservationId"),
    *("CapacityReservationStatus", "ChargeCategory", "ChargeClass", "ChargeDescription", "ChargeFrequency"),
    *("ChargePeriodEnd", "ChargePeriodStart", "CommitmentDiscountCategory", "CommitmentDiscountId"),
    *("CommitmentDiscountName", "CommitmentDiscountQuantity", "CommitmentDiscountStatus", "CommitmentDiscountType"),
    *("CommitmentDiscountUnit", "ConsumedQuantity", "ConsumedUnit", "ContractedCost", "ContractedUnitPrice"),
    *("EffectiveCost", "InvoiceId", "InvoiceIssuerName", "ListCost", "ListUnitPrice", "PricingCategory"),
    *("PricingCurrency", "PricingCurrencyContractedUnitPrice", "PricingCurrencyEffectiveCost"),
    *("PricingCurrencyListUnitPrice", "PricingQuantity", "PricingUnit", "ProviderName", "PublisherName", "RegionId"),
    *("RegionName", "ResourceId", "ResourceName", "ResourceType", "ServiceCategory", "ServiceName"),
    *("ServiceSubcategory", "SkuId", "SkuMeter", "SkuPriceDetails", "SkuPriceId", "SubAccountId", "SubAccountName"),
    *("SubAccountType", "Tags"),
}
"""The columns of FOCUS 1.2."""


@pytest.fixture
def report(explained: ExplainedBill) -> CostReport:
    return explained.report


def test_a_bill_is_explained_on_the_screen_as_parquet_and_as_a_page(explained: ExplainedBill) -> None:
    output = explained.result.output
    for text in ("contoso/orders", "57 min 00 s", "Usage may be missing", "ended unexpectedly", "$9.81"):
        assert text in output
    assert re.search(r"pings +│ +57 │ +57 │", output)
    assert list(explained.focus.glob("*.parquet"))
    page = explained.page.read_text()
    assert "What it cost" in page
    assert "contoso/x-servicebus-transfer/3" in page


def test_the_four_stages_of_parked_messages_are_separate(report: CostReport) -> None:
    assert {stage: report.stage_charges[stage] for stage in PARKED_STAGES} == {
        Stage.SEND_TO_BACKLOG: Charges(1_010, 1_010),  # ten messages crossed a step of 64 KB when parked
        Stage.RECEIVE_FROM_BACKLOG: Charges(1_010, 2_010),
        Stage.SEND_TO_PRIMARY: Charges(1_000, 1_000),
        Stage.RECEIVE_FROM_PRIMARY: Charges(1_000, 2_000),
    }
    assert (report.parked.messages, report.parked.charges) == (1_000, Charges(4_020, 6_020))


def test_all_other_operations_have_a_stage(report: CostReport) -> None:
    assert report.stage_charges[Stage.NOT_PARKED] == Charges(8_000 + 10 + 20, 12_000 + 10 + 40)
    assert report.not_parked.messages == 4_010
    assert report.stage_charges[Stage.IDLE_SYPHON] == Charges(7, 7)
    assert report.stage_charges[Stage.EMPTY] == Charges(2, 2)
    assert report.stage_charges[Stage.MANAGEMENT] == Charges(0, 2 + 11 + 1)


def test_pings_that_reached_no_server_are_counted_from_journals(report: CostReport) -> None:
    assert report.stage_charges[Stage.PING] == Charges(57, 57)
    assert report.unreceived_pings == 56


def test_an_outage_has_its_duration_and_cost(report: CostReport) -> None:
    (outage,) = report.outages
    assert (outage.namespace, outage.path, outage.client_count, outage.is_over) == ("contoso", "orders", 1, True)
    assert (outage.since, outage.duration) == (NOON + dt.timedelta(minutes=3), dt.timedelta(minutes=57))
    assert (outage.ping_count, outage.parked_count) == (57, 1_000)
    assert outage.charges == Charges(57 + 4_020, 57 + 6_020)
    assert outage.extra_charges == Charges(57 + 2_020, 57 + 3_020)
    assert report.parked_outside_outages == 0


def test_entities_are_ordered_by_cost(report: CostReport) -> None:
    first = report.entities[0]
    assert (first.namespace, first.path, first.sent, first.received) == ("contoso", "orders", 5_000, 5_000)
    assert report.entity_count == len(report.entities) == 7


def test_the_costs_of_the_stages_add_up_to_the_bill(report: CostReport) -> None:
    bills = sum(month.bill(TARIFF, Model.OPERATION).operations for month in report.account.months)
    assert sum(report.stage_costs.values()) == bills


def test_without_journals_the_stages_are_estimated_and_outages_unknown(spark: SparkSession, outage: Outage) -> None:
    report = explain(spark, CostReportSettings(usage_folders=outage.data, terms=BillingTerms(tariff=TARIFF)))
    assert report.account.parked_source == "backlog"
    assert report.stage_charges[Stage.SEND_TO_BACKLOG] == Charges(1_010, 1_010)
    assert report.stage_charges[Stage.SEND_TO_PRIMARY] == Charges(1_010, 1_010)
    assert report.stage_charges[Stage.RECEIVE_FROM_PRIMARY] == Charges(1_010, 2_010)
    assert report.stage_charges[Stage.PING] == Charges(1, 1)
    assert report.outages == ()


def test_c09_sends_missing_after_a_kill_do_not_make_parked_messages_more_expensive(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The server counted half of 1,000 sends before the kill; 200 more were parked. Failed calls are free here."""
    server = UsageRecorder(tmp_path / "data", "contoso")
    server.record_minute(NOON, usage_row("orders", sends=500, send_units=500, failed_sends=9, failed_pings=9))
    received = usage_row("orders", "billing", receives=1_200, receive_units=1_200, settlements=1_200)
    moved = usage_row("orders", "syphon", sends=200, send_units=200)
    server.record_minute(NOON + dt.timedelta(minutes=1), moved, received)
    shop, syphon = JournalRecorder(tmp_path / "journals", "shop"), JournalRecorder(tmp_path / "journals", "syphon")
    shop.add_row(NOON, "sent", kind="send", count=1_000)
    shop.add_row(NOON, "pinged", reason="TimedOut: no answer")
    shop.write_file()
    syphon.add_row(NOON + dt.timedelta(minutes=1), "moved back", backlog_queue=BACKLOG, count=200)
    syphon.write_file()
    terms = BillingTerms(tariff=TARIFF, bills_failed=False)
    settings = CostReportSettings(
        usage_folders=[str(tmp_path / "data")], journal_folders=[str(tmp_path / "journals")], terms=terms
    )
    stages = explain(spark, settings).stage_charges
    assert stages[Stage.PING] == Charges()
    assert stages[Stage.NOT_PARKED] == Charges(500 + 1_000, 500 + 2_000)
    assert stages[Stage.SEND_TO_PRIMARY] == Charges(200, 200)
    assert stages[Stage.RECEIVE_FROM_PRIMARY] == Charges(200, 400)


def test_a_process_that_ended_unexpectedly_is_named(report: CostReport) -> None:
    (gap,) = report.account.server_activity.gaps
    assert str(gap) == (
        "contoso-backup, process 0, life 5f1c: ended unexpectedly in the minute from 2026-10-31 13:01 UTC: "
        "up to a second of usage is missing after a kill, and up to a minute after a power cut"
    )


def test_a_live_process_is_no_gap_and_unwritten_minutes_are(spark: SparkSession, tmp_path: Path) -> None:
    now = NOON + dt.timedelta(minutes=11)
    UsageRecorder(tmp_path, "contoso").record_minute(now, usage_row("orders", sends=1, send_units=1))
    server = UsageRecorder(tmp_path, "contoso", process=1, life="77aa")
    server.record_minute(NOON, usage_row("orders", sends=1, send_units=1))
    server.record_minute(NOON + dt.timedelta(minutes=9), mark="lost")
    server.end(NOON + dt.timedelta(minutes=10))
    (gap,) = read_server_activity(sum_usage(read_usage(spark, [tmp_path]), Period.DAY), now).gaps
    assert "life 77aa: could not write for a while: minutes before 2026-10-31 12:09 UTC are missing" in str(gap)


def test_connection_peaks_are_summed_over_all_processes(spark: SparkSession, tmp_path: Path) -> None:
    for process, counts in enumerate([(5, 1, 7), (1, 6, 7)]):
        server = UsageRecorder(tmp_path, "contoso", process=process, life=f"life{process}")
        for minute, connections in zip((0, 1, 60), counts, strict=True):
            server.record_minute(NOON + dt.timedelta(minutes=minute), connections=connections)
        server.end(NOON + dt.timedelta(minutes=61))
    activity = read_server_activity(sum_usage(read_usage(spark, [tmp_path]), Period.DAY), NOON)
    assert activity.hourly_connection_peaks == {dt.date(2026, 10, 1): 7 + 14}
    assert activity.process_count == 2


def test_focus_rows_add_up_to_the_bills_to_the_cent(spark: SparkSession, tmp_path: Path) -> None:
    server = UsageRecorder(tmp_path / "data", "contoso")
    october, november = NOON, NOON + dt.timedelta(days=1)
    for when, millions in ((october, 50), (november, 150)):
        # An odd number, so that the average cost of an operation is not a round number.
        rest = millions * 1_000_000 - 7_777_777
        rows = [
            usage_row("orders", sends=1, send_units=rest),
            usage_row("invoices", "till", sends=1, send_units=7_777_777),
        ]
        received = usage_row(
            "contoso/x-servicebus-transfer/0", "syphon", receive_bytes=3 * 2**30, settlements=1_000_000
        )
        server.record_minute(when, *rows, received, connections=2_000)
    server.end(november + dt.timedelta(minutes=1))
    focus_folder = str(tmp_path / "focus")
    terms = BillingTerms(tariff=TARIFF, model=Model.DOCUMENT)
    report = explain(
        spark, CostReportSettings(usage_folders=[str(tmp_path / "data")], terms=terms, parquet_folder=focus_folder)
    )
    months = report.account.months
    assert [month.bill(TARIFF, Model.DOCUMENT).operations for month in months] == [Decimal("29.60"), Decimal("94.60")]
    assert [month.bill(TARIFF, Model.OPERATION).operations for month in months] == [Decimal("30.40"), Decimal("95.10")]
    costs = ("BilledCost", "x_DocumentCost", "x_OperationCost")
    summed = spark.read.parquet(focus_folder).groupBy("BillingPeriodStart").sum(*costs).collect()
    focus_totals = {row[0].date(): [round_to_cent(amount) for amount in row[1:]] for row in summed}
    models = (Model.DOCUMENT, Model.DOCUMENT, Model.OPERATION)
    assert focus_totals == {
        month.first_day: [round_to_cent(month.bill(TARIFF, model).total) for model in models] for month in months
    }


def test_c12_focus_rows_have_the_columns_of_the_specification(spark: SparkSession, explained: ExplainedBill) -> None:
    rows = spark.read.parquet(str(explained.focus))
    assert {
        *("BilledCost", "EffectiveCost", "ListCost", "ContractedCost", "BillingCurrency", "BillingPeriodStart"),
        *("ConsumedQuantity", "ConsumedUnit", "PricingQuantity", "PricingUnit", "ChargePeriodStart", "ChargePeriodEnd"),
        *("ChargeCategory", "ChargeDescription", "ServiceName", "ServiceCategory", "ResourceId", "ProviderName"),
    } <= set(rows.columns)
    own_columns = [name for name in rows.columns if name.startswith("x_")]
    assert {*rows.columns} - {*own_columns} <= FOCUS, "columns outside the specification start with x_"
    assert {"x_Stage", "x_Client", "x_DocumentQuantity", "x_OperationQuantity", "x_ParkedQuantity"} <= set(own_columns)
    usage = rows.where("SkuId = 'standard-operations'")
    sent = usage.where("ResourceId = 'contoso/orders' AND x_Kind = 'send' AND x_Client = 'syphon'").collect()
    (row,) = sent
    assert (row.ConsumedQuantity, row.x_ParkedQuantity, row.PricingQuantity) == (1_000, 1_000, Decimal("0.001")), (
        "all messages that a syphon sends were parked"
    )
    assert row.ChargePeriodEnd - row.ChargePeriodStart == dt.timedelta(days=1)
    assert {sku.SkuId for sku in rows.select("SkuId").distinct().collect()} == {
        "standard-operations",
        "standard-base",
        "standard-connections",
        "egress",
    }


def test_an_existing_folder_is_not_overwritten(spark: SparkSession, outage: Outage, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="already exists"):
        explain(
            spark,
            CostReportSettings(
                usage_folders=outage.data, terms=BillingTerms(tariff=TARIFF), parquet_folder=str(tmp_path)
            ),
        )


def test_a_period_without_usage_is_an_error(spark: SparkSession, outage: Outage) -> None:
    terms = BillingTerms(tariff=TARIFF, since=NOON + dt.timedelta(days=300))
    with pytest.raises(PipelineError, match="no usage was counted in this period"):
        explain(spark, CostReportSettings(usage_folders=outage.data, terms=terms))


def test_each_charged_column_belongs_to_one_kind_of_operation() -> None:
    assert sorted(name for kind in OPERATION_KINDS for name in kind.document_columns) == sorted(DOCUMENT_TERMS)
    assert sorted(name for kind in OPERATION_KINDS for name in kind.operation_columns) == sorted(OPERATION_TERMS)
    assert sorted(name for kind in OPERATION_KINDS for name in kind.failed_columns) == sorted(FAILED_TERMS)
