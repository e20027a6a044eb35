"""Which elements of a description are read, ignored or refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.server.http.http_service import ENTRY
from twinbus.model.atom import envelope
from twinbus.model.atom.descriptions import QUEUE_CODEC
from twinbus.model.description import FOREVER_MS
from twinbus.model.errors import InvalidArgument
from twinbus.model.queue import QueueDescription

if TYPE_CHECKING:
    from tests.server.http.http_service import HttpService


def read(elements: str, current: QueueDescription | None = None) -> QueueDescription:
    return QUEUE_CODEC.read(envelope.read_description(ENTRY.format(elements).encode(), QUEUE_CODEC.tag), current)


def test_elements_may_have_any_order_and_white_space() -> None:
    description = read("<Status> Disabled\n</Status>\n<LockDuration>\tPT5S</LockDuration>")
    assert description == QueueDescription(lock_duration_ms=5_000, status="Disabled")


def test_unknown_elements_are_ignored() -> None:
    elements = "<Flux>9</Flux><other:LockDuration xmlns:other='urn:x'>PT9S</other:LockDuration><!-- a word -->"
    assert read(elements) == QueueDescription()


def test_read_only_elements_are_ignored() -> None:
    elements = "<SizeInBytes>x</SizeInBytes><MessageCount>-1</MessageCount><CountDetails><A/></CountDetails>"
    assert read(f"{elements}<CreatedAt>soon</CreatedAt><AuthorizationRules/>") == QueueDescription()


def test_a_nil_element_is_ignored() -> None:
    assert read('<LockDuration i:nil="true"/><ForwardTo i:nil="true"/>') == QueueDescription()


def test_any_namespace_prefix_is_accepted() -> None:
    body = ENTRY.format("<MaxDeliveryCount>3</MaxDeliveryCount>")
    for old, new in (("<entry xmlns=", "<a:entry xmlns:a="), ("<content", "<a:content"), ("</", "</a:")):
        body = body.replace(old, new)
    body = body.replace("</a:QueueDescription", "</QueueDescription").replace("</a:MaxD", "</MaxD")
    assert QUEUE_CODEC.read(envelope.read_description(body.encode(), QUEUE_CODEC.tag)) == QueueDescription(
        max_delivery_count=3
    )


@pytest.mark.parametrize("encoding", ["utf-16", "latin-1"])
def test_other_encodings_are_read(encoding: str) -> None:
    text = f'<?xml version="1.0" encoding="{encoding}"?>' + ENTRY.format("<UserMetadata>\u00e9</UserMetadata>")
    assert QUEUE_CODEC.read(envelope.read_description(text.encode(encoding), QUEUE_CODEC.tag)).user_metadata == "\u00e9"


def test_an_update_resets_omitted_properties_except_those_fixed_at_creation() -> None:
    current = QueueDescription(
        requires_duplicate_detection=True, enable_partitioning=True, forward_to="audit", max_size_mb=2048
    )
    assert read("", current) == QueueDescription(requires_duplicate_detection=True, enable_partitioning=True)


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("True", True), ("1", True), ("false", False), ("0", False)]
)
def test_booleans_have_several_spellings(text: str, *, value: bool) -> None:
    assert read(f"<RequiresSession>{text}</RequiresSession>").requires_session is value


@pytest.mark.parametrize("size", [1024, 2048, 3072, 4096, 5120])
def test_valid_sizes_are_accepted(size: int) -> None:
    assert read(f"<MaxSizeInMegabytes>{size}</MaxSizeInMegabytes>").max_size_mb == size


@pytest.mark.parametrize(
    ("element", "text"),
    [
        ("MaxSizeInMegabytes", "1025"),
        ("MaxSizeInMegabytes", "6144"),
        ("MaxSizeInMegabytes", "0"),
        ("MaxDeliveryCount", "ten"),
        ("MaxDeliveryCount", "2147483648"),
        ("MaxDeliveryCount", "9" * 5000),
        ("MaxMessageSizeInKilobytes", "102401"),
        ("RequiresSession", "yes"),
        ("EnablePartitioning", ""),
        ("LockDuration", "60"),
        ("LockDuration", "PT4S"),
        ("LockDuration", "-PT1M"),
        ("LockDuration", "PT0S"),
        ("DefaultMessageTimeToLive", "PT0.0001S"),
        ("AutoDeleteOnIdle", "PT4M"),
        ("DuplicateDetectionHistoryTimeWindow", "P8D"),
        ("Status", "Busy"),
        ("ForwardTo", "sb://localhost/"),
        ("ForwardDeadLetteredMessagesTo", "a b"),
    ],
)
def test_the_error_names_the_element_with_an_invalid_value(element: str, text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        read(f"<{element}>{text}</{element}>")
    assert str(caught.value).startswith(f"{element} is {text!r:.80}: ")


def test_the_longest_duration_is_read_in_every_spelling() -> None:
    for text in ("P10675199DT2H48M5.4775807S", "P10675199DT2H48M5.47758S", "P10675199D", "P999999999DT23H59M59.9S"):
        assert read(f"<AutoDeleteOnIdle>{text}</AutoDeleteOnIdle>").auto_delete_on_idle_ms == FOREVER_MS


def test_if_match_can_only_be_a_star(service: HttpService) -> None:
    service.put("/orders")
    assert service.put("/orders", If_Match="*").status == 200
    assert service.put("/orders", If_Match='"etag"').detail.startswith("If-Match is")
