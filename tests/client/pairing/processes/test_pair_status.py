"""`twinbus pair status` on a real pair: healthy, in an outage of the primary, and with all applications closed."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.support.cli import pair_status
from tests.support.in_process_server import run_server_in_process
from tests.support.server_pair import OPERATION_TIMEOUT_S, connection_string, create_queue, paired_application
from tests.support.server_process import ServerProcess
from twinbus.client import BrokeredMessage, MessagingFactory
from twinbus.client.errors import ConnectionFailed

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.server_pair import Application
    from twinbus.client.pairing import PairingStatus

PING_S: Final = 60.0
ORDERS, NEWS = 30, 8
SHOP: Final = "shop"
"""The client id of two applications, which are shown as two senders."""
OTHER: Final = "stock"


@dataclass
class Screens:
    """The output of the command at several moments, and the status that an application returned itself."""

    healthy: str = ""
    outage: str = ""
    wide: str = ""
    as_json: dict[str, Any] = field(default_factory=dict)
    own_status: PairingStatus | None = None
    oldest: dt.datetime | None = None
    one_ended: str = ""
    all_ended: str = ""


def factory(primary: ServerProcess, client_id: str) -> MessagingFactory:
    return MessagingFactory.from_connection_string(
        connection_string(primary), operation_timeout=OPERATION_TIMEOUT_S, client_id=client_id
    )


async def run_scenario(primary: ServerProcess, secondary: ServerProcess) -> Screens:
    """Run three applications and kill the primary: one parks, one becomes suspect, one does not send."""
    screens = Screens()
    await create_queue(primary, "orders")
    options: dict[str, Any] = {"ping_primary_interval": PING_S}
    async with paired_application(primary, secondary, factory=factory(primary, SHOP), **options) as shop:
        idle = paired_application(primary, secondary, factory=factory(primary, SHOP), **options)
        stock = paired_application(primary, secondary, factory=factory(primary, OTHER), failover_interval=60, **options)
        async with idle, stock as other:
            await shop.send("before")
            await wait_until_shown(secondary, 3)
            screens.healthy = await pair_status(secondary)
            primary.kill()
            await park(shop)
            with pytest.raises(ConnectionFailed):
                await other.send("not parked: the failover interval has only begun")
            await asyncio.sleep(1.2)  # so that ages are at least a second
            screens.own_status = await shop.pairing.status()
            screens.oldest = min(message.enqueued_time_utc for message in await shop.parked_messages())
            screens.outage = await pair_status(secondary)
            screens.wide = await pair_status(secondary, columns=200)
            screens.as_json = json.loads(await pair_status(secondary, "--json"))
        screens.one_ended = await pair_status(secondary)
    screens.all_ended = await pair_status(secondary)
    return screens


async def wait_until_shown(secondary: ServerProcess, count: int) -> None:
    async with asyncio.timeout(10):
        while f": {count} sender" not in await pair_status(secondary):  # noqa: ASYNC110  # another thread reports
            await asyncio.sleep(0.05)


async def park(shop: Application) -> None:
    """Park messages for two entities from several clients, each of which chooses its own backlog queue."""
    topics = [shop.factory.create_topic_client("news") for _ in range(NEWS)]
    for number in range(ORDERS):
        await shop.send(f"order {number}")
    for topic in topics:
        await topic.send(BrokeredMessage("news"))


@pytest.fixture(scope="module")
def screens(tmp_path_factory: pytest.TempPathFactory) -> Screens:
    folder: Path = tmp_path_factory.mktemp("status")
    (folder / "primary").mkdir()
    (folder / "secondary").mkdir()
    primary = ServerProcess(folder / "primary")
    primary.start()
    try:
        with run_server_in_process(folder / "secondary") as secondary:
            return asyncio.run(run_scenario(primary, secondary))
    finally:
        primary.kill()


def on_one_line(text: str) -> str:
    """Join the lines, which a narrow terminal breaks anywhere."""
    return " ".join(text.split())


def test_every_live_sender_is_shown_while_all_entities_are_healthy(screens: Screens) -> None:
    assert screens.healthy.startswith("contoso: 3 senders, no message parked\n")
    sender = re.compile(r"^  (shop|stock)  1 entity healthy, host \S+, pid \d+, reported \d+ s ago$", re.MULTILINE)
    assert sender.findall(screens.healthy) == ["shop", "shop", "stock"]


def test_x02_each_entity_is_shown_with_its_state_reason_start_and_next_ping(screens: Screens) -> None:
    assert screens.own_status is not None
    assert screens.outage.startswith("contoso: 3 senders (1 failed over), 38 messages parked, the oldest for ")
    for entity in screens.own_status.entities:
        shown = re.search(
            rf"{entity.path} failed over for (\d+) s, since ([-\d]+ [:\d]+) UTC, next ping in (\d+) s (.*?)(?:  |$)",
            on_one_line(screens.outage),
        )
        assert shown is not None
        since = dt.datetime.fromisoformat(f"{shown[2]}+00:00")
        assert abs((since - entity.since).total_seconds()) < 1.1
        assert 1 <= int(shown[1]) <= 10
        assert entity.next_ping is not None
        left_s = (entity.next_ping - screens.own_status.at).total_seconds()
        assert left_s - 10 < int(shown[3]) <= left_s < PING_S
        assert entity.why is not None
        assert on_one_line(shown[4]).startswith(entity.why)
    assert re.search(
        r"stock .* orders suspect for \d+ s, since [^,]* UTC \S+ cannot be reached", on_one_line(screens.outage)
    )
    assert len(re.findall(r"shop  1 entity healthy", screens.outage)) == 1, (
        "this sender has not sent, and knows of no outage"
    )


def test_x03_the_backlog_is_shown_with_counts_by_entity_and_ages(screens: Screens) -> None:
    for screen in (screens.outage, screens.wide, screens.one_ended, screens.all_ended):
        assert "38 messages parked, the oldest for " in screen.splitlines()[0]
        assert re.search(rf"^ orders +{ORDERS} +[1-9][0-9]* s $", screen, re.MULTILINE)
        assert re.search(rf"^ news +{NEWS} +[1-9][0-9]* s $", screen, re.MULTILINE)
    queues = screens.as_json["backlog_queues"]
    assert sum(queue["parked"] for queue in queues) == ORDERS + NEWS
    assert screens.oldest is not None
    oldest = min(dt.datetime.fromisoformat(queue["oldest"]) for queue in queues if queue["oldest"])
    assert oldest == screens.oldest, "the enqueued time of the oldest message in its queue"
    for queue in queues:
        if queue["parked"]:
            row = rf"^ {queue['path']} +{queue['parked']} +0 +[1-9][0-9]* s $"
            assert re.search(row, screens.outage, re.MULTILINE)


def test_a_sender_that_has_closed_is_not_shown(screens: Screens) -> None:
    assert screens.one_ended.startswith("contoso: 1 sender (1 failed over), ")
    assert OTHER not in screens.one_ended
    assert screens.all_ended.startswith("contoso: no live sender, ")


def test_the_output_fits_in_80_columns_and_uses_more_if_there_are_more(screens: Screens) -> None:
    for screen in (screens.healthy, screens.outage, screens.all_ended):
        assert max(len(line.rstrip()) for line in screen.splitlines()) <= 80
    assert len(screens.wide.splitlines()) < len(screens.outage.splitlines())


def test_the_json_output_has_the_reports_of_senders_and_the_backlog_queues(screens: Screens) -> None:
    assert set(screens.as_json) == {"now", "senders", "backlog_queues"}
    states = {
        (sender["client"], entity["path"]): entity["state"]
        for sender in screens.as_json["senders"]
        for entity in sender["entities"]
    }
    assert states == {(SHOP, "orders"): "failed over", (SHOP, "news"): "failed over", (OTHER, "orders"): "suspect"}
    assert len({sender["instance"] for sender in screens.as_json["senders"]}) == 3
