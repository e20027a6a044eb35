"""The exact XML that the JavaScript SDK expects: it ignores namespaces and compares names with their prefixes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.server.http.http_service import HttpService

ORDER = [
    "LockDuration",
    "MaxSizeInMegabytes",
    "RequiresDuplicateDetection",
    "RequiresSession",
    "DefaultMessageTimeToLive",
    "DeadLetteringOnMessageExpiration",
    "DuplicateDetectionHistoryTimeWindow",
    "MaxDeliveryCount",
    "EnableBatchedOperations",
    "SizeInBytes",
    "MessageCount",
    "IsAnonymousAccessible",
    "AuthorizationRules",
    "Status",
    "CreatedAt",
    "UpdatedAt",
    "AccessedAt",
    "SupportOrdering",
    "CountDetails",
    "AutoDeleteOnIdle",
    "EnablePartitioning",
    "EntityAvailabilityStatus",
    "EnableExpress",
    "ForwardTo",
    "UserMetadata",
    "ForwardDeadLetteredMessagesTo",
    "MaxMessageSizeInKilobytes",
]
# As the JavaScript SDK sends it.
CREATE = (
    '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>'
    '<entry xmlns="http://www.w3.org/2005/Atom"><updated>2026-01-01T00:00:00.000Z</updated>'
    '<content type="application/xml"><QueueDescription '
    'xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect" '
    'xmlns:i="http://www.w3.org/2001/XMLSchema-instance"><LockDuration>PT30S</LockDuration>'
    "<ForwardTo>sb://localhost:5443/audit</ForwardTo><UserMetadata>mine</UserMetadata>"
    "<ForwardDeadLetteredMessagesTo>sb://localhost:5443/bin</ForwardDeadLetteredMessagesTo>"
    "</QueueDescription></content></entry>"
)


@pytest.fixture
def entry(service: HttpService) -> str:
    reply = service.request("PUT", "/team/orders?api-version=2021-05", CREATE, Content_Type="application/atom+xml")
    assert reply.status == 201
    return reply.text


def test_no_element_but_the_counts_has_a_prefix(entry: str) -> None:
    prefixed = re.findall(r"<(\w+):(\w+)", entry)
    assert {prefix for prefix, _ in prefixed} == {"d2p1"}
    assert [name for _, name in prefixed] == [
        "ActiveMessageCount",
        "DeadLetterMessageCount",
        "ScheduledMessageCount",
        "TransferMessageCount",
        "TransferDeadLetterMessageCount",
    ]


def test_the_only_attribute_of_the_counts_declares_their_prefix(entry: str) -> None:
    assert re.findall("<CountDetails ([^>]*)>", entry) == [
        'xmlns:d2p1="http://schemas.microsoft.com/netservices/2011/06/servicebus"'
    ]


def test_the_elements_have_the_order_of_the_contract(entry: str) -> None:
    description = entry[entry.index("<QueueDescription") : entry.index("</QueueDescription>")]
    assert [name for name in re.findall(r"<(\w+)[ >/]", description)[1:] if name != "d2p1"] == ORDER


def test_the_id_ends_with_the_path_of_the_queue(entry: str, service: HttpService) -> None:
    assert re.findall("<id>([^<]*)</id>", entry) == [f"http://127.0.0.1:{service.http_listener.port}/team/orders"]


def test_an_entry_has_the_children_that_service_bus_writes(entry: str) -> None:
    outside = re.sub("<content.*</content>", "<content>", entry, flags=re.DOTALL)
    assert re.findall(r"<(\w+)", outside) == [
        "entry",
        "id",
        "title",
        "published",
        "updated",
        "author",
        "name",
        "link",
        "content",
    ]
    assert entry.startswith('<entry xmlns="http://www.w3.org/2005/Atom">')
    assert '<content type="application/xml"><QueueDescription xmlns="http://schemas.microsoft.com/' in entry
    assert "<author><name>contoso</name></author>" in entry


def test_values_are_written_as_service_bus_writes_them(entry: str) -> None:
    for expected in (
        "<LockDuration>PT30S</LockDuration>",
        "<DefaultMessageTimeToLive>P10675199DT2H48M5.4775807S</DefaultMessageTimeToLive>",
        "<DuplicateDetectionHistoryTimeWindow>PT10M</DuplicateDetectionHistoryTimeWindow>",
        "<RequiresSession>false</RequiresSession>",
        "<AuthorizationRules />",
        "<CreatedAt>2023-11-14T22:13:20.123Z</CreatedAt>",
        "<AccessedAt>0001-01-01T00:00:00Z</AccessedAt>",
        "<EntityAvailabilityStatus>Available</EntityAvailabilityStatus>",
    ):
        assert expected in entry


def test_a_feed_contains_entries_of_the_same_form(entry: str, service: HttpService) -> None:
    assert entry
    feed = service.request("GET", "/$Resources/Queues?api-version=2021-05")
    assert feed.headers["content-type"] == "application/atom+xml;type=feed;charset=utf-8"
    assert re.match(
        '<feed xmlns="http://www.w3.org/2005/Atom"><title type="text">Queues</title><id>[^<]*</id>'
        '<updated>[^<]*Z</updated><link rel="self" href="[^"]*" /><entry xmlns="http://www.w3.org/2005/Atom"><id>',
        feed.text,
    )


def test_the_namespace_is_an_entry_too(service: HttpService) -> None:
    text = service.request("GET", "/$namespaceinfo?api-version=2021-05").text
    assert re.findall(r"<(\w+)[^>]*>[^<]*</\1>", text[text.index("<NamespaceInfo") :]) == [
        "CreatedTime",
        "MessagingSKU",
        "ModifiedTime",
        "Name",
        "NamespaceType",
    ]


def test_an_error_has_a_code_and_a_detail_and_no_namespace(service: HttpService) -> None:
    reply = service.request("GET", "/missing")
    tracking_id = r"TrackingId:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
    expected = rf"<Error><Code>404</Code><Detail>The messaging entity 'missing' could not be found\. {tracking_id}"
    assert re.fullmatch(f"{expected}</Detail></Error>", reply.text)
    assert reply.headers["content-type"].startswith("application/xml")
