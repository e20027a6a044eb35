"""Attacks by clients with a key of few rights: on time, memory, disk, and other clients' messages.

Each function is one round, which `attack` repeats. The attackers have a key with the right Listen and one with the
right Send, both on the whole namespace.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import itertools
import uuid
from decimal import Decimal
from typing import TYPE_CHECKING, Final

from tests.campaigns.attacks.attack import attack
from tests.campaigns.attacks.http_requests import request, status_of, token
from tests.campaigns.attacks.raw_peer import PeerRefused, RawPeer
from twinbus.amqp.codec import decimals
from twinbus.amqp.codec.performatives import Detach
from twinbus.amqp.terminus import Source
from twinbus.amqp.types import Array, Decimal128, Int, Timestamp
from twinbus.client import BrokeredMessage, MessagingFactory
from twinbus.model.errors import QuotaExceeded

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.campaigns.attacks.attack import Outcome
    from tests.campaigns.attacks.target_server import TargetServer

RULES: Final = 10
PATTERNS: Final = " OR ".join(["p LIKE '%_b%'"] * 50)
"""As many patterns as fit into a filter of 1,024 characters."""
PATTERN_TEXT: Final = "a" * 30_000
PATTERNED_MESSAGES: Final = 3
STATE_BYTES: Final = 60_000
STATES: Final = 50
PEEKS: Final = 1_000
BROWSE_LINKS: Final = 1_500
UNREAD_S: Final = 3.0
REVOKED_S: Final = 5.0
"""A link ends within a second after its key is revoked; the rest is margin for a busy machine."""
GUESSES: Final = 40
"""Guessed lock tokens near the attacker's own, half of them on either side."""
DECIMALS: Final = {
    f"p{number}": Decimal128(decimals.pack(Decimal("1E-300"), decimals.DECIMAL128)) for number in range(2_500)
}
PYTHON_SDK: Final = "azsdk-python-servicebus"
EMULATOR_NAME: Final = "RootManageSharedAccessKey"
EMULATOR_KEY: Final = "SAS_KEY_VALUE"
OK: Final = 200
BAD_REQUEST: Final = 400
SERVER_ERROR: Final = 500
_numbers: Final = itertools.count(1)


def _listener_credentials(target: TargetServer) -> tuple[str, str]:
    return target.listen_name, target.listen_key


async def _request(peer: RawPeer, node: str, operation: str, body: Mapping[str, object]) -> int:
    """Send one request on new links, and return the status of the response."""
    peer.grant(peer.attach_receiver(node, "replies"), 1)
    peer.request(await peer.attached_sender(node), "replies", operation, body)
    await peer.drain()
    properties = (await peer.response()).application_properties
    assert isinstance(properties, dict)
    return int(properties["statusCode"])


@attack(pause_s=1.0)
async def heavy_rules(target: TargetServer, outcome: Outcome) -> None:
    """Add rules with LIKE patterns to a subscription, and publish messages that are slow to match."""
    node = f"{target.topic}/subscriptions/all/$management"
    peer = await RawPeer.connect(target.host, target.amqp_port, credentials=_listener_credentials(target))
    try:
        for number in range(RULES):
            body = {"rule-name": f"rule-{number}", "rule-description": {"sql-filter": {"expression": PATTERNS}}}
            outcome.count(f"add-rule {await _request(peer, node, 'com.microsoft:add-rule', body)}")
    finally:
        peer.abort()
    sender_string = target.connection_string_of(target.send_name, target.send_key)
    async with MessagingFactory.from_connection_string(sender_string) as factory:
        sender = factory.create_topic_client(target.topic)
        for _ in range(PATTERNED_MESSAGES):
            await sender.send(BrokeredMessage(b"", properties={"p": PATTERN_TEXT}))
            outcome.count("published")


@attack(pause_s=0.2)
async def session_states(target: TargetServer, outcome: Outcome) -> None:
    """Fill the disk with session states."""
    listener_string = target.connection_string_of(*_listener_credentials(target))
    async with MessagingFactory.from_connection_string(listener_string) as factory:
        queue = factory.create_queue_client(target.session_queue)
        for _ in range(STATES):
            async with await queue.accept_session(f"session-{next(_numbers)}", timeout=10) as session:
                try:
                    await session.set_state(bytes(STATE_BYTES))
                    outcome.count("bytes kept", STATE_BYTES)
                except QuotaExceeded:
                    outcome.count("refused: the queue is full")
                    return


@attack(pause_s=0.5)
async def unread_peeks(target: TargetServer, outcome: Outcome) -> None:
    """Request a thousand pages of messages at once, and read none of the responses."""
    peer = await RawPeer.connect(target.host, target.amqp_port, credentials=_listener_credentials(target))
    try:
        node = f"{target.backlog_queue}/$management"
        peer.grant(peer.attach_receiver(node, "replies"), PEEKS)
        sender = await peer.attached_sender(node)
        for _ in range(PEEKS):
            body = {"from-sequence-number": 1, "message-count": Int(100)}
            peer.request(sender, "replies", "com.microsoft:peek-message", body)
            outcome.count("peeks")
        await asyncio.sleep(UNREAD_S)
    finally:
        peer.abort()


@attack(pause_s=1.0)
async def many_decimals(target: TargetServer, outcome: Outcome) -> None:
    """Store messages of many decimals, and peek them as the Azure SDK for Python, which gets decimals rewritten."""
    sender_string = target.connection_string_of(target.send_name, target.send_key)
    async with MessagingFactory.from_connection_string(sender_string) as factory:
        queue = factory.create_queue_client(target.backlog_queue)
        await queue.send(BrokeredMessage(b"", properties=DECIMALS, time_to_live=dt.timedelta(seconds=30)))
    peer = await RawPeer.connect(
        target.host, target.amqp_port, credentials=_listener_credentials(target), product=PYTHON_SDK
    )
    try:
        body = {"from-sequence-number": 1, "message-count": Int(100)}
        outcome.count(
            f"status {await _request(peer, f'{target.backlog_queue}/$management', 'com.microsoft:peek-message', body)}"
        )
    finally:
        peer.abort()


@attack(pause_s=0.5)
async def browse_links(target: TargetServer, outcome: Outcome) -> None:
    """Attach many browse links to a queue of large messages, grant credit on each, and read nothing."""
    peer = await RawPeer.connect(target.host, target.amqp_port, credentials=_listener_credentials(target))
    try:
        for _ in range(BROWSE_LINKS):
            source = Source(address=target.backlog_queue, distribution_mode="copy")
            peer.grant(peer.attach_receiver(target.backlog_queue, source=source), 100)
            outcome.count("links")
        await asyncio.sleep(UNREAD_S)
    finally:
        peer.abort()


@attack(pause_s=1.0)
async def revoked_keys(target: TargetServer, outcome: Outcome) -> None:
    """Keep using a link whose key has been deleted."""
    name, secret = f"guest{next(_numbers)}", f"{uuid.uuid4().hex}{uuid.uuid4().hex}"[:43] + "="
    queue = f"guests-{name}"
    await request(target, "PUT", queue, rules=((name, secret),), expected=(201,))
    try:
        peer = await RawPeer.connect(target.host, target.amqp_port, credentials=(name, secret))
        try:
            await peer.attached_sender(queue)
            other = ("other", secret)
            await request(target, "PUT", queue, rules=(other,), expected=(200,), headers={"If-Match": "*"})
            async with asyncio.timeout(REVOKED_S):
                await peer.expect(Detach)
            outcome.count("ended")
        except TimeoutError:
            outcome.add_problem(f"a link lived {REVOKED_S:g} s longer than its key")
        finally:
            peer.abort()
    finally:
        await request(target, "DELETE", queue, expected=(200,))


@attack(pause_s=0.5)
async def guessed_tokens(target: TargetServer, outcome: Outcome) -> None:
    """Receive a message, and try to settle other messages by lock tokens near its own."""
    listener_string = target.connection_string_of(*_listener_credentials(target))
    async with MessagingFactory.from_connection_string(listener_string) as factory:
        receiver = factory.create_message_receiver(target.queue)
        message = await receiver.receive(timeout=5)
        if message is None or message.lock_token is None:
            return
        own_token = message.lock_token.int
        await receiver.abandon(message)
    peer = await RawPeer.connect(target.host, target.amqp_port, credentials=_listener_credentials(target))
    try:
        for distance in range(1, GUESSES // 2):
            for guess in (own_token - distance, own_token + distance):
                tokens = Array(uuid.UUID, [uuid.UUID(int=guess)])
                body = {"disposition-status": "completed", "lock-tokens": tokens}
                status = await _request(peer, f"{target.queue}/$management", "com.microsoft:update-disposition", body)
                outcome.count(f"status {status}")
                if status == OK:
                    outcome.add_problem("a message was settled by a guessed token")
    finally:
        peer.abort()


@attack(pause_s=0.5)
async def malformed_requests(target: TargetServer, outcome: Outcome) -> None:
    """Send values that no converter accepts, and requests that two parsers understand differently."""
    start = f"POST /{target.queue}/messages HTTP/1.1"
    host = f"Host: {target.host}:{target.http_port}"
    authorization = f"Authorization: {token(target, target.queue, target.send_name, target.send_key)}"
    heads = {
        "a property with 400 digits": [start, host, authorization, "big: " + "9" * 400, "Content-Length: 0"],
        "a path in Host": [start, "Host: a:1/orders", authorization, "Content-Length: 0"],
        "two lengths": [start, host, authorization, "Content-Length: 0", "Content-Length: 0"],
    }
    for name, head in heads.items():
        await _expect_refusal(target, outcome, name, head)
    peer = await RawPeer.connect(target.host, target.amqp_port, credentials=_listener_credentials(target))
    try:
        far = {"correlation-filter": {"properties": {"when": Timestamp(2**62)}}}
        body = {"rule-name": "far", "rule-description": far}
        status = await _request(peer, f"{target.topic}/subscriptions/all/$management", "com.microsoft:add-rule", body)
        outcome.count(f"far timestamp: {status}")
        if status != BAD_REQUEST:
            outcome.add_problem(f"an add-rule with a far timestamp was answered with {status}")
    except PeerRefused:
        outcome.add_problem("an add-rule with a far timestamp closed the connection")
    finally:
        peer.abort()


@attack(pause_s=0.5)
async def foreign_pages(target: TargetServer, outcome: Outcome) -> None:
    """Send the requests of a foreign page in a browser: with a rebound host name, and for a WebSocket."""
    own_host = f"Host: {target.host}:{target.http_port}"
    upgrade = ["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"]
    upgrade += ["Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Protocol: AMQPWSB10"]
    websocket = ["GET /$servicebus/websocket HTTP/1.1", own_host, *upgrade]
    await _expect_refusal(target, outcome, "a WebSocket of a foreign page", [*websocket, "Origin: http://evil.example"])
    authorization = f"Authorization: {token(target, target.queue, EMULATOR_NAME, EMULATOR_KEY)}"
    rebound = [f"POST /{target.queue}/messages HTTP/1.1", "Host: evil.example", authorization, "Content-Length: 0"]
    await _expect_refusal(target, outcome, "a rebound name", rebound)


async def _expect_refusal(target: TargetServer, outcome: Outcome, name: str, head: list[str]) -> None:
    """Expect a status 4xx."""
    try:
        status = await status_of(target, head)
    except PeerRefused:
        outcome.add_problem(f"{name}: the connection was closed without an answer")
        return
    outcome.count(f"{name}: {status}")
    if not BAD_REQUEST <= status < SERVER_ERROR:
        outcome.add_problem(f"{name}: answered with {status}")
