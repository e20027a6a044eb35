"""Answers that nobody should read, and what is made of them."""

from __future__ import annotations

import pytest

from tests.client.management.fake_service import FEED, atom_entry, atom_feed, http_response, run_fake_service
from twinbus.client import RetryPolicy
from twinbus.client.errors import UnknownAnswer
from twinbus.client.management import atom_client as service_module

LAUGHS = '<!DOCTYPE x [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;">]>' + atom_entry("<UserMetadata>&b;</UserMetadata>")
OUTSIDE = '<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/hostname">]>' + atom_entry("<UserMetadata>&a;</UserMetadata>")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (LAUGHS, "document type or entities"),
        (OUTSIDE, "document type or entities"),
        ("<!DOCTYPE x>" + atom_entry(), "document type or entities"),
        (atom_entry("<a>" * 40 + "</a>" * 40), "more than 32 deep"),
        ("", "no XML"),
        ("<entry", "no XML"),
        ("{}", "no XML"),
        ("<html/>", "it has to be an entry or a feed"),
        (FEED.format("").replace("2005", "2006"), "it has to be an entry or a feed"),
    ],
)
async def test_such_an_answer_is_not_read(body: str, reason: str) -> None:
    often = RetryPolicy(max_retries=5, first_pause_s=0.0)
    async with run_fake_service(http_response(200, body)) as service, service.manager(retry_policy=often) as manager:
        with pytest.raises(UnknownAnswer, match=reason):
            await manager.get_queue("orders")
        with pytest.raises(UnknownAnswer, match=reason):
            await manager.create_queue("orders")
        with pytest.raises(UnknownAnswer, match=reason):
            await anext(manager.get_queues())
    assert len(service.requests) == 3, "what was answered was done: it is not asked for again"


async def test_an_answer_without_end_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_module, "MAX_RESPONSE_BYTES", 1_000)
    async with (
        run_fake_service(http_response(200, atom_entry() + " " * 1_000)) as service,
        service.manager() as manager,
    ):
        with pytest.raises(UnknownAnswer, match="more than 1000 bytes"):
            await manager.get_queue("orders")


async def test_what_was_made_and_is_not_shown_is_told() -> None:
    async with run_fake_service(http_response(201, atom_feed())) as service, service.manager() as manager:
        with pytest.raises(UnknownAnswer, match="answered without a description"):
            await manager.create_queue("orders")


async def test_lists_that_never_end_are_as_long_as_they_are_asked_for() -> None:
    page = atom_feed('<link rel="next" href="x"/>', *[atom_entry(title=f"q{number}") for number in range(3)])
    async with run_fake_service(http_response(200, page)) as service, service.manager() as manager:
        queues = manager.get_queues()
        found = [(await anext(queues)).path for _ in range(7)]
    assert found == ["q0", "q1", "q2"] * 2 + ["q0"]
    assert len(service.requests) == 3
