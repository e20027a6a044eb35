"""How each kind of outage is made: it begins, lasts, and ends, whatever else happens meanwhile.

    async with make(planned, scenery) as detail:
        await asyncio.sleep(planned.length_s)

Owns: one context manager for each kind. Outages may overlap: each holds the locks of what it changes. Requests to a
server hold `serving`, and so do outages that take the server itself down.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from tests.faults.shim import Action
from tests.outages.arrivals import receive_all_of
from tests.outages.kinds import OF_NETWORKS, OF_SENDERS, OF_STORES, OF_SYPHONS, Kind
from tests.outages.scene import DELETED, QUEUES, SUBSCRIPTIONS, make_queue, set_status
from tests.outages.scenery import APPLICATION_KEY, STORES, change_keys
from tests.relay import BOTH, Direction, End, Relay
from tests.workers.crew import Crew
from twinbus.server import key_file
from twinbus.server.data_directory import KEYS
from twinbus.server.key_file import Order

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager
    from random import Random

    from tests.outages.kinds import Planned
    from tests.outages.scenery import Scenery

REOPENED_S: Final = 1.0
"""A store that failed is opened again within that time."""
PARKING_S: Final = 0.7
"""So long sends are parked before their queue is deleted."""
NOTHING_COMES_S: Final = 0.3
AHEAD_S: Final = (3000.0, 9000.0)
BEHIND_S: Final = (-600.0, -60.0)
DELAY_S: Final = (0.05, 1.5)
RESET_CHANCE: Final = (0.01, 0.2)


# --- servers ----------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _process(planned: Planned, scenery: Scenery) -> AsyncIterator[str]:
    side = scenery.sides[planned.side]
    async with side.serving:
        if planned.kind is Kind.KILLED:
            side.server.kill()
            yield ""
            await asyncio.to_thread(side.server.start)
        else:
            side.server.pause()
            yield ""
            side.server.resume()


@asynccontextmanager
async def _worker(planned: Planned, scenery: Scenery) -> AsyncIterator[str]:
    """Kill one process of several. Its supervisor starts another one; the outage ends when that serves."""
    server = scenery.sides[planned.side].server
    assert isinstance(server, Crew), "there is one process"
    async with scenery.sides[planned.side].serving:
        number = planned.rng.choice(sorted(server.workers()))
        pid = server.strike(number, signal.SIGKILL)
        yield f"worker {number}"
        await asyncio.to_thread(server.wait_for_another, number, pid)


@asynccontextmanager
async def _store(planned: Planned, scenery: Scenery) -> AsyncIterator[str]:
    side = scenery.sides[planned.side]
    assert side.shim is not None, "this disk cannot fail"
    store, is_stuck = planned.rng.randrange(STORES), planned.kind is Kind.STORE_STUCK
    action = Action.DELAY_SYNC if is_stuck else Action.FAIL_SYNC
    folder, delay_ms = side.shim.root / "stores" / f"{store}", round(planned.length_s * 1000)
    async with side.serving:
        with side.shim.rule(action, folder, delay_ms=delay_ms):
            yield f"store {store}"
        if is_stuck:
            await asyncio.sleep(planned.length_s)  # a sync that began at the end takes as long
        await asyncio.sleep(REOPENED_S)


@asynccontextmanager
async def _clock(planned: Planned, scenery: Scenery) -> AsyncIterator[str]:
    side = scenery.sides[planned.side]
    seconds = planned.rng.uniform(*(AHEAD_S if planned.kind is Kind.CLOCK_AHEAD else BEHIND_S))
    async with side.serving:
        side.clock.move(seconds)
        yield f"by {abs(seconds) / 60:.0f} min"
        side.clock.move(0)


# --- networks ---------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _network(planned: Planned, scenery: Scenery) -> AsyncIterator[str]:
    """Fail the paths of all programs, or of some."""
    side, rng = scenery.sides[planned.side], planned.rng
    async with side.in_use:
        names = sorted(side.paths)
        if rng.random() < 0.5:
            names = sorted(rng.sample(names, rng.randint(1, len(names) - 1)))
        relays = [relay for name in names for relay in side.paths[name]]
        fault = _fault(planned.kind, rng)
        for relay in relays:
            fault.begin(relay)
        yield f"{fault.detail}{'all programs' if len(names) == len(side.paths) else ', '.join(names)}"
        for relay in relays:
            await relay.mend()


class _Fault(NamedTuple):
    begin: Callable[[Relay], None]
    detail: str = ""


def _fault(kind: Kind, rng: Random) -> _Fault:
    """What happens to a network path."""
    if kind is Kind.DELAYED:
        delay_s = rng.uniform(*DELAY_S)
        directions = rng.choice([BOTH, *(frozenset({one}) for one in Direction)])
        ways = " and ".join(one.name.lower() for one in Direction if one in directions)
        return _Fault(lambda relay: relay.slow_down(delay_s, directions), f"{ways} by {delay_s:.2f} s, ")
    if kind is Kind.RESET:
        chance = rng.uniform(*RESET_CHANCE)
        return _Fault(lambda relay: relay.reset_after_requests(rng, chance), f"chance {chance:.2f}, ")
    return _FAULTS[kind]


_FAULTS: Final = {
    Kind.SILENT: _Fault(lambda relay: relay.fall_silent()),
    Kind.CUT: _Fault(lambda relay: relay.cut()),
    Kind.REFUSED: _Fault(lambda relay: relay.refuse()),
    Kind.RESPONSES_LOST: _Fault(lambda relay: relay.drop(Direction.RESPONSES)),
    Kind.REQUESTS_LOST: _Fault(lambda relay: relay.drop(Direction.REQUESTS)),
    Kind.CLIENT_CLOSED: _Fault(lambda relay: relay.half_open(End.CLIENT)),
    Kind.SERVER_CLOSED: _Fault(lambda relay: relay.half_open(End.SERVER)),
}


# --- keys and entities ------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _keys(planned: Planned, scenery: Scenery) -> AsyncIterator[str]:
    """Make the programs' key invalid; in the end the key file is restored from a copy, and reloaded."""
    side, is_revoked = scenery.sides[planned.side], planned.rng.random() < 0.5
    change = Order("revoke", APPLICATION_KEY) if is_revoked else Order("rotate", APPLICATION_KEY)
    async with side.keys:
        async with side.serving:
            rules = await asyncio.to_thread(key_file.read, side.data / KEYS)
            for _ in range(1 if is_revoked else 2):  # the former secret of a rotated key is valid as its secondary
                await change_keys(side.data, change)
        yield "revoked" if is_revoked else "rotated twice"
        async with side.serving:
            await asyncio.to_thread(key_file.write, side.data / KEYS, rules)
            os.kill(side.server.pid, signal.SIGHUP)


@asynccontextmanager
async def _disabled(planned: Planned, scenery: Scenery) -> AsyncIterator[str]:
    side, rng = scenery.sides[planned.side], planned.rng
    paths = sorted([*QUEUES, *SUBSCRIPTIONS])
    chosen = rng.sample(paths, rng.randint(1, len(paths)))
    status = rng.choice(["Disabled", "SendDisabled"])
    async with side.entities:
        async with side.serving, side.manager() as manager:
            for path in chosen:
                await set_status(manager, path, status)
        yield f"{status}: {', '.join(sorted(chosen))}"
        async with side.serving, side.manager() as manager:
            for path in chosen:
                await set_status(manager, path, "Active")


@asynccontextmanager
async def _deleted(planned: Planned, scenery: Scenery) -> AsyncIterator[str]:
    """Delete a queue while messages for it are parked. Its own messages are received first, and count as arrived."""
    side = scenery.sides[planned.side]
    async with side.entities:
        async with side.in_use:
            relays = [relay for paths in side.paths.values() for relay in paths]
            for relay in relays:
                relay.cut()
            await asyncio.sleep(PARKING_S)
            async with side.serving, side.manager() as manager, side.factory() as factory:
                await set_status(manager, DELETED, "SendDisabled")
                while (await manager.get_queue_runtime(DELETED)).active_count:
                    found = await receive_all_of(factory, DELETED, NOTHING_COMES_S)
                    scenery.early_arrivals += [replace(one, incarnation=scenery.deletions) for one in found]
                await manager.delete_queue(DELETED)
                scenery.deletions += 1
            for relay in relays:
                await relay.mend()
        yield DELETED
        async with side.serving, side.manager() as manager:
            await make_queue(manager, DELETED, is_partitioned=scenery.is_partitioned)


# --- programs ---------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _program(planned: Planned, scenery: Scenery) -> AsyncIterator[str]:
    kind, rng = planned.kind, planned.rng
    program = rng.choice(scenery.senders if kind in OF_SENDERS else scenery.syphons)
    async with program.in_use:
        if kind is Kind.SENDER_KILLED:
            await program.kill()
            yield program.name
            await program.start()
        elif kind in (Kind.SENDER_FROZEN, Kind.SYPHON_FROZEN):
            program.freeze()
            yield program.name
            program.thaw()
        else:
            seconds = rng.choice([rng.uniform(*AHEAD_S), rng.uniform(-7200, -60)])
            program.clock.move(seconds)
            yield f"{program.name}, by {seconds / 60:+.0f} min"
            program.clock.move(0)


Maker = Callable[["Planned", "Scenery"], "AbstractAsyncContextManager[str]"]

_MAKERS: Final[dict[Kind, Maker]] = {
    **dict.fromkeys(OF_NETWORKS, _network),
    **dict.fromkeys(OF_STORES, _store),
    **dict.fromkeys((*OF_SENDERS, *OF_SYPHONS), _program),
    Kind.WORKER_KILLED: _worker,
    Kind.KILLED: _process,
    Kind.STOPPED: _process,
    Kind.KEY_ROTATED: _keys,
    Kind.DISABLED: _disabled,
    Kind.DELETED: _deleted,
    Kind.CLOCK_AHEAD: _clock,
    Kind.CLOCK_BEHIND: _clock,
}


def make(planned: Planned, scenery: Scenery) -> AbstractAsyncContextManager[str]:
    """Make an outage that lasts as long as the block, which gets more about it."""
    return _MAKERS[planned.kind](planned, scenery)
