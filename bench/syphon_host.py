"""A program that only hosts the syphon, for bench/syphon.py.

    python -m bench.syphon_host PRIMARY_NAME BACKLOG_QUEUES [--defer]

The program reads three connection strings, one per line: of the primary, of the secondary, and for management of the
secondary. It pairs the two namespaces and moves parked messages back until SIGTERM. With `--defer`, it defers messages
that it sets aside, as with a server that cannot withhold them.
"""

from __future__ import annotations

import asyncio
import signal
import sys

import uvloop

from twinbus.client import MessagingFactory
from twinbus.client.management import NamespaceManager
from twinbus.client.pairing import SendAvailabilityPairedNamespaceOptions
from twinbus.client.pairing.syphon.withheld_messages import WithheldPaths


async def main(primary_name: str, backlog_queues: int) -> None:
    """Pair the namespaces, and run until stopped."""
    primary, secondary, management = sys.stdin.read().split()
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    async with NamespaceManager.from_connection_string(management) as manager:
        options = SendAvailabilityPairedNamespaceOptions(
            secondary_factory=MessagingFactory.from_connection_string(secondary),
            secondary_namespace_manager=manager,
            backlog_queue_count=backlog_queues,
            enable_syphon=True,
            primary_namespace_name=primary_name,
        )
        async with await MessagingFactory.from_connection_string(primary).pair_namespace(options):
            await stopped.wait()


if __name__ == "__main__":
    if "--defer" in sys.argv:
        WithheldPaths.can_add = lambda _self, _paths: False  # type: ignore[method-assign, assignment]
    uvloop.run(main(sys.argv[1], int(sys.argv[2])))
