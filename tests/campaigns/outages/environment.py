"""All processes of a campaign, and the network between them.

Owns: both servers, a network path from each program to each of them, the programs, and their start.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tests.campaigns.outages.program_config import OPERATION_TIMEOUT_S, ProgramConfig
from tests.campaigns.outages.program_process import ProgramProcess
from tests.campaigns.outages.streams import SENDERS, create_entities
from tests.support.fault_injection.clock import MovableClock
from tests.support.fault_injection.shim import DiskShim
from tests.support.multi_process_server import MultiProcessServer
from tests.support.relay import Relay
from tests.support.server_process import ServerProcess
from twinbus.client import MessagingFactory
from twinbus.client.management import NamespaceManager
from twinbus.server.auth import key_socket
from twinbus.server.auth.key_file import KeyCommand
from twinbus.server.runtime.data_directory import KEY_SOCKET_FILE

if TYPE_CHECKING:
    from contextlib import AsyncExitStack
    from pathlib import Path

    from tests.campaigns.outages.plan import Plan
    from tests.campaigns.outages.records import ArrivalRecord
    from twinbus.server.auth.key_socket import KeyCommandReply

SYPHONS: Final = 2
STORES: Final = 4
APPLICATION_KEY: Final = "application"
START_TIMEOUT_S: Final = 60.0
POLL_INTERVAL_S: Final = 0.05
STORE_TIMEOUT_S: Final = 1.0
"""Shorter than a send's timeout, so that a hanging store is detected before the send times out."""
SENDER_NAMES: Final = tuple(f"sender {name}" for name in SENDERS)
SYPHON_NAMES: Final = tuple(f"syphon {number}" for number in range(SYPHONS))


@dataclass(frozen=True, slots=True)
class NamespaceProcess:
    """A namespace, the network paths to it, and the shim of its disk if that can fail."""

    name: str
    server: ServerProcess
    data: Path
    clock: MovableClock
    secret: str
    """Secret of the key that the programs use."""
    shim: DiskShim | None = None
    relays: dict[str, list[Relay]] = field(default_factory=dict)
    """Relays by program: the first one to AMQP, the second one (if any) to management."""
    server_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held during requests to the server, and while the server is down."""
    network_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while the network paths are changed."""
    key_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    entity_lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def connection_string(self, port: int, key_name: str = APPLICATION_KEY, secret: str | None = None) -> str:
        """Return a connection string with the programs' key, for a port of the server or of a relay."""
        return (
            f"Endpoint=sb://{self.server.host}:{port};SharedAccessKeyName={key_name}"
            f";SharedAccessKey={secret or self.secret};UseDevelopmentEmulator=true"
        )

    def manager(self) -> NamespaceManager:
        """Return a manager for the campaign itself: with the root key, and without a relay."""
        return NamespaceManager.from_connection_string(connection_string_of(self, self.server.http_port))

    def factory(self) -> MessagingFactory:
        """Return a factory for the campaign itself: with the root key, and without a relay."""
        return MessagingFactory.from_connection_string(
            connection_string_of(self, self.server.amqp_port), operation_timeout=10 * OPERATION_TIMEOUT_S
        )


def connection_string_of(namespace: NamespaceProcess, port: int) -> str:
    """Return a connection string with the root key."""
    return namespace.connection_string(port, namespace.server.key_name, namespace.server.key)


@dataclass
class Environment:
    """Processes and folders of a campaign."""

    folder: Path
    is_partitioned: bool = False
    namespaces: list[NamespaceProcess] = field(default_factory=list)
    senders: list[ProgramProcess] = field(default_factory=list)
    syphons: list[ProgramProcess] = field(default_factory=list)
    syphon_kills: int = 0
    early_arrivals: list[ArrivalRecord] = field(default_factory=list)
    """Messages that were received from a queue before it was deleted."""
    deletions: int = 0
    """Number of deletions of that queue."""

    def send_logs(self) -> list[Path]:
        return [self.folder / f"sends-{name}.json" for name in SENDERS]

    def spool_folder(self) -> Path:
        return self.folder / "spools"


async def start_environment(plan: Plan, environment: Environment, stack: AsyncExitStack) -> None:
    """Start both namespaces, create the entities, and start all programs; return when all streams send."""
    environment.namespaces += [
        await _start_namespace(
            "primary", environment.folder / "contoso", stack, plan.workers, can_disk_fail=plan.partitioned
        ),
        await _start_namespace("secondary", environment.folder / "contoso-backup", stack, plan.workers),
    ]
    async with environment.namespaces[0].manager() as manager:
        await create_entities(manager, are_partitioned=plan.partitioned)
    for name, sender, send_log in zip(SENDER_NAMES, SENDERS, environment.send_logs(), strict=True):
        spool = None if sender == SENDERS[0] else environment.spool_folder() / sender
        config_file = await _write_program_config(name, plan, environment, stack, spool)
        program = ProgramProcess(
            name, environment.folder, "tests.campaigns.outages.sender_program", str(config_file), sender, str(send_log)
        )
        environment.senders.append(await stack.enter_async_context(program))
    for name in SYPHON_NAMES:
        config_file = await _write_program_config(name, plan, environment, stack, None)
        program = ProgramProcess(name, environment.folder, "tests.campaigns.outages.syphon_program", str(config_file))
        environment.syphons.append(await stack.enter_async_context(program))
    async with asyncio.timeout(START_TIMEOUT_S):
        send_logs = environment.send_logs()
        while not all(send_log.exists() and send_log.stat().st_size for send_log in send_logs):
            for program in environment.senders:
                program.check_running()
            await asyncio.sleep(POLL_INTERVAL_S)


async def _start_namespace(
    name: str, folder: Path, stack: AsyncExitStack, workers: int, *, can_disk_fail: bool = False
) -> NamespaceProcess:
    folder.mkdir()  # noqa: ASYNC240  # the loop has no other tasks yet
    data = folder / "data"
    shim = stack.enter_context(DiskShim(data, folder, has_trace=False)) if can_disk_fail else None
    clock = MovableClock(folder / "clock")
    environment = clock.environment(None if shim is None else shim.environment())
    options = (f"--stores={STORES}", f"--store-timeout={STORE_TIMEOUT_S}")
    server = (
        ServerProcess(folder, name=folder.name, options=options, environment=environment)
        if workers == 1
        else MultiProcessServer(folder, *options, f"--workers={workers}", name=folder.name, environment=environment)
    )
    await asyncio.to_thread(server.start)
    command = KeyCommand("add", APPLICATION_KEY, ("Manage", "Send", "Listen"), show=True)
    reply = await change_keys(data, command)
    secret = next(key.primary for key in reply.keys if key.name == APPLICATION_KEY)
    assert secret is not None
    return NamespaceProcess(name, server, data, clock, secret, shim)


async def change_keys(data: Path, order: KeyCommand) -> KeyCommandReply:
    """Send a key command to a running server, as `twinbus key` does; wait for its socket."""
    async with asyncio.timeout(START_TIMEOUT_S):
        while True:
            reply = await asyncio.to_thread(key_socket.send_command, data / KEY_SOCKET_FILE, order)
            if reply is not None:
                return reply
            await asyncio.sleep(POLL_INTERVAL_S)


async def _write_program_config(
    name: str, plan: Plan, environment: Environment, stack: AsyncExitStack, spool: Path | None
) -> Path:
    """Create relays from a program to each namespace, and write their addresses into the program's config."""
    primary, secondary = environment.namespaces
    for namespace, ports in (
        (primary, [primary.server.amqp_port]),
        (secondary, [secondary.server.amqp_port, secondary.server.http_port]),
    ):
        namespace.relays[name] = [await stack.enter_async_context(Relay(namespace.server.host, port)) for port in ports]
    file = environment.folder / f"{name.replace(' ', '-')}.json"
    ProgramConfig(
        primary.connection_string(primary.relays[name][0].port),
        secondary.connection_string(secondary.relays[name][0].port),
        secondary.connection_string(secondary.relays[name][1].port),
        None if plan.journals is None else str(plan.journals),
        None if spool is None else str(spool),
    ).write(file)
    return file
