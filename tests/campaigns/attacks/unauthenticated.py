"""Attacks by clients without credentials: on memory, sockets and processor time.

Each function is one round, which `attack` repeats. A request that the server fails to refuse is a problem of the
outcome; the campaign measures the server's memory and the waits of honest clients.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from typing import TYPE_CHECKING, Final

from tests.campaigns.attacks.attack import attack
from tests.campaigns.attacks.raw_peer import PeerRefused, RawPeer
from twinbus.amqp.codec.performatives import Open
from twinbus.amqp.terminus import Source

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.campaigns.attacks.attack import Outcome
    from tests.campaigns.attacks.target_server import TargetServer

EMPTY_LISTS: Final = 65_000
"""As many as fit into one frame of 64 KB: an empty list takes one byte on the wire, and a list object in memory."""
WIDE_CONNECTIONS: Final = 20
WIDE_ATTACHES: Final = 50
CLOSE_S: Final = 5.0
"""A refused peer is disconnected within this time."""
SILENT_SOCKETS: Final = 300
"""Sockets on each of the four ports."""
SILENT_S: Final = 5.0
KEEP_ALIVE_SOCKETS: Final = 400
FLOOD_BYTES: Final = 100_000
"""Bytes of attach and detach frames, ten times a second."""
FLOOD_ROUNDS: Final = 50
FAST_PEERS: Final = 200
WRONG_PASSWORDS: Final = 20
HALF_MESSAGES: Final = 60
HALF_MESSAGE_BYTES: Final = 60_000


@contextlib.asynccontextmanager
async def open_sockets(target: TargetServer, ports: list[int]) -> AsyncIterator[list[RawPeer]]:
    """Open sockets to these ports, and yield those that the server accepted."""
    peers: list[RawPeer] = []
    try:
        for port in ports:
            with contextlib.suppress(PeerRefused):
                peers.append(await RawPeer.open_socket(target.host, port))
        yield peers
    finally:
        for peer in peers:
            peer.abort()


@attack(pause_s=2.0)
async def wide_opens(target: TargetServer, outcome: Outcome) -> None:
    """Open with 65,000 empty lists as a property, on many connections."""
    opening = Open(container_id="attacker", properties={"x": [[] for _ in range(EMPTY_LISTS)]})
    async with open_sockets(target, [target.amqp_port] * WIDE_CONNECTIONS) as peers:
        refused = sum([await _open_is_refused(peer, opening) for peer in peers])
    outcome.count("refused", refused)
    if refused < len(peers):
        outcome.add_problem(f"{len(peers) - refused} of {len(peers)} opens with {EMPTY_LISTS} lists were taken")


async def _open_is_refused(peer: RawPeer, opening: Open) -> bool:
    try:
        await peer.open_without_sasl(opening)
    except PeerRefused:
        return True
    return await peer.is_refused(CLOSE_S)


@attack(pause_s=1.0)
async def wide_attaches(target: TargetServer, outcome: Outcome) -> None:
    """Attach with 65,000 empty lists in the source, many times on one connection."""
    peer = await RawPeer.connect(target.host, target.amqp_port)
    try:
        wide = Source(address=target.queue, filter={"x": [[] for _ in range(EMPTY_LISTS)]})
        for _ in range(WIDE_ATTACHES):
            peer.attach_receiver(target.queue, source=wide)
        refused = await peer.is_refused(CLOSE_S)
    finally:
        peer.abort()
    outcome.count("refused", refused)
    if not refused:
        outcome.add_problem(f"{WIDE_ATTACHES} attaches with {EMPTY_LISTS} lists each were taken")


@attack(pause_s=1.0)
async def half_messages(target: TargetServer, outcome: Outcome) -> None:
    """Send the first part of many large messages to `$cbs`, and never the last."""
    peer = await RawPeer.connect(target.host, target.amqp_port)
    try:
        refused = await _send_half_message(peer)
    finally:
        peer.abort()
    outcome.count("refused", refused)
    if not refused:
        size = HALF_MESSAGES * HALF_MESSAGE_BYTES
        outcome.add_problem(f"{size:,} bytes of unfinished messages were held before any token")


async def _send_half_message(peer: RawPeer) -> bool:
    """Send parts of messages until the server refuses; return False if it accepts all of them."""
    try:
        for _ in range(HALF_MESSAGES):
            peer.transfer(await peer.attached_sender("$cbs"), bytes(HALF_MESSAGE_BYTES), more=True)
    except PeerRefused:
        return True
    return await peer.is_refused(CLOSE_S)


@attack(pause_s=0.5)
async def silent_connections(target: TargetServer, outcome: Outcome) -> None:
    """Connect to all four ports and send nothing, not even a TLS hello."""
    ports = [target.amqp_port, target.amqps_port, target.http_port, target.https_port]
    async with open_sockets(target, ports * SILENT_SOCKETS) as peers:
        outcome.count("connected", len(peers))
        await asyncio.sleep(SILENT_S)


@attack(pause_s=0.5)
async def idle_keep_alive(target: TargetServer, outcome: Outcome) -> None:
    """Send one request on each of many HTTP connections and keep them open; another client requests `/health`."""
    request = f"GET /health HTTP/1.1\r\nHost: {target.host}\r\n\r\n".encode()
    async with open_sockets(target, [target.http_port] * KEEP_ALIVE_SOCKETS) as peers:
        for peer in peers:
            peer.writer.write(request)
        outcome.count("connected", len(peers))
        await asyncio.sleep(1.0)
        await _check_health(target, request, outcome)
        await asyncio.sleep(SILENT_S)


async def _check_health(target: TargetServer, request: bytes, outcome: Outcome) -> None:
    response = b""
    async with open_sockets(target, [target.http_port]) as peers:
        for peer in peers:
            peer.writer.write(request)
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    response = await peer.reader.readline()
    if not response.startswith(b"HTTP/1.1 "):
        outcome.add_problem(f"/health does not answer beside idle connections: {response!r}")


@attack(pause_s=0.2)
async def attach_flood(target: TargetServer, outcome: Outcome) -> None:
    """Attach and detach a link to `$cbs` over and over, at 1 MB a second."""
    peer = await RawPeer.connect(target.host, target.amqp_port)
    reading = asyncio.create_task(peer.is_refused(FLOOD_ROUNDS))
    try:
        for _ in range(FLOOD_ROUNDS):
            written = 0
            while written < FLOOD_BYTES:
                handle = peer.attach_sender("$cbs")
                peer.detach(handle)
                written += 200
                outcome.count("links")
            await peer.drain()
            await asyncio.sleep(0.1)
    finally:
        reading.cancel()
        peer.abort()


@attack(pause_s=0.5)
async def fast_heartbeats(target: TargetServer, outcome: Outcome) -> None:
    """Request a heartbeat every millisecond, on many connections."""
    async with open_sockets(target, [target.amqp_port] * FAST_PEERS) as peers:
        refused = sum([await _open_is_refused(peer, Open(container_id="attacker", idle_time_out=1)) for peer in peers])
    outcome.count("refused", refused)
    if refused < len(peers):
        outcome.add_problem(f"{len(peers) - refused} of {len(peers)} peers get a heartbeat every millisecond")


@attack(pause_s=0.5)
async def wrong_passwords(target: TargetServer, outcome: Outcome) -> None:
    """Try keys that do not exist, and wrong secrets for names that do."""
    for number in range(WRONG_PASSWORDS):
        name = target.root_name if number % 2 else f"key-{number}"
        try:
            peer = await RawPeer.connect(target.host, target.amqp_port, credentials=(name, secrets.token_urlsafe(32)))
        except PeerRefused:
            outcome.count("refused")
        else:
            peer.abort()
            outcome.add_problem(f"a wrong secret for {name!r} was taken")
