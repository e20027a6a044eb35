"""The exceptions that the Python SDK raises for our errors, and their messages."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import pytest
from azure.core.exceptions import (
    ClientAuthenticationError,
    HttpResponseError,
    ResourceExistsError,
    ResourceNotFoundError,
)
from azure.servicebus.management import AuthorizationRule, QueueProperties, ServiceBusAdministrationClient

from twinbus.model.errors import QuotaExceeded, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.server.http.http_service import HttpService


def test_creating_an_existing_queue_raises_resource_exists(client: ServiceBusAdministrationClient) -> None:
    client.create_queue("orders")
    with pytest.raises(ResourceExistsError):
        client.create_queue("Orders")


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda client: client.get_queue("missing"), id="get"),
        pytest.param(lambda client: client.get_queue_runtime_properties("missing"), id="runtime"),
        pytest.param(lambda client: client.delete_queue("missing"), id="delete"),
        pytest.param(lambda client: client.get_topic("missing"), id="topic"),
        pytest.param(lambda client: client.get_subscription("missing", "one"), id="subscription"),
    ],
)
def test_a_missing_entity_raises_resource_not_found(
    client: ServiceBusAdministrationClient, call: Callable[[ServiceBusAdministrationClient], None]
) -> None:
    with pytest.raises(ResourceNotFoundError):
        call(client)


def test_updating_a_deleted_queue_raises_resource_not_found(client: ServiceBusAdministrationClient) -> None:
    properties = client.create_queue("orders")
    client.delete_queue("orders")
    with pytest.raises(ResourceNotFoundError):
        client.update_queue(properties)


def test_an_unknown_key_raises_client_authentication_error(service: HttpService) -> None:
    stranger = service.connection_string.replace("manager", "stranger")
    with (
        ServiceBusAdministrationClient.from_connection_string(
            stranger, connection_verify=service.ca_file, retry_total=0
        ) as client,
        pytest.raises(ClientAuthenticationError),
    ):
        client.create_queue("orders")
    assert service.administration.queues == {}


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ({"lock_duration": dt.timedelta(days=25)}, "LockDuration is 'P25D'"),
        ({"lock_duration": dt.timedelta(0)}, "LockDuration is 'P0D'"),
        ({"max_size_in_megabytes": 1000}, "MaxSizeInMegabytes is '1000'"),
        ({"max_delivery_count": 0}, "MaxDeliveryCount is '0'"),
        ({"user_metadata": "x" * 1025}, "1025 characters"),
        ({"status": "Renaming"}, "Status is 'Renaming'"),
        ({"forward_to": "a b"}, "ForwardTo is 'sb://localhost"),
        ({"authorization_rules": [AuthorizationRule(key_name="k", rights=["Sing"])]}, "AuthorizationRules: the rights"),
    ],
)
def test_the_error_names_an_invalid_value(
    client: ServiceBusAdministrationClient, service: HttpService, option: dict[str, Any], reason: str
) -> None:
    with pytest.raises(HttpResponseError) as caught:
        client.create_queue("orders", **option)
    assert reason in caught.value.message
    assert "TrackingId:" in caught.value.message
    assert service.administration.queues == {}


def test_a_property_fixed_at_creation_cannot_change(client: ServiceBusAdministrationClient) -> None:
    properties = client.create_queue("orders")
    properties.requires_session = True
    with pytest.raises(HttpResponseError, match="requires_session of 'orders' cannot change") as caught:
        client.update_queue(properties)
    assert caught.value.status_code == 400


def test_an_invalid_name_is_a_bad_request(client: ServiceBusAdministrationClient) -> None:
    for name in ("", "-orders", "or ders", "orders?x", "x" * 261, "a%2Fb"):
        with pytest.raises(HttpResponseError) as caught:
            client.create_queue(name)
        assert caught.value.status_code == 400
    with pytest.raises(HttpResponseError):
        client.update_queue(QueueProperties._from_internal_entity("", client.create_queue("q")._internal_qd))  # noqa: SLF001


@pytest.mark.parametrize(
    ("error", "status"), [(QuotaExceeded("10,000 entities"), 403), (StoreUnavailable("store 3 is down"), 503)]
)
def test_errors_of_the_namespace_keep_their_status_and_text(
    client: ServiceBusAdministrationClient, service: HttpService, error: Exception, status: int
) -> None:
    service.administration.fails_with = error
    with pytest.raises(HttpResponseError, match=str(error)) as caught:
        client.create_queue("orders")
    assert caught.value.status_code == status
