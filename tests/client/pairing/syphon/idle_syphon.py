"""The receive calls of an idle syphon, counted by the server.

    python -m tests.client.pairing.syphon.idle_syphon --hours 720

A month of ten idle backlog queues runs in virtual time, but its many heartbeats and timers take a minute or two.
"""

from __future__ import annotations

import argparse
import asyncio
import sys

from tests.support.paired_application import in_memory_pair_application
from twinbus.testing import run


async def run_idle_syphon(hours: int) -> int:
    """Return the number of receive calls on ten idle backlog queues."""
    async with in_memory_pair_application(backlog_queue_count=10, enable_syphon=True) as app:
        await asyncio.sleep(hours * 3600 + 30)
        return sum(row.receives + row.empty_receives for row in app.namespaces.secondary.usage())


def main() -> int:
    """Return 0 if each queue gets four receive calls an hour, else 1."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=int, default=720)
    hours = parser.parse_args().hours
    calls = run(run_idle_syphon(hours), wall_limit_s=None)
    print(f"{calls:,} receive calls of 10 idle backlog queues in {hours:,} hours, as the server counts them")  # noqa: T201  # the result
    return 0 if calls == 40 * hours else 1


if __name__ == "__main__":
    sys.exit(main())
