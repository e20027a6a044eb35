"""Dangerous, malformed, oversized or endless responses."""

from __future__ import annotations

import pytest

from tests.client.management.fake_service import FEED, atom_entry, atom_feed, http_response, run_fake_service
from twinbus.client import RetryPolicy
from twinbus.client.errors import UnknownAnswer
from twinbus.client.management import atom_client as service_module

INTERNAL_ENTITIES = '<!DOCTYPE x [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;">]>' + atom_entry(
    "<UserMetadata>&b;</UserMetadata>"
)
EXTERNAL_ENTITY = '<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/hostname">]>' + atom_entry(
    "<UserMetadata>&a;</UserMetadata>"
)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (INTERNAL_ENTITIES, "document type or entities"),
        (EXTERNAL_ENTITY, "document type or entities"),
        ("<!DOCTYPE x>" + atom_entry(), "document type or entities"),
        (atom_entry("<a>" * 40 + "</a>" * 40), "more than 32 deep"),
        ("", "not valid XML"),
        ("<entry", "not valid XML"),
        ("{}", "not valid XML"),
        ("<html/>", "it has to be an entry or a feed"),
        (FEED.format("").replace("2005", "2006"), "it has to be an entry or a feed"),
    ],
)
async def test_a_dangerous_or_malformed_response_raises_unknown_answer_without_retries(body: str, reason: str) -> None:
    five_retries = RetryPolicy(max_retries=5, first_pause_s=0.0)
    async with (
        run_fake_service(http_response(200, body)) as service,
        service.manager(retry_policy=five_retries) as manager,
    ):
        with pytest.raises(UnknownAnswer, match=reason):
            await manager.get_queue("orders")
        with pytest.raises(UnknownAnswer, match=reason):
            await manager.create_queue("orders")
        with pytest.raises(UnknownAnswer, match=reason):
            await anext(manager.get_queues())
    assert len(service.requests) == 3, "a request with a response is not repeated"


async def test_a_response_above_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_module, "MAX_RESPONSE_BYTES", 1_000)
    async with (
        run_fake_service(http_response(200, atom_entry() + " " * 1_000)) as service,
        service.manager() as manager,
    ):
        with pytest.raises(UnknownAnswer, match="more than 1000 bytes"):
            await manager.get_queue("orders")


async def test_a_create_response_without_a_description_raises_unknown_answer() -> None:
    async with run_fake_service(http_response(201, atom_feed())) as service, service.manager() as manager:
        with pytest.raises(UnknownAnswer, match="the response has no description"):
            await manager.create_queue("orders")


async def test_an_endless_list_is_read_lazily() -> None:
    page = atom_feed('<link rel="next" href="x"/>', *[atom_entry(title=f"q{number}") for number in range(3)])
    async with run_fake_service(http_response(200, page)) as service, service.manager() as manager:
        queues = manager.get_queues()
        paths = [(await anext(queues)).path for _ in range(7)]
    assert paths == ["q0", "q1", "q2"] * 2 + ["q0"]
    assert len(service.requests) == 3
