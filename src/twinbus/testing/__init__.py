"""For tests, ours and our users': namespaces in memory, time that passes at once, a switch for outages.

    @in_virtual_time
    async def test_an_hour_without_the_primary() -> None:
        async with InMemoryPair() as pair:
            pair.primary.outage.stop()
            await asyncio.sleep(3600)       # takes no time

Owns: nothing that runs in production, and no second version of what does: it wires up the real broker, store, server
and client. Nothing in twinbus imports this package.
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
