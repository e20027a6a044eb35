"""Tokens in requests, and when the token provider is called again."""

from __future__ import annotations

from urllib.parse import unquote

import pytest

from tests.client.management.fake_service import atom_entry, http_response, run_fake_service
from twinbus.client import Token
from twinbus.client.management import QueueDescription
from twinbus.client.tokens import JWT_TOKEN_TYPE, SAS_TOKEN_TYPE
from twinbus.model.errors import InvalidArgument, Unauthorized
from twinbus.model.signature import make_token

NOW_S = 1_700_000_000
LIFETIME_S = 3_600


class FakeClock:
    """Clock that the test advances."""

    def __init__(self) -> None:
        self.now_s = float(NOW_S)

    def wall_ms(self) -> int:
        return round(self.now_s * 1000)


class CountingProvider:
    """Token provider that returns a new token each time and records the audiences."""

    def __init__(self, clock: FakeClock, kind: str = SAS_TOKEN_TYPE, text: str = "token {}") -> None:
        self._clock = clock
        self._kind = kind
        self._text = text
        self.audiences: list[str] = []

    async def token(self, audience: str) -> Token:
        self.audiences.append(audience)
        return Token(self._text.format(len(self.audiences)), self._kind, self._clock.now_s + LIFETIME_S)


async def test_a_key_signs_a_token_for_the_namespace_that_is_valid_for_an_hour() -> None:
    async with (
        run_fake_service(http_response(200, atom_entry())) as service,
        service.manager(clock=FakeClock()) as manager,
    ):
        await manager.get_queue("orders")
    (request,) = service.requests
    expected = make_token("https://127.0.0.1/", "root", "c2VjcmV0", NOW_S + LIFETIME_S)
    assert request.headers["authorization"] == expected
    assert "c2VjcmV0" not in unquote(request.target + str(request.headers))


async def test_a_token_is_reused_until_it_is_about_to_expire() -> None:
    clock = FakeClock()
    provider = CountingProvider(clock)
    async with (
        run_fake_service(http_response(200, atom_entry())) as service,
        service.manager(clock=clock, token_provider=provider) as manager,
    ):
        for elapsed_s in (0, 1, 2_600, 200, 100):
            clock.now_s += elapsed_s
            await manager.get_queue("orders")
    sent = [request.headers["authorization"] for request in service.requests]
    assert sent == ["token 1", "token 1", "token 1", "token 2", "token 2"]
    assert provider.audiences == ["https://127.0.0.1/"] * 2


async def test_a_refused_token_is_not_reused() -> None:
    clock = FakeClock()
    provider = CountingProvider(clock)
    responses = [http_response(401), http_response(200, atom_entry())]
    async with (
        run_fake_service(*responses) as service,
        service.manager(clock=clock, token_provider=provider) as manager,
    ):
        with pytest.raises(Unauthorized):
            await manager.get_queue("orders")
        await manager.get_queue("orders")
    assert [request.headers["authorization"] for request in service.requests] == ["token 1", "token 2"]


async def test_an_entra_token_is_sent_as_a_bearer_token() -> None:
    provider = CountingProvider(FakeClock(), JWT_TOKEN_TYPE, "ey{}")
    async with (
        run_fake_service(http_response(200, atom_entry())) as service,
        service.manager(token_provider=provider) as manager,
    ):
        await manager.get_queue("orders")
    assert service.requests[0].headers["authorization"] == "Bearer ey1"


async def test_a_token_that_is_invalid_in_a_header_is_refused_and_not_printed() -> None:
    provider = CountingProvider(FakeClock(), SAS_TOKEN_TYPE, "very\nsecret")
    async with (
        run_fake_service(http_response(200, atom_entry())) as service,
        service.manager(token_provider=provider) as manager,
    ):
        with pytest.raises(InvalidArgument, match="characters that are invalid in a header") as caught:
            await manager.get_queue("orders")
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert service.requests == []


async def test_the_token_is_also_sent_for_forwarding_targets() -> None:
    plain, both = QueueDescription(), QueueDescription(forward_to="a", forward_dead_lettered_to="b")
    one = QueueDescription(forward_dead_lettered_to="b")
    async with (
        run_fake_service(http_response(201, atom_entry())) as service,
        service.manager(clock=FakeClock()) as manager,
    ):
        for description in (plain, one, both):
            await manager.create_queue("orders", description)
    names = ("servicebussupplementaryauthorization", "servicebusdlqsupplementaryauthorization")
    token = service.requests[0].headers["authorization"]
    sent = [[request.headers.get(name) for name in names] for request in service.requests]
    assert sent == [[None, None], [None, token], [token, token]]
