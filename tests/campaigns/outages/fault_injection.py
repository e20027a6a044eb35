"""Injection of each kind of outage, with its start and its end.

    async with inject_outage(planned, environment) as detail:
        await asyncio.sleep(planned.length_s)

Owns: one context manager for each kind. Outages may overlap: each holds the locks of the parts that it changes.
Requests to a server hold `server_lock`, and so do outages of the server itself.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from tests.campaigns.outages.arrivals import receive_destination
from tests.campaigns.outages.environment import APPLICATION_KEY, STORES, change_keys
from tests.campaigns.outages.plan import NETWORK_KINDS, SENDER_KINDS, STORE_KINDS, SYPHON_KINDS, OutageKind
from tests.campaigns.outages.streams import QUEUES, RECREATED_QUEUE, SUBSCRIPTIONS, create_queue, set_status
from tests.support.fault_injection.shim import Action
from tests.support.multi_process_server import MultiProcessServer
from tests.support.relay import BOTH, Direction, Endpoint, Relay
from twinbus.server.auth import key_file
from twinbus.server.auth.key_file import KeyCommand
from twinbus.server.runtime.data_directory import KEYS_FILE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager
    from random import Random

    from tests.campaigns.outages.environment import Environment
    from tests.campaigns.outages.plan import PlannedOutage

REOPEN_TIMEOUT_S: Final = 1.0
"""Time within which a failed store is reopened."""
PARKING_S: Final = 0.7
"""Time in which sends are parked before their queue is deleted."""
IDLE_TIMEOUT_S: Final = 0.3
AHEAD_S: Final = (3000.0, 9000.0)
BEHIND_S: Final = (-600.0, -60.0)
DELAY_S: Final = (0.05, 1.5)
RESET_CHANCE: Final = (0.01, 0.2)


# --- servers ----------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _process_outage(planned: PlannedOutage, environment: Environment) -> AsyncIterator[str]:
    side = environment.namespaces[planned.side]
    async with side.server_lock:
        if planned.kind is OutageKind.KILLED:
            side.server.kill()
            yield ""
            await asyncio.to_thread(side.server.start)
        else:
            side.server.pause()
            yield ""
            side.server.resume()


@asynccontextmanager
async def _worker_outage(planned: PlannedOutage, environment: Environment) -> AsyncIterator[str]:
    """Kill one of several processes; the outage ends when its replacement is serving."""
    server = environment.namespaces[planned.side].server
    assert isinstance(server, MultiProcessServer), "there is one process"
    async with environment.namespaces[planned.side].server_lock:
        number = planned.rng.choice(sorted(server.workers()))
        pid = server.signal_worker(number, signal.SIGKILL)
        yield f"worker {number}"
        await asyncio.to_thread(server.wait_for_replacement, number, pid)


@asynccontextmanager
async def _store_outage(planned: PlannedOutage, environment: Environment) -> AsyncIterator[str]:
    side = environment.namespaces[planned.side]
    assert side.shim is not None, "this disk cannot fail"
    store, is_stuck = planned.rng.randrange(STORES), planned.kind is OutageKind.STORE_STUCK
    action = Action.DELAY_SYNC if is_stuck else Action.FAIL_SYNC
    folder, delay_ms = side.shim.root / "stores" / f"{store}", round(planned.length_s * 1000)
    async with side.server_lock:
        with side.shim.rule(action, folder, delay_ms=delay_ms):
            yield f"store {store}"
        if is_stuck:
            await asyncio.sleep(planned.length_s)  # a sync that began at the end of the outage takes as long
        await asyncio.sleep(REOPEN_TIMEOUT_S)


@asynccontextmanager
async def _clock_outage(planned: PlannedOutage, environment: Environment) -> AsyncIterator[str]:
    side = environment.namespaces[planned.side]
    seconds = planned.rng.uniform(*(AHEAD_S if planned.kind is OutageKind.CLOCK_AHEAD else BEHIND_S))
    async with side.server_lock:
        side.clock.set_offset(seconds)
        yield f"by {abs(seconds) / 60:.0f} min"
        side.clock.set_offset(0)


# --- networks ---------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _network_outage(planned: PlannedOutage, environment: Environment) -> AsyncIterator[str]:
    """Inject a network fault into the paths of all or some programs."""
    side, rng = environment.namespaces[planned.side], planned.rng
    async with side.network_lock:
        names = sorted(side.relays)
        if rng.random() < 0.5:
            names = sorted(rng.sample(names, rng.randint(1, len(names) - 1)))
        relays = [relay for name in names for relay in side.relays[name]]
        fault = _make_network_fault(planned.kind, rng)
        for relay in relays:
            fault.begin(relay)
        yield f"{fault.detail}{'all programs' if len(names) == len(side.relays) else ', '.join(names)}"
        for relay in relays:
            await relay.restore()


class _NetworkFault(NamedTuple):
    begin: Callable[[Relay], None]
    detail: str = ""


def _make_network_fault(kind: OutageKind, rng: Random) -> _NetworkFault:
    """Return a fault of a network path, with random parameters."""
    if kind is OutageKind.DELAYED:
        delay_s = rng.uniform(*DELAY_S)
        directions = rng.choice([BOTH, *(frozenset({direction}) for direction in Direction)])
        direction_names = " and ".join(direction.name.lower() for direction in Direction if direction in directions)
        return _NetworkFault(lambda relay: relay.delay(delay_s, directions), f"{direction_names} by {delay_s:.2f} s, ")
    if kind is OutageKind.RESET:
        chance = rng.uniform(*RESET_CHANCE)
        return _NetworkFault(lambda relay: relay.reset_after_requests(rng, chance), f"chance {chance:.2f}, ")
    return _NETWORK_FAULTS[kind]


_NETWORK_FAULTS: Final = {
    OutageKind.SILENT: _NetworkFault(lambda relay: relay.drop_silently()),
    OutageKind.CUT: _NetworkFault(lambda relay: relay.cut()),
    OutageKind.REFUSED: _NetworkFault(lambda relay: relay.refuse()),
    OutageKind.RESPONSES_LOST: _NetworkFault(lambda relay: relay.drop(Direction.RESPONSES)),
    OutageKind.REQUESTS_LOST: _NetworkFault(lambda relay: relay.drop(Direction.REQUESTS)),
    OutageKind.CLIENT_CLOSED: _NetworkFault(lambda relay: relay.half_open(Endpoint.CLIENT)),
    OutageKind.SERVER_CLOSED: _NetworkFault(lambda relay: relay.half_open(Endpoint.SERVER)),
}


# --- keys and entities ------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _key_outage(planned: PlannedOutage, environment: Environment) -> AsyncIterator[str]:
    """Revoke or rotate the programs' key; at the end the key file is restored and reloaded."""
    side, is_revoked = environment.namespaces[planned.side], planned.rng.random() < 0.5
    change = KeyCommand("revoke", APPLICATION_KEY) if is_revoked else KeyCommand("rotate", APPLICATION_KEY)
    async with side.key_lock:
        async with side.server_lock:
            rules = await asyncio.to_thread(key_file.read_rules, side.data / KEYS_FILE)
            for _ in range(
                1 if is_revoked else 2
            ):  # the former secret of a key rotated once is still valid as its secondary secret
                await change_keys(side.data, change)
        yield "revoked" if is_revoked else "rotated twice"
        async with side.server_lock:
            await asyncio.to_thread(key_file.write_rules, side.data / KEYS_FILE, rules)
            os.kill(side.server.pid, signal.SIGHUP)


@asynccontextmanager
async def _disabled_entities(planned: PlannedOutage, environment: Environment) -> AsyncIterator[str]:
    side, rng = environment.namespaces[planned.side], planned.rng
    paths = sorted([*QUEUES, *SUBSCRIPTIONS])
    chosen = rng.sample(paths, rng.randint(1, len(paths)))
    status = rng.choice(["Disabled", "SendDisabled"])
    async with side.entity_lock:
        async with side.server_lock, side.manager() as manager:
            for path in chosen:
                await set_status(manager, path, status)
        yield f"{status}: {', '.join(sorted(chosen))}"
        async with side.server_lock, side.manager() as manager:
            for path in chosen:
                await set_status(manager, path, "Active")


@asynccontextmanager
async def _deleted_queue(planned: PlannedOutage, environment: Environment) -> AsyncIterator[str]:
    """Delete a queue while messages for it are parked; its messages are received first, and count as arrived."""
    side = environment.namespaces[planned.side]
    async with side.entity_lock:
        async with side.network_lock:
            relays = [relay for paths in side.relays.values() for relay in paths]
            for relay in relays:
                relay.cut()
            await asyncio.sleep(PARKING_S)
            async with side.server_lock, side.manager() as manager, side.factory() as factory:
                await set_status(manager, RECREATED_QUEUE, "SendDisabled")
                while (await manager.get_queue_runtime(RECREATED_QUEUE)).active_count:
                    records = await receive_destination(factory, RECREATED_QUEUE, IDLE_TIMEOUT_S)
                    environment.early_arrivals += [
                        replace(record, incarnation=environment.deletions) for record in records
                    ]
                await manager.delete_queue(RECREATED_QUEUE)
                environment.deletions += 1
            for relay in relays:
                await relay.restore()
        yield RECREATED_QUEUE
        async with side.server_lock, side.manager() as manager:
            await create_queue(manager, RECREATED_QUEUE, is_partitioned=environment.is_partitioned)


# --- programs ---------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _program_outage(planned: PlannedOutage, environment: Environment) -> AsyncIterator[str]:
    kind, rng = planned.kind, planned.rng
    program = rng.choice(environment.senders if kind in SENDER_KINDS else environment.syphons)
    async with program.lock:
        if kind is OutageKind.SENDER_KILLED:
            await program.kill()
            yield program.name
            await program.start()
        elif kind in (OutageKind.SENDER_FROZEN, OutageKind.SYPHON_FROZEN):
            program.pause()
            yield program.name
            program.resume()
        else:
            seconds = rng.choice([rng.uniform(*AHEAD_S), rng.uniform(-7200, -60)])
            program.clock.set_offset(seconds)
            yield f"{program.name}, by {seconds / 60:+.0f} min"
            program.clock.set_offset(0)


OutageInjector = Callable[["PlannedOutage", "Environment"], "AbstractAsyncContextManager[str]"]

_INJECTORS: Final[dict[OutageKind, OutageInjector]] = {
    **dict.fromkeys(NETWORK_KINDS, _network_outage),
    **dict.fromkeys(STORE_KINDS, _store_outage),
    **dict.fromkeys((*SENDER_KINDS, *SYPHON_KINDS), _program_outage),
    OutageKind.WORKER_KILLED: _worker_outage,
    OutageKind.KILLED: _process_outage,
    OutageKind.STOPPED: _process_outage,
    OutageKind.KEY_ROTATED: _key_outage,
    OutageKind.DISABLED: _disabled_entities,
    OutageKind.DELETED: _deleted_queue,
    OutageKind.CLOCK_AHEAD: _clock_outage,
    OutageKind.CLOCK_BEHIND: _clock_outage,
}


def inject_outage(planned: PlannedOutage, environment: Environment) -> AbstractAsyncContextManager[str]:
    """Inject an outage for the duration of the block; yield a description of its details."""
    return _INJECTORS[planned.kind](planned, environment)
