"""Lists come in pages, and none is missed or told twice."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest

from tests.http.service import ATOM
from twinbus.model.queue import QueueDescription

if TYPE_CHECKING:
    from azure.servicebus.management import ServiceBusAdministrationClient

    from tests.http.service import Service

NAMES = [f"queue-{number:03}" for number in range(250)]


def fill(service: Service, names: list[str]) -> None:
    for name in names:
        service.loop.run(service.administration.create_queue(name, QueueDescription()))


def titles(text: str) -> list[str | None]:
    return [entry.findtext(f"{ATOM}title") for entry in ET.fromstring(text).iter(f"{ATOM}entry")]  # noqa: S314  # ours


def test_the_sdk_follows_the_pages_of_250_queues(client: ServiceBusAdministrationClient, service: Service) -> None:
    fill(service, NAMES)
    assert [queue.name for queue in client.list_queues()] == NAMES
    assert [queue.name for queue in client.list_queues_runtime_properties()] == NAMES
    assert service.asked == [("Manage", "")] * 6


def test_a_page_has_100_queues_when_nothing_is_said(service: Service) -> None:
    fill(service, NAMES)
    assert titles(service.call("GET", "/$Resources/queues").text) == NAMES[:100]


@pytest.mark.parametrize("target", ["/$Resources/Queues", "/$resources/queues/", "/%24Resources/queues"])
def test_skip_and_top_choose_the_page_however_the_address_is_spelled(service: Service, target: str) -> None:
    fill(service, NAMES[:10])
    reply = service.call("GET", f"{target}?$skip=3&$top=4&api-version=2021-05")
    assert titles(reply.text) == NAMES[3:7]
    assert re.findall('<link rel="next" href="([^"]*)"', reply.text) == [
        f"http://127.0.0.1:{service.plain.port}/$Resources/queues?$skip=7&amp;$top=4&amp;api-version=2021-05"
    ]


@pytest.mark.parametrize("query", ["$skip=6&$top=4", "$skip=9", "$skip=10", "$skip=500", "$top=0", "$top=10"])
def test_the_last_page_has_no_next(service: Service, query: str) -> None:
    fill(service, NAMES[:10])
    reply = service.call("GET", f"/$Resources/queues?{query}")
    assert reply.status == 200
    assert reply.text.count("<link ") == 1 + len(titles(reply.text))


def test_no_page_is_longer_than_the_limit_and_the_next_starts_where_it_ended(service: Service) -> None:
    fill(service, [f"q{number:04}" for number in range(101)])
    first = service.call("GET", "/$Resources/queues?$top=5000").text
    assert len(titles(first)) == 100
    assert re.findall('rel="next" href="[^"?]*([^"]*)"', first) == ["?$top=100&amp;$skip=100"]


@pytest.mark.parametrize("value", ["-1", "ten", "1.5", "", "1_0", "%D9%A1", "9" * 30])
@pytest.mark.parametrize("parameter", ["$skip", "$top"])
@pytest.mark.parametrize("kind", ["queues", "topics"])
def test_a_page_that_cannot_be_is_refused(service: Service, kind: str, parameter: str, value: str) -> None:
    reply = service.call("GET", f"/$Resources/{kind}?{parameter}={value}")
    assert reply.status == 400
    assert reply.detail.startswith(f"{parameter} is ")
