"""A process that hosts the syphon of a pair with short intervals, for tests that stop and resume it.

    python -m tests.client.pairing.processes.syphon_host BACKLOG_QUEUES SILENCE_LIMIT_S STANDBY_S

The process reads three connection strings from standard input, one per line: of the primary, of the secondary, and
for the management of the secondary. It runs until it is killed.
"""

from __future__ import annotations

import asyncio
import sys

from twinbus.client import MessagingFactory
from twinbus.client.management import NamespaceManager
from twinbus.client.pairing import SendAvailabilityPairedNamespaceOptions
from twinbus.client.pairing.syphon import pump


async def main(backlog_queues: int) -> None:
    """Pair, and wait forever."""
    primary, secondary, management = sys.stdin.read().split()
    async with NamespaceManager.from_connection_string(management) as manager:
        options = SendAvailabilityPairedNamespaceOptions(
            secondary_factory=MessagingFactory.from_connection_string(secondary),
            secondary_namespace_manager=manager,
            backlog_queue_count=backlog_queues,
            enable_syphon=True,
            primary_namespace_name="contoso",
        )
        async with await MessagingFactory.from_connection_string(primary).pair_namespace(options):
            await asyncio.Event().wait()


if __name__ == "__main__":
    pump.SILENCE_LIMIT_S, pump.STANDBY_POLL_S = float(sys.argv[2]), float(sys.argv[3])  # type: ignore[misc]
    asyncio.run(main(int(sys.argv[1])))
