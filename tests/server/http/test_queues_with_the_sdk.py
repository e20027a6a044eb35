"""Administration of queues with the unmodified Python SDK."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

from azure.servicebus.management import ApiVersion, ServiceBusAdministrationClient

from twinbus.model.description import FOREVER_MS
from twinbus.model.queue import QueueDescription, QueueRuntime

if TYPE_CHECKING:
    from tests.server.http.http_service import HttpService

EVERY_OPTION = {
    "auto_delete_on_idle": dt.timedelta(minutes=7),
    "dead_lettering_on_message_expiration": True,
    "default_message_time_to_live": dt.timedelta(days=14),
    "duplicate_detection_history_time_window": dt.timedelta(seconds=90),
    "enable_batched_operations": False,
    "enable_express": True,
    "enable_partitioning": True,
    "lock_duration": dt.timedelta(seconds=13.5),
    "max_delivery_count": 14,
    "max_size_in_megabytes": 3072,
    "requires_duplicate_detection": True,
    "requires_session": True,
    "user_metadata": " <order> & 'more' \u00e9\u4e2d ",
}


def test_a_queue_created_without_options_has_the_defaults(
    client: ServiceBusAdministrationClient, service: HttpService
) -> None:
    created = client.create_queue("orders")
    assert created.name == "orders"
    assert created.lock_duration == dt.timedelta(minutes=1)
    assert created.status == "Active"
    assert created.availability_status == "Available"
    assert created.forward_to is None
    assert created.user_metadata is None
    assert not created.authorization_rules
    assert service.administration.queues["orders"].description == QueueDescription()
    assert service.authorisation_requests == [("Manage", "orders")]


def test_every_option_is_stored_and_returned(client: ServiceBusAdministrationClient, service: HttpService) -> None:
    created = client.create_queue("orders", **EVERY_OPTION, status="SendDisabled")  # type: ignore[arg-type]
    assert service.administration.queues["orders"].description == QueueDescription(
        auto_delete_on_idle_ms=420_000,
        dead_lettering_on_expiration=True,
        default_time_to_live_ms=1_209_600_000,
        duplicate_window_ms=90_000,
        enable_batched_operations=False,
        enable_express=True,
        enable_partitioning=True,
        lock_duration_ms=13_500,
        max_delivery_count=14,
        max_size_mb=3072,
        requires_duplicate_detection=True,
        requires_session=True,
        user_metadata=" <order> & 'more' \u00e9\u4e2d ",
        status="SendDisabled",
    )
    for properties in (created, client.get_queue("orders"), *client.list_queues()):
        assert {name: properties[name] for name in EVERY_OPTION} == EVERY_OPTION
        assert properties.status == "SendDisabled"


def test_forwarding_targets_are_stored_as_names_and_returned_as_addresses(
    client: ServiceBusAdministrationClient, service: HttpService
) -> None:
    created = client.create_queue("orders", forward_to="audit/all", forward_dead_lettered_messages_to="bin")
    assert created.forward_to == f"sb://localhost:{service.https_listener.port}/audit/all"
    assert created.forward_dead_lettered_messages_to == f"sb://localhost:{service.https_listener.port}/bin"
    description = service.administration.queues["orders"].description
    assert (description.forward_to, description.forward_dead_lettered_to) == ("audit/all", "bin")
    assert service.authorisation_requests == [("Manage", "orders"), ("Send", "audit/all"), ("Send", "bin")]


def test_the_longest_duration_is_returned_as_the_sdk_sent_it(
    client: ServiceBusAdministrationClient, service: HttpService
) -> None:
    forever = client.create_queue("first").default_message_time_to_live
    client.create_queue("second", default_message_time_to_live=forever, auto_delete_on_idle=dt.timedelta.max)
    description = service.administration.queues["second"].description
    assert description.default_time_to_live_ms == FOREVER_MS
    assert description.auto_delete_on_idle_ms == FOREVER_MS


def test_an_update_changes_only_the_given_properties(
    client: ServiceBusAdministrationClient, service: HttpService
) -> None:
    client.create_queue("orders", **EVERY_OPTION)  # type: ignore[arg-type]
    before = service.administration.queues["orders"].description
    properties = client.get_queue("orders")
    properties.max_delivery_count = 3
    client.update_queue(properties, status="ReceiveDisabled")
    after = service.administration.queues["orders"].description
    assert (after.max_delivery_count, after.status) == (3, "ReceiveDisabled")
    changed = {name for name in QueueDescription.__slots__ if getattr(before, name) != getattr(after, name)}
    assert changed == {"max_delivery_count", "status"}


def test_an_update_can_remove_forwarding_and_metadata(
    client: ServiceBusAdministrationClient, service: HttpService
) -> None:
    properties = client.create_queue("orders", forward_to="audit", user_metadata="mine")
    properties.forward_to = None
    properties.user_metadata = None
    client.update_queue(properties)
    description = service.administration.queues["orders"].description
    assert (description.forward_to, description.user_metadata) == (None, None)


def test_runtime_properties_have_the_counts_size_and_times(
    client: ServiceBusAdministrationClient, service: HttpService
) -> None:
    client.create_queue("orders")
    service.administration.set_runtime(
        "orders",
        QueueRuntime(
            active_count=1,
            dead_letter_count=20,
            scheduled_count=300,
            transfer_count=4000,
            transfer_dead_letter_count=50_000,
            size_bytes=7_000_000_000,
            created_ms=1_000,
            updated_ms=2_500,
            accessed_ms=0,
            is_available=False,
        ),
    )
    for runtime in (client.get_queue_runtime_properties("orders"), *client.list_queues_runtime_properties()):
        assert runtime.name == "orders"
        assert runtime.active_message_count == 1
        assert runtime.dead_letter_message_count == 20
        assert runtime.scheduled_message_count == 300
        assert runtime.transfer_message_count == 4000
        assert runtime.transfer_dead_letter_message_count == 50_000
        assert runtime.total_message_count == 54_321
        assert runtime.size_in_bytes == 7_000_000_000
        assert runtime.created_at_utc == dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC)
        assert runtime.updated_at_utc == dt.datetime(1970, 1, 1, 0, 0, 2, 500_000, tzinfo=dt.UTC)
        assert runtime.accessed_at_utc is not None
        assert runtime.accessed_at_utc.year == 1
    assert client.get_queue("orders").availability_status == "Limited"


def test_a_deleted_queue_is_gone(client: ServiceBusAdministrationClient, service: HttpService) -> None:
    client.create_queue("orders")
    client.delete_queue("ORDERS")
    assert service.administration.queues == {}
    assert list(client.list_queues()) == []


def test_namespace_properties_have_the_name_and_type(client: ServiceBusAdministrationClient) -> None:
    properties = client.get_namespace_properties()
    assert properties.name == "contoso"
    assert properties.messaging_sku == "Standard"
    assert properties.namespace_type == "Messaging"
    assert properties.created_at_utc == dt.datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=dt.UTC)


def test_every_api_version_of_the_sdk_is_supported(service: HttpService) -> None:
    for number, version in enumerate(ApiVersion):
        with ServiceBusAdministrationClient.from_connection_string(
            service.connection_string, connection_verify=service.ca_file, api_version=version, retry_total=0
        ) as client:
            assert client.create_queue(f"orders-{number}", enable_partitioning=True).enable_partitioning
