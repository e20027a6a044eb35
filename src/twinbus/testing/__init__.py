"""Test tools for twinbus and its users: namespaces in memory, virtual time and simulated outages.

    @in_virtual_time
    async def test_an_hour_without_the_primary() -> None:
        async with InMemoryPair() as pair:
            pair.primary.outage.stop()
            await asyncio.sleep(3600)       # takes no time

The package wires up the real broker, server and client; only the network, the disks and the clock are simulated. No
production code imports this package.
"""

from twinbus.testing.clock import FakeClock, LoopClock
from twinbus.testing.faults import Direction
from twinbus.testing.loop import FakeTimeLoop, TookTooLong, in_virtual_time, run
from twinbus.testing.namespace import InMemoryNamespace, InMemoryPair
from twinbus.testing.network import Network, on_host
from twinbus.testing.outage import Outage

__all__ = [
    "Direction",
    "FakeClock",
    "FakeTimeLoop",
    "InMemoryNamespace",
    "InMemoryPair",
    "LoopClock",
    "Network",
    "Outage",
    "TookTooLong",
    "in_virtual_time",
    "on_host",
    "run",
]
