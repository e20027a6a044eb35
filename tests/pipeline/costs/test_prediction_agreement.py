"""X05: the predicted bill of an outage equals the explained bill of a real one, in both models."""

from __future__ import annotations

import asyncio
import dataclasses
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.relay import Relay
from tests.support.server_pair import TIMEOUT_S, connection_string, paired_application, run_server_pair
from twinbus.client import MessagingFactory
from twinbus.client.pairing import EventKind
from twinbus.pipeline.costs.bill import BillingTerms, round_to_cent
from twinbus.pipeline.costs.charges import PARKED_STAGES, Charges, Model, Stage, sum_charges
from twinbus.pipeline.costs.report import CostReportSettings, explain
from twinbus.pipeline.costs.setup import Setup, Traffic
from twinbus.pipeline.costs.tariff import read_tariff
from twinbus.pipeline.costs.what_if import predict

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.support.server_process import ServerProcess
    from twinbus.pipeline.costs.report import CostReport

DIRECT, PARKED, PINGS = 18, 12, 3
TARIFF = dataclasses.replace(read_tariff(), included_operations=0)
"""A tariff without included operations: every operation costs something."""
SETUP = Setup(
    days=1,
    queues=1,
    poll_minutes=1_440,  # one poll: the outage ends it, and messages follow the outage
    outage_minutes=(Decimal(PINGS) / 60,),
    ping_seconds=1,
    missing_queues=1,
    traffic=(Traffic(messages=DIRECT + PARKED, parked=Decimal(100 * PARKED) / (DIRECT + PARKED)),),
)


async def run_outage(folder: Path) -> list[str]:
    """Cut the primary off from an application that hosts the syphon; return the data folders of both servers."""
    config = folder / "twinbus.toml"
    config.write_text('[[queues]]\nname = "orders"\n')  # the queue exists from the start, without a management call
    async with (
        run_server_pair(folder, primary_options=[f"--config={config}"], queue=None) as (primary, secondary),
        Relay(primary.host, primary.amqp_port) as relay,
    ):
        options: dict[str, Any] = {"enable_syphon": True, "backlog_queue_count": 1, "journal_dir": folder / "journals"}
        async with paired_application(primary, secondary, port=relay.port, **options) as app:
            assert app.pairing.syphon is not None
            (pump,) = app.pairing.syphon.pumps
            await app.wait_until(lambda: pump.is_active)
            await app.send(*[f"direct {number}" for number in range(DIRECT)])
            relay.cut()
            await app.send(*[f"parked {number}" for number in range(PARKED)])
            await app.wait_for_event(EventKind.PINGED, PINGS - 1)
            await relay.restore()
            await app.wait_for_event(EventKind.RESTORED)
            await app.wait_for_event(EventKind.MOVED, PARKED)
            assert len(app.events_of(EventKind.PARKED)) == PARKED
        await receive(primary, DIRECT + PARKED)
        for server in (primary, secondary):
            await asyncio.to_thread(server.stop)
    return [str(folder / name / "data") for name in ("contoso", "contoso-backup")]


async def receive(server: ServerProcess, count: int) -> None:
    async with MessagingFactory.from_connection_string(connection_string(server)) as factory:
        receiver = factory.create_message_receiver("orders", prefetch=0)
        for _ in range(count):
            message = await receiver.receive(TIMEOUT_S)
            assert message is not None
            await receiver.complete(message)
        await receiver.close()


@pytest.fixture(scope="module")
def report(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> CostReport:
    folder = tmp_path_factory.mktemp("agreement")
    data = asyncio.run(run_outage(folder))
    return explain(
        spark,
        CostReportSettings(
            usage_folders=data, journal_folders=[str(folder / "journals")], terms=BillingTerms(tariff=TARIFF)
        ),
    )


def test_x05_the_bill_of_a_real_outage_equals_the_prediction(report: CostReport) -> None:
    prediction = predict(SETUP, TARIFF)
    (month,) = report.account.months
    assert month.charges == prediction.pair.charges
    for model in Model:
        bill, predicted = month.bill(TARIFF, model), prediction.pair.bills[model]
        assert bill.operations == predicted.operations > 0
        assert (bill.base, bill.connections) == (predicted.base, predicted.connections)
        assert round_to_cent(bill.total) == round_to_cent(predicted.total)


def test_x05_the_charges_of_each_stage_equal_the_prediction(report: CostReport) -> None:
    predicted = predict(SETUP, TARIFF).stages
    assert report.stage_charges == predicted


def test_r080_r082_x05_a_real_outage_costs_four_charges_and_six_operations_a_message_and_one_a_ping(
    report: CostReport,
) -> None:
    assert [report.stage_charges[stage] for stage in PARKED_STAGES] == [
        Charges(PARKED, PARKED),
        Charges(PARKED, 2 * PARKED),
        Charges(PARKED, PARKED),
        Charges(PARKED, 2 * PARKED),
    ]
    assert (report.parked.messages, report.parked.charges) == (PARKED, Charges(4 * PARKED, 6 * PARKED))
    assert report.stage_charges[Stage.PING] == Charges(PINGS, PINGS)
    (outage,) = report.outages
    assert (outage.ping_count, outage.parked_count) == (PINGS, PARKED)
    assert outage.charges == sum_charges({stage: report.stage_charges[stage] for stage in (*PARKED_STAGES, Stage.PING)})
