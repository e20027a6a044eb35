"""Keys and tokens: invalid ones fail at once, valid ones are renewed before they expire."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest

from tests.client.bus import receive_one
from twinbus.client import BrokeredMessage, RetryPolicy, Token
from twinbus.client.tokens import SAS_TOKEN_TYPE
from twinbus.model.errors import Unauthorized

if TYPE_CHECKING:
    from tests.client.bus import Bus
    from tests.support.server_process import ServerProcess

PERSISTENT = RetryPolicy(max_retries=100, first_pause_s=1)


class ApplicationTokens:
    """Token provider of an application; records the audiences."""

    def __init__(self, server: ServerProcess, lifetime_s: float = 3600) -> None:
        self.audiences: list[str] = []
        self._server = server
        self._lifetime_s = lifetime_s

    async def token(self, audience: str) -> Token:
        self.audiences.append(audience)
        text = self._server.token("", lifetime_s=self._lifetime_s)
        return Token(text, SAS_TOKEN_TYPE, time.time() + self._lifetime_s)


def connection_string(server: ServerProcess, credentials: str) -> str:
    endpoint = server.connection_string.split(";", 1)[0]
    return f"{endpoint};{credentials};UseDevelopmentEmulator=true"


@pytest.mark.parametrize("kind", ["wrong key", "unknown name", "expired", "of another queue", "no token"])
async def test_invalid_credentials_fail_at_once_without_retries(bus: Bus, kind: str) -> None:
    server, queue = bus.server, bus.create_queue()
    strings = {
        "wrong key": f"SharedAccessKeyName={server.key_name};SharedAccessKey=c2VjcmV0",
        "unknown name": f"SharedAccessKeyName=Nobody;SharedAccessKey={server.key}",
        "expired": f"SharedAccessSignature={server.token(queue.path, lifetime_s=-10)}",
        "of another queue": f"SharedAccessSignature={server.token('another')}",
        "no token": "SharedAccessSignature=not a token at all",
    }
    refused = bus.factory(connection_string(server, strings[kind]), retry_policy=PERSISTENT).create_queue_client(
        queue.path
    )
    async with asyncio.timeout(3):
        for use in (refused.send(BrokeredMessage("x")), refused.receive(20), refused.peek()):
            with pytest.raises(Unauthorized):
                await use
    await queue.send(BrokeredMessage("x"))


async def test_a_token_in_the_connection_string_is_valid_for_its_scope(bus: Bus) -> None:
    queue = bus.create_queue()
    factory = bus.factory(connection_string(bus.server, f"SharedAccessSignature={bus.server.token(queue.path)}"))
    allowed = factory.create_queue_client(queue.path)
    await allowed.send(BrokeredMessage("x"))
    message = await receive_one(allowed)
    await allowed.renew_lock(message)
    await allowed.complete(message)


async def test_a_token_provider_is_called_once_for_each_entity(bus: Bus) -> None:
    tokens = ApplicationTokens(bus.server)
    queue = bus.factory(token_provider=tokens).create_queue_client(bus.server.create_queue())
    await asyncio.gather(*[queue.send(BrokeredMessage("x")) for _ in range(5)], queue.peek())
    await receive_one(queue)
    assert tokens.audiences == [f"sb://{bus.shared_factory.where.host}/{queue.path}"]


async def test_tokens_are_renewed_before_they_expire_and_links_stay(bus: Bus) -> None:
    tokens = ApplicationTokens(bus.server, lifetime_s=4)
    factory = bus.factory(token_provider=tokens)
    first, second = (factory.create_queue_client(bus.server.create_queue()) for _ in range(2))
    await first.receiver.open()
    waiting = asyncio.ensure_future(first.receive(20))
    await asyncio.sleep(0.5)
    await second.send(BrokeredMessage("x"))
    assert len(tokens.audiences) == 2
    await asyncio.sleep(5)
    assert len(tokens.audiences) in (4, 5), "each token is renewed once, not repeatedly"
    await bus.shared_factory.create_queue_client(first.path).send(BrokeredMessage("late"))
    message = await waiting
    assert message is not None
    assert message.text == "late"


async def test_a_link_ends_with_a_token_that_cannot_be_renewed(bus: Bus) -> None:
    queue = bus.create_queue()
    factory = bus.factory(
        connection_string(bus.server, f"SharedAccessSignature={bus.server.token(queue.path, lifetime_s=2.5)}")
    )
    with pytest.raises(Unauthorized):
        await factory.create_queue_client(queue.path).receive(20)


async def test_an_error_of_the_token_provider_reaches_the_caller(bus: Bus) -> None:
    class Broken:
        async def token(self, audience: str) -> Token:
            raise LookupError(audience)

    queue = bus.factory(token_provider=Broken()).create_queue_client("orders")
    with pytest.raises(LookupError, match="orders"):
        await queue.send(BrokeredMessage("x"))


async def test_a_key_is_never_printed(bus: Bus) -> None:
    factory = bus.factory()
    token = Token("SharedAccessSignature secret", SAS_TOKEN_TYPE, 7)
    for text in (repr(factory), repr(factory.where), repr(token), repr(factory.settings)):
        assert bus.server.key not in text
        assert "secret" not in text
