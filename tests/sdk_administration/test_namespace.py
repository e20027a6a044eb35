"""Namespace properties, and the API versions of the SDK."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

from azure.servicebus.management import ApiVersion

from tests.sdk_administration.admin import AdministrationClient

if TYPE_CHECKING:
    from tests.support.server_process import ServerProcess


def test_namespace_properties_have_the_name_and_the_creation_time(admin: AdministrationClient) -> None:
    properties = admin.get_namespace_properties()
    assert (properties.name, properties.messaging_sku, properties.namespace_type) == (
        "contoso",
        "Standard",
        "Messaging",
    )
    assert (properties.alias, properties.messaging_units) == (None, None)
    assert dt.timedelta() <= dt.datetime.now(dt.UTC) - properties.created_at_utc < dt.timedelta(hours=1)
    assert properties.modified_at_utc == properties.created_at_utc


def test_every_api_version_of_the_sdk_is_supported(server: ServerProcess, name: str) -> None:
    for version in ApiVersion:
        admin = AdministrationClient("sync", server, api_version=version)
        topic = f"{name}-{version.value}"
        assert admin.create_topic(topic, enable_partitioning=True).enable_partitioning is True
        admin.create_subscription(topic, "all")
        shows_filters = version.value >= "2024-05"
        assert (admin.get_topic_runtime_properties(topic).sql_filter_count is not None) is shows_filters
        admin.end()
