"""Queues: create, get, list and delete."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

import pytest
from azure.core.exceptions import HttpResponseError, ResourceNotFoundError
from azure.servicebus.management import ApiVersion

from tests.sdk_administration.admin import AdministrationClient

if TYPE_CHECKING:
    from tests.support.server_process import ServerProcess

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
EXPECTED = EVERY_OPTION | {"max_size_in_megabytes": 16 * 3072}
"""Expected properties: the queue is partitioned, and each fragment has the requested size."""


def test_a_created_queue_is_found_and_listed_until_it_is_deleted(admin: AdministrationClient, name: str) -> None:
    created = admin.create_queue(name)
    assert (created.name, created.status, created.availability_status) == (name, "Active", "Available")
    assert (created.lock_duration, created.max_delivery_count) == (dt.timedelta(minutes=1), 10)
    assert dict(admin.get_queue(name)) == dict(created)
    assert [queue.name for queue in admin.list_queues()].count(name) == 1
    admin.delete_queue(name)
    assert name not in [queue.name for queue in admin.list_queues()]
    with pytest.raises(ResourceNotFoundError):
        admin.get_queue(name)


def test_every_option_is_stored(admin: AdministrationClient, name: str) -> None:
    created = admin.create_queue(name, **EVERY_OPTION)
    listed = next(queue for queue in admin.list_queues() if queue.name == name)
    for queue in (created, admin.get_queue(name), listed):
        assert {option: queue[option] for option in EXPECTED} == EXPECTED


def test_forwarding_targets_are_returned_as_full_addresses(admin: AdministrationClient, name: str) -> None:
    for target in ("audit", "bin"):
        admin.create_queue(f"{name}/{target}")
    created = admin.create_queue(name, forward_to=f"{name}/audit", forward_dead_lettered_messages_to=f"{name}/bin")
    host = admin.server.admin_connection_string.split("/")[2].partition(";")[0]
    assert created.forward_to == f"sb://{host}/{name}/audit"
    assert admin.get_queue(name).forward_dead_lettered_messages_to == f"sb://{host}/{name}/bin"


def test_a_name_may_have_slashes_and_is_case_insensitive(admin: AdministrationClient, name: str) -> None:
    admin.create_queue(f"{name}/Some/Orders")
    assert admin.get_queue(f"{name}/some/orders").status == "Active"
    assert f"{name}/Some/Orders" in [queue.name for queue in admin.list_queues()]
    admin.delete_queue(f"{name}/SOME/ORDERS")
    assert f"{name}/Some/Orders" not in [queue.name for queue in admin.list_queues()]


def test_a_maximum_message_size_is_refused_in_every_api_version(server: ServerProcess, name: str) -> None:
    for version in ApiVersion:
        admin = AdministrationClient("sync", server, api_version=version)
        queue = admin.create_queue(f"{name}-{version.value}")
        admin.update_queue(queue, max_delivery_count=3)
        with pytest.raises(HttpResponseError, match="MaxMessageSizeInKilobytes is 1024"):
            admin.create_queue(f"{name}-other", max_message_size_in_kilobytes=1024)
        with pytest.raises(HttpResponseError, match="MaxMessageSizeInKilobytes is 1024"):
            admin.create_topic(f"{name}-other", max_message_size_in_kilobytes=1024)
        with pytest.raises(HttpResponseError, match="MaxMessageSizeInKilobytes is 1024"):
            admin.update_queue(queue, max_message_size_in_kilobytes=1024)
        admin.end()


def test_a_queue_may_forward_its_messages_and_dead_letters_to_itself(admin: AdministrationClient, name: str) -> None:
    queue = admin.create_queue(name, requires_session=True)
    admin.update_queue(queue, forward_to=name, forward_dead_lettered_messages_to=name)
    updated = admin.get_queue(name)
    assert updated.forward_to.endswith(f"/{name}")
    assert updated.forward_dead_lettered_messages_to.endswith(f"/{name}")
    assert updated.requires_session
