"""Which token a request shows, and when another one is asked for."""

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
    """Stands still until it is told otherwise."""

    def __init__(self) -> None:
        self.now_s = float(NOW_S)

    def wall_ms(self) -> int:
        return round(self.now_s * 1000)


class Counted:
    """Gives a new token each time, and counts them."""

    def __init__(self, clock: FakeClock, kind: str = SAS_TOKEN_TYPE, text: str = "token {}") -> None:
        self._clock = clock
        self._kind = kind
        self._text = text
        self.audiences: list[str] = []

    async def token(self, audience: str) -> Token:
        self.audiences.append(audience)
        return Token(self._text.format(len(self.audiences)), self._kind, self._clock.now_s + LIFETIME_S)


async def test_a_key_makes_a_signature_for_the_namespace_that_is_good_for_an_hour() -> None:
    async with (
        run_fake_service(http_response(200, atom_entry())) as service,
        service.manager(clock=FakeClock()) as manager,
    ):
        await manager.get_queue("orders")
    (asked,) = service.requests
    expected = make_token("https://127.0.0.1/", "root", "c2VjcmV0", NOW_S + LIFETIME_S)
    assert asked.headers["authorization"] == expected
    assert "c2VjcmV0" not in unquote(asked.target + str(asked.headers))


async def test_a_token_is_kept_until_it_is_near_its_end() -> None:
    clock = FakeClock()
    provider = Counted(clock)
    async with (
        run_fake_service(http_response(200, atom_entry())) as service,
        service.manager(clock=clock, token_provider=provider) as manager,
    ):
        for passed_s in (0, 1, 2_600, 200, 100):
            clock.now_s += passed_s
            await manager.get_queue("orders")
    shown = [asked.headers["authorization"] for asked in service.requests]
    assert shown == ["token 1", "token 1", "token 1", "token 2", "token 2"]
    assert provider.audiences == ["https://127.0.0.1/"] * 2


async def test_a_token_that_was_refused_is_not_shown_again() -> None:
    clock = FakeClock()
    provider = Counted(clock)
    answers = [http_response(401), http_response(200, atom_entry())]
    async with run_fake_service(*answers) as service, service.manager(clock=clock, token_provider=provider) as manager:
        with pytest.raises(Unauthorized):
            await manager.get_queue("orders")
        await manager.get_queue("orders")
    assert [asked.headers["authorization"] for asked in service.requests] == ["token 1", "token 2"]


async def test_a_token_of_entra_is_shown_as_a_bearer() -> None:
    provider = Counted(FakeClock(), JWT_TOKEN_TYPE, "ey{}")
    async with (
        run_fake_service(http_response(200, atom_entry())) as service,
        service.manager(token_provider=provider) as manager,
    ):
        await manager.get_queue("orders")
    assert service.requests[0].headers["authorization"] == "Bearer ey1"


async def test_a_token_that_no_header_can_have_is_told_and_not_shown() -> None:
    provider = Counted(FakeClock(), SAS_TOKEN_TYPE, "very\nsecret")
    async with (
        run_fake_service(http_response(200, atom_entry())) as service,
        service.manager(token_provider=provider) as manager,
    ):
        with pytest.raises(InvalidArgument, match="characters that no header can have") as caught:
            await manager.get_queue("orders")
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert service.requests == []


async def test_the_token_is_shown_for_what_is_forwarded_to_as_well() -> None:
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
    shown = [[asked.headers.get(name) for name in names] for asked in service.requests]
    assert shown == [[None, None], [None, token], [token, token]]
