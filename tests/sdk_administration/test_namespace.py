"""The namespace says what it is."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

from azure.servicebus.management import ApiVersion

from tests.sdk_administration.admin import AdministrationClient

if TYPE_CHECKING:
    from tests.support.server_process import ServerProcess


def test_the_namespace_tells_its_name_and_its_age(admin: AdministrationClient) -> None:
    found = admin.get_namespace_properties()
    assert (found.name, found.messaging_sku, found.namespace_type) == ("contoso", "Standard", "Messaging")
    assert (found.alias, found.messaging_units) == (None, None)
    assert dt.timedelta() <= dt.datetime.now(dt.UTC) - found.created_at_utc < dt.timedelta(hours=1)
    assert found.modified_at_utc == found.created_at_utc


def test_every_api_version_of_the_sdk_is_served(server: ServerProcess, name: str) -> None:
    for version in ApiVersion:
        admin = AdministrationClient("sync", server, api_version=version)
        topic = f"{name}-{version.value}"
        assert admin.create_topic(topic, enable_partitioning=True).enable_partitioning is True
        admin.create_subscription(topic, "all")
        shows_filters = version.value >= "2024-05"
        assert (admin.get_topic_runtime_properties(topic).sql_filter_count is not None) is shows_filters
        admin.end()
