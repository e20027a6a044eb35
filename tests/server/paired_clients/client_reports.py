"""Reports of real clients, in any state: what tests feed to the node and to those who read it.

    report_of("shop", failed_over=("orders",))

Owns: having a paired client report, in memory and in virtual time, and the copies of what it said.
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
"""Of every client here: what it reports one after the other is its own."""


def report_of(
    client: str, *, failed_over: Sequence[str] = (), suspect: Sequence[str] = (), ping_interval_s: float = 60
) -> dict[str, Any]:
    """What a client of that name reports that holds these entities to be so."""
    told = _report(tuple(failed_over), tuple(suspect), ping_interval_s)
    return {**copy.deepcopy(told), "client": client, "instance": INSTANCE}


@functools.cache
def _report(failed_over: tuple[str, ...], suspect: tuple[str, ...], ping_interval_s: float) -> dict[str, Any]:
    found: list[str] = []
    # A test may have a loop of its own on this thread.
    thread = threading.Thread(target=lambda: found.append(run(_run_client(failed_over, suspect, ping_interval_s))))
    thread.start()
    thread.join()
    return dict(json.loads(found[0]))


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
