"""Reports produced by real paired clients, in any state, as input of tests.

    report_of("shop", failed_over=("orders",))

Runs a paired client in memory and in virtual time, and returns copies of its report.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import json
import threading
import uuid
from typing import TYPE_CHECKING, Any, Final

from tests.support.paired_application import paired_application
from twinbus.client import BrokeredMessage
from twinbus.client.errors import ConnectionFailed
from twinbus.testing import InMemoryPair, run

if TYPE_CHECKING:
    from collections.abc import Sequence

INSTANCE: Final = uuid.UUID(int=7).hex
"""The same instance for every client, so that successive reports belong to one client."""


def report_of(
    client: str, *, failed_over: Sequence[str] = (), suspect: Sequence[str] = (), ping_interval_s: float = 60
) -> dict[str, Any]:
    """The report of a client with that name, with these entities failed over or suspect."""
    report = _report(tuple(failed_over), tuple(suspect), ping_interval_s)
    return {**copy.deepcopy(report), "client": client, "instance": INSTANCE}


@functools.cache
def _report(failed_over: tuple[str, ...], suspect: tuple[str, ...], ping_interval_s: float) -> dict[str, Any]:
    reports: list[str] = []
    # On a separate thread, since the test may run an event loop on this one.
    thread = threading.Thread(target=lambda: reports.append(run(_run_client(failed_over, suspect, ping_interval_s))))
    thread.start()
    thread.join()
    return dict(json.loads(reports[0]))


async def _run_client(failed_over: tuple[str, ...], suspect: tuple[str, ...], ping_interval_s: float) -> str:
    async with (
        InMemoryPair() as namespaces,
        paired_application(namespaces, failover_interval=10, ping_primary_interval=ping_interval_s) as app,
    ):
        await namespaces.primary.create_queue("fine")
        await app.queue_client("fine").send(BrokeredMessage("apples"))
        namespaces.primary.outage.stop()
        for paths, wait_s in ((failed_over, 10.1), (suspect, 0.0)):
            for path in paths:
                try:
                    await app.queue_client(path).send(BrokeredMessage("pears"))
                except ConnectionFailed:
                    continue
            await asyncio.sleep(wait_s)
        return app.pairing.observers.reports.to_json()
