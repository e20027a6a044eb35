"""X06: an outage is rehearsed with real senders, by the commands of docs/rehearsing.md."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.support.cli import run_twinbus_process
from tests.support.in_process_server import run_server_in_process
from tests.support.server_pair import OPERATION_TIMEOUT_S, connection_string, create_queue, paired_application
from twinbus.client import MessagingFactory
from twinbus.client.pairing import EventKind
from twinbus.model.errors import ServiceBusError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.support.server_pair import Application
    from tests.support.server_process import ServerProcess

PAGE: Final = Path(__file__).parents[4] / "docs" / "rehearsing.md"
OUTAGE_S: Final = 3
LONG_S: Final = 600.0


def commands(primary: ServerProcess, secondary: ServerProcess) -> list[list[str]]:
    """The commands of the page, with a shorter outage and ready files, which servers in this process lack."""
    for server in (primary, secondary):
        strings = {"connection_string": server.admin_connection_string, "ca_file": server.ca_file}
        Path(server.ready_file).write_text(json.dumps(strings))
    (example,) = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    replacements = {
        "60": str(OUTAGE_S),
        "contoso.json": str(primary.ready_file),
        "contoso-backup.json": str(secondary.ready_file),
    }
    lines = [shlex.split(line) for line in example.splitlines()]
    return [[replacements.get(word, word) for word in line[1:]] for line in lines]


@contextlib.asynccontextmanager
async def sending(app: Application) -> AsyncIterator[None]:
    """Send a message ten times a second, and ignore errors."""

    async def send() -> None:
        while True:
            with contextlib.suppress(ServiceBusError):
                await app.send("an order")
            await asyncio.sleep(0.1)

    task = asyncio.ensure_future(send())
    try:
        yield
    finally:
        task.cancel()


async def test_x06_a_rehearsal_reports_which_senders_failed_over_and_which_recovered(
    tmp_path: Path,
) -> None:
    for name in ("primary", "secondary"):
        (tmp_path / name).mkdir()

    def factory(client_id: str) -> MessagingFactory:
        return MessagingFactory.from_connection_string(
            connection_string(primary), operation_timeout=OPERATION_TIMEOUT_S, client_id=client_id
        )

    with (
        run_server_in_process(tmp_path / "primary") as primary,
        run_server_in_process(tmp_path / "secondary") as secondary,
    ):
        await create_queue(primary, "orders")
        rehearse, status = commands(primary, secondary)
        async with (
            paired_application(primary, secondary, factory=factory("shop")) as shop,
            paired_application(primary, secondary, factory=factory("patient"), failover_interval=LONG_S) as patient,
            paired_application(primary, secondary, factory=factory("idle")),
            paired_application(primary, secondary, factory=factory("ending"), ping_primary_interval=25) as ending,
        ):
            async with sending(shop), sending(patient), sending(ending):
                loop = asyncio.get_running_loop()
                started_s, rehearsing = loop.time(), asyncio.ensure_future(run_twinbus_process(*rehearse))
                await ending.wait_for_event(EventKind.FAILED_OVER)
                await asyncio.sleep(1.5)  # so that the command sees the failover
                await ending.pairing.close()
                output = await rehearsing
                took_s = loop.time() - started_s
            shown = await run_twinbus_process(*status)
    lines = [line.rstrip() for line in output.splitlines()]
    assert "4 senders reported: 2 failed over, 1 became suspect and did not fail over, 1" in lines[0]
    histories = {
        client: lines[number + 1] for number, client in enumerate(line.strip() for line in lines) if " " not in client
    }
    assert set(histories) == {"shop", "patient", "ending"}
    failed, back = map(int, re.findall(r"failed over after (\d+) s, healthy again after (\d+) s", histories["shop"])[0])
    assert failed < OUTAGE_S <= back
    assert re.search(r"orders  suspect after \d s, did not fail over, healthy again after \d+ s", histories["patient"])
    assert re.search(r"orders  failed over after \d s, the sender ended after \d s", histories["ending"])
    assert took_s < OUTAGE_S + 30, (
        "the command does not wait for a sender that has closed, nor for one that is only suspect"
    )
    assert "an outage is rehearsed until" in " ".join(output.split())
    assert "contoso: 3 senders, " in shown
    assert max(map(len, lines)) <= 80
