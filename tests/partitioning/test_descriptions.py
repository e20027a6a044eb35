"""Descriptions of partitioned entities: creation, updates, sizes and API versions, with the SDK and over HTTP."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest
from azure.core.exceptions import HttpResponseError
from azure.servicebus import ServiceBusMessage

from tests.support.http_client import HttpClient, HttpResponse
from tests.support.server_process import QUEUE_ENTRY

if TYPE_CHECKING:
    from tests.sdk.bus import Bus
    from tests.support.server_process import ServerProcess

GIGABYTE_MB = 1024
FRAGMENTS = 16
FLAGS = ("enable_partitioning", "requires_session", "requires_duplicate_detection")


def test_r086_r087_queues_and_topics_can_be_created_partitioned(bus: Bus) -> None:
    admin, name = bus.administration, _name()
    assert admin.create_queue(name, enable_partitioning=True).enable_partitioning
    assert admin.get_queue(name).enable_partitioning
    assert admin.create_topic(f"{name}-topic", enable_partitioning=True).enable_partitioning
    assert admin.get_topic(f"{name}-topic").enable_partitioning
    assert not admin.create_queue(f"{name}-plain").enable_partitioning
    assert not admin.create_topic(f"{name}-plain-topic").enable_partitioning


def test_r088_q30_options_of_the_creation_cannot_be_changed(bus: Bus) -> None:
    admin, name = bus.administration, _name()
    for is_partitioned in (True, False):
        queue = admin.create_queue(f"{name}-{is_partitioned}", enable_partitioning=is_partitioned)
        for flag in FLAGS:
            changed = admin.get_queue(queue.name)
            setattr(changed, flag, not getattr(changed, flag))
            _assert_refused(admin.update_queue, changed)
        topic = admin.create_topic(f"{name}-topic-{is_partitioned}", enable_partitioning=is_partitioned)
        for flag in ("enable_partitioning", "requires_duplicate_detection"):
            changed_topic = admin.get_topic(topic.name)
            setattr(changed_topic, flag, not getattr(changed_topic, flag))
            _assert_refused(admin.update_topic, changed_topic)
        assert admin.get_queue(queue.name).enable_partitioning == is_partitioned
        assert admin.get_topic(topic.name).enable_partitioning == is_partitioned


@pytest.mark.parametrize("gigabytes", [1, 2, 3, 4, 5])
def test_r090_r091_r092_q24_an_entity_of_16_fragments_is_shown_with_16_times_the_size(bus: Bus, gigabytes: int) -> None:
    admin, name = bus.administration, _name()
    requested_mb = gigabytes * GIGABYTE_MB
    admin.create_queue(name, enable_partitioning=True, max_size_in_megabytes=requested_mb)
    admin.create_topic(f"{name}-topic", enable_partitioning=True, max_size_in_megabytes=requested_mb)
    assert admin.get_queue(name).max_size_in_megabytes == FRAGMENTS * requested_mb
    assert admin.get_topic(f"{name}-topic").max_size_in_megabytes == FRAGMENTS * requested_mb
    plain = admin.create_queue(f"{name}-plain", max_size_in_megabytes=requested_mb)
    assert plain.max_size_in_megabytes == requested_mb


def test_r090_r091_r092_the_default_size_is_16_gigabytes_and_the_maximum_80(bus: Bus) -> None:
    admin, name = bus.administration, _name()
    assert admin.create_queue(name, enable_partitioning=True).max_size_in_megabytes == 16 * GIGABYTE_MB
    largest = admin.create_queue(f"{name}-5", enable_partitioning=True, max_size_in_megabytes=5 * GIGABYTE_MB)
    assert largest.max_size_in_megabytes == 80 * GIGABYTE_MB
    for size_mb in (6 * GIGABYTE_MB, 1500, 96 * GIGABYTE_MB):
        _assert_refused(admin.create_queue, f"{name}-6", enable_partitioning=True, max_size_in_megabytes=size_mb)


def test_r092_an_update_with_the_displayed_size_changes_nothing(bus: Bus) -> None:
    admin, name = bus.administration, _name()
    admin.create_queue(name, enable_partitioning=True, max_size_in_megabytes=2 * GIGABYTE_MB)
    bus.update_queue(name, max_delivery_count=3)
    changed = admin.get_queue(name)
    assert (changed.max_size_in_megabytes, changed.max_delivery_count) == (32 * GIGABYTE_MB, 3)
    bus.update_queue(name, max_size_in_megabytes=3 * GIGABYTE_MB)
    assert admin.get_queue(name).max_size_in_megabytes == 48 * GIGABYTE_MB


def test_counts_and_sizes_cover_all_fragments(bus: Bus) -> None:
    name = _name()
    bus.administration.create_queue(name, enable_partitioning=True)
    sender = bus.sender(name)
    for _ in range(20):
        sender.send_messages(ServiceBusMessage("an order"))
    runtime = bus.administration.get_queue_runtime_properties(name)
    assert (runtime.active_message_count, runtime.total_message_count) == (20, 20)
    assert runtime.size_in_bytes is not None
    assert runtime.size_in_bytes > 20


def test_r085_q31_versions_before_2013_10_cannot_create_or_use_partitioned_entities(server: ServerProcess) -> None:
    name = _name()
    flag = "<EnablePartitioning>true</EnablePartitioning>"
    http_client = HttpClient(server)
    for version in ("2012-03", "2013-08"):
        reply = _put(http_client, f"/{name}?api-version={version}", flag)
        assert reply.status == 400
        assert "2013-10" in reply.detail
    for number, query in enumerate(("?api-version=2013-10", "?api-version=2021-05", "")):
        path = f"/{name}-{number}"
        assert _put(http_client, path + query, flag).status == 201
        assert b"EnablePartitioning>true<" in http_client.request("GET", path + query).body
        assert b"EnablePartitioning" not in http_client.request("GET", f"{path}?api-version=2013-08").body
        assert http_client.request("POST", f"{path}/messages{query}", b"x").status == 201
        for method, resource in (("POST", "messages"), ("POST", "messages/head"), ("DELETE", "messages/head")):
            refused = http_client.request(
                method, f"{path}/{resource}?api-version=2013-08", b"x" if resource == "messages" else None
            )
            assert refused.status == 400
            assert "2013-10" in refused.detail
        assert http_client.request("DELETE", f"{path}/messages/head{query}").status == 200
    assert _put(http_client, f"/{name}-plain?api-version=2012-03", "").status == 201
    assert http_client.request("POST", f"/{name}-plain/messages?api-version=2012-03", b"x").status == 201


def _name() -> str:
    return f"entity-{uuid.uuid4().hex}"


def _put(http_client: HttpClient, target: str, content: str) -> HttpResponse:
    return http_client.request("PUT", target, QUEUE_ENTRY.format(content), Content_Type="application/atom+xml")


def _assert_refused(call: Any, *arguments: object, **options: object) -> None:  # noqa: ANN401  # a method of the SDK
    with pytest.raises(HttpResponseError) as caught:
        call(*arguments, **options)
    assert caught.value.status_code == 400
