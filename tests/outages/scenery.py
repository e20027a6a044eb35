"""All processes of a campaign, and the network between them.

Owns: both servers, a network path from each program to each of them, the programs, and their start.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tests.faults.clock import MovableClock
from tests.faults.shim import Shim
from tests.outages.place import OPERATION_S, Place
from tests.outages.program import Program
from tests.outages.scene import SENDERS, make_entities
from tests.relay import Relay
from tests.served import Served
from tests.workers.crew import Crew
from twinbus.client import MessagingFactory
from twinbus.client.management import NamespaceManager
from twinbus.server import key_socket
from twinbus.server.data_directory import KEY_SOCKET
from twinbus.server.key_file import Order

if TYPE_CHECKING:
    from contextlib import AsyncExitStack
    from pathlib import Path

    from tests.outages.kinds import Plan
    from tests.outages.ledger import Arrival
    from twinbus.server.key_socket import Answer

SYPHONS: Final = 2
STORES: Final = 4
APPLICATION_KEY: Final = "application"
START_S: Final = 60.0
LOOK_EVERY_S: Final = 0.05
STORE_TIMEOUT_S: Final = 1.0
"""A store that does not answer is known to be down before a send is given up."""
SENDER_NAMES: Final = tuple(f"sender {name}" for name in SENDERS)
SYPHON_NAMES: Final = tuple(f"syphon {number}" for number in range(SYPHONS))


@dataclass(frozen=True, slots=True)
class Side:
    """A namespace, the network paths to it, and the disk behind it, where that can fail."""

    name: str
    server: Served
    data: Path
    clock: MovableClock
    secret: str
    """Of the key that the programs use."""
    shim: Shim | None = None
    paths: dict[str, list[Relay]] = field(default_factory=dict)
    """By program: the first one leads to AMQP, the second one, if there is one, to management."""
    serving: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by whoever needs the server, and by whoever takes it down."""
    in_use: asyncio.Lock = field(default_factory=asyncio.Lock)
    """... of the network paths."""
    keys: asyncio.Lock = field(default_factory=asyncio.Lock)
    entities: asyncio.Lock = field(default_factory=asyncio.Lock)

    def string(self, port: int, key_name: str = APPLICATION_KEY, secret: str | None = None) -> str:
        """A connection string for the programs' key, and a port of the server or of a relay."""
        return (
            f"Endpoint=sb://{self.server.host}:{port};SharedAccessKeyName={key_name}"
            f";SharedAccessKey={secret or self.secret};UseDevelopmentEmulator=true"
        )

    def manager(self) -> NamespaceManager:
        """For the campaign itself: with a key that is never rotated, past the network paths."""
        return NamespaceManager.from_connection_string(string_of(self, self.server.http_port))

    def factory(self) -> MessagingFactory:
        """The same for messages."""
        return MessagingFactory.from_connection_string(
            string_of(self, self.server.amqp_port), operation_timeout=10 * OPERATION_S
        )


def string_of(side: Side, port: int) -> str:
    """A connection string for the root key."""
    return side.string(port, side.server.key_name, side.server.key)


@dataclass
class Scenery:
    """Everything."""

    folder: Path
    is_partitioned: bool = False
    sides: list[Side] = field(default_factory=list)
    senders: list[Program] = field(default_factory=list)
    syphons: list[Program] = field(default_factory=list)
    syphon_kills: int = 0
    early_arrivals: list[Arrival] = field(default_factory=list)
    """Messages that were received before the end, from a queue that was deleted then."""
    deletions: int = 0
    """How often that queue was deleted."""

    def ledgers(self) -> list[Path]:
        return [self.folder / f"sends-{name}.json" for name in SENDERS]

    def spools(self) -> Path:
        return self.folder / "spools"


async def prepare(plan: Plan, scenery: Scenery, stack: AsyncExitStack) -> None:
    """Start both namespaces, make the entities, and start all programs; return when all streams send."""
    scenery.sides += [
        await _side("primary", scenery.folder / "contoso", stack, plan.workers, can_disk_fail=plan.partitioned),
        await _side("secondary", scenery.folder / "contoso-backup", stack, plan.workers),
    ]
    async with scenery.sides[0].manager() as manager:
        await make_entities(manager, are_partitioned=plan.partitioned)
    for name, sender, ledger in zip(SENDER_NAMES, SENDERS, scenery.ledgers(), strict=True):
        spool = None if sender == SENDERS[0] else scenery.spools() / sender
        place = await _place(name, plan, scenery, stack, spool)
        program = Program(name, scenery.folder, "tests.outages.sending", str(place), sender, str(ledger))
        scenery.senders.append(await stack.enter_async_context(program))
    for name in SYPHON_NAMES:
        place = await _place(name, plan, scenery, stack, None)
        program = Program(name, scenery.folder, "tests.outages.syphoning", str(place))
        scenery.syphons.append(await stack.enter_async_context(program))
    async with asyncio.timeout(START_S):
        ledgers = scenery.ledgers()
        while not all(ledger.exists() and ledger.stat().st_size for ledger in ledgers):
            for program in scenery.senders:
                program.check()
            await asyncio.sleep(LOOK_EVERY_S)


async def _side(name: str, folder: Path, stack: AsyncExitStack, workers: int, *, can_disk_fail: bool = False) -> Side:
    folder.mkdir()  # noqa: ASYNC240  # the loop has nothing else to do yet
    data = folder / "data"
    shim = stack.enter_context(Shim(data, folder, traces=False)) if can_disk_fail else None
    clock = MovableClock(folder / "clock")
    environment = clock.environment(None if shim is None else shim.environment())
    options = (f"--stores={STORES}", f"--store-timeout={STORE_TIMEOUT_S}")
    server = (
        Served(folder, name=folder.name, options=options, environment=environment)
        if workers == 1
        else Crew(folder, *options, f"--workers={workers}", name=folder.name, environment=environment)
    )
    await asyncio.to_thread(server.start)
    order = Order("add", APPLICATION_KEY, ("Manage", "Send", "Listen"), show=True)
    answer = await change_keys(data, order)
    secret = next(key.primary for key in answer.keys if key.name == APPLICATION_KEY)
    assert secret is not None
    return Side(name, server, data, clock, secret, shim)


async def change_keys(data: Path, order: Order) -> Answer:
    """Give an order to a running server, as `twinbus key` does. Its socket comes a moment after its ready file."""
    async with asyncio.timeout(START_S):
        while True:
            answer = await asyncio.to_thread(key_socket.ask, data / KEY_SOCKET, order)
            if answer is not None:
                return answer
            await asyncio.sleep(LOOK_EVERY_S)


async def _place(name: str, plan: Plan, scenery: Scenery, stack: AsyncExitStack, spool: Path | None) -> Path:
    """Lay a network path from a program to each namespace, and write down where they begin."""
    primary, secondary = scenery.sides
    for side, ports in (
        (primary, [primary.server.amqp_port]),
        (secondary, [secondary.server.amqp_port, secondary.server.http_port]),
    ):
        side.paths[name] = [await stack.enter_async_context(Relay(side.server.host, port)) for port in ports]
    file = scenery.folder / f"{name.replace(' ', '-')}.json"
    Place(
        primary.string(primary.paths[name][0].port),
        secondary.string(secondary.paths[name][0].port),
        secondary.string(secondary.paths[name][1].port),
        None if plan.journals is None else str(plan.journals),
        None if spool is None else str(spool),
    ).write(file)
    return file
