"""Lists are paged: no entity is missing, and none is listed twice."""

from __future__ import annotations

import contextlib
import re
from functools import partial
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET
from xml.etree.ElementTree import Element

import pytest
from starlette.requests import Request

from tests.server.http.atom_entries import atom_entry
from tests.server.http.http_service import ATOM
from twinbus.model.queue import QueueDescription
from twinbus.server.http import atom_responses
from twinbus.server.http.atom_responses import AtomEntry
from twinbus.server.http.call import Call
from twinbus.server.http.limits import HttpLimits

if TYPE_CHECKING:
    from azure.servicebus.management import ServiceBusAdministrationClient

    from tests.server.http.http_service import HttpService

NAMES = [f"queue-{number:03}" for number in range(250)]


def fill(service: HttpService, names: list[str]) -> None:
    for name in names:
        service.loop.run(service.administration.create_queue(name, QueueDescription()))


def titles(text: str) -> list[str | None]:
    return [entry.findtext(f"{ATOM}title") for entry in ET.fromstring(text).iter(f"{ATOM}entry")]  # noqa: S314  # ours


def test_the_sdk_follows_the_pages_of_250_queues(client: ServiceBusAdministrationClient, service: HttpService) -> None:
    fill(service, NAMES)
    assert [queue.name for queue in client.list_queues()] == NAMES
    assert [queue.name for queue in client.list_queues_runtime_properties()] == NAMES
    assert service.authorisation_requests == [("Manage", "$Resources/queues")] * 6


def test_a_page_has_100_queues_by_default(service: HttpService) -> None:
    fill(service, NAMES)
    assert titles(service.request("GET", "/$Resources/queues").text) == NAMES[:100]


@pytest.mark.parametrize("target", ["/$Resources/Queues", "/$resources/queues/", "/%24Resources/queues"])
def test_skip_and_top_select_the_page_for_any_spelling_of_the_address(service: HttpService, target: str) -> None:
    fill(service, NAMES[:10])
    reply = service.request("GET", f"{target}?$skip=3&$top=4&api-version=2021-05")
    assert titles(reply.text) == NAMES[3:7]
    assert re.findall('<link rel="next" href="([^"]*)"', reply.text) == [
        f"http://127.0.0.1:{service.http_listener.port}/$Resources/queues?$skip=7&amp;$top=4&amp;api-version=2021-05"
    ]


@pytest.mark.parametrize("query", ["$skip=6&$top=4", "$skip=9", "$skip=10", "$skip=500", "$top=0", "$top=10"])
def test_the_last_page_has_no_next(service: HttpService, query: str) -> None:
    fill(service, NAMES[:10])
    reply = service.request("GET", f"/$Resources/queues?{query}")
    assert reply.status == 200
    assert reply.text.count("<link ") == 1 + len(titles(reply.text))


def test_no_page_is_longer_than_the_limit_and_the_next_starts_where_it_ended(service: HttpService) -> None:
    fill(service, [f"q{number:04}" for number in range(1_001)])
    first = service.request("GET", "/$Resources/queues?$top=5000").text
    assert len(titles(first)) == 1_000
    assert re.findall('rel="next" href="[^"?]*([^"]*)"', first) == ["?$top=1000&amp;$skip=1000"]


@pytest.mark.parametrize("value", ["-1", "ten", "1.5", "", "1_0", "%D9%A1", "9" * 30])
@pytest.mark.parametrize("parameter", ["$skip", "$top"])
@pytest.mark.parametrize("kind", ["queues", "topics"])
def test_an_invalid_page_is_refused(service: HttpService, kind: str, parameter: str, value: str) -> None:
    reply = service.request("GET", f"/$Resources/{kind}?{parameter}={value}")
    assert reply.status == 400
    assert reply.detail.startswith(f"{parameter} is ")


def test_a_list_can_be_filtered_by_prefix(service: HttpService) -> None:
    fill(service, ["team/a", "Team/b", "teams", "other"])
    first = service.request("GET", "/$Resources/queues?prefix=TEAM/&$top=1")
    assert titles(first.text) == ["team/a"]
    [query] = re.findall('rel="next" href="[^"?]*([^"]*)"', first.text)
    assert query == "?prefix=TEAM%2F&amp;$top=1&amp;$skip=1"
    assert titles(service.request("GET", f"/$Resources/queues{query.replace('&amp;', '&')}").text) == ["Team/b"]
    assert titles(service.request("GET", "/$Resources/topics?prefix=team").text) == []


def test_a_list_of_subscriptions_can_be_filtered_by_prefix(service: HttpService) -> None:
    service.request("PUT", "/news", atom_entry("TopicDescription"))
    for name in ("all", "alien", "few"):
        service.request("PUT", f"/news/subscriptions/{name}", atom_entry("SubscriptionDescription"))
    assert titles(service.request("GET", "/news/subscriptions?prefix=AL").text) == ["alien", "all"]


def test_each_entry_of_a_page_has_its_counts(service: HttpService) -> None:
    fill(service, NAMES[:3])
    assert service.request("GET", "/$Resources/queues").text.count("<d2p1:ActiveMessageCount>0<") == 3


def test_other_requests_are_served_while_a_long_page_is_written() -> None:
    scope = {"type": "http", "path": "/", "scheme": "http", "headers": [], "query_string": b"$top=1000"}
    entry_of = partial(AtomEntry, path="x", title="x", created_ms=0, updated_ms=0)

    async def list_some(*, skip: int, top: int) -> list[int]:
        return list(range(skip, top))

    call = Call.from_request(Request(scope), {}, HttpLimits())
    page = atom_responses.feed_response(call, "x", list_some, lambda _: entry_of(content=Element("x")), "author")
    turns = 0
    with contextlib.suppress(StopIteration):
        while True:
            page.send(None)
            turns += 1
    assert turns == 1_000 / atom_responses.MAX_ENTRIES_PER_TURN
