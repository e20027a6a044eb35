"""Administration of queues with the Python SDK's asyncio client, which has its own serialization code."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

import pytest
from azure.core.exceptions import ResourceExistsError, ResourceNotFoundError
from azure.servicebus.aio.management import ServiceBusAdministrationClient

if TYPE_CHECKING:
    from tests.server.http.http_service import HttpService


async def test_a_queue_is_created_read_updated_listed_and_deleted(service: HttpService) -> None:
    async with ServiceBusAdministrationClient.from_connection_string(
        service.connection_string, connection_verify=service.ca_file, retry_total=0
    ) as client:
        created = await client.create_queue("a/b", lock_duration=dt.timedelta(seconds=30), forward_to="audit")
        assert created.lock_duration == dt.timedelta(seconds=30)
        await client.update_queue(created, max_delivery_count=2)
        assert (await client.get_queue("a/b")).max_delivery_count == 2
        assert (await client.get_queue_runtime_properties("a/b")).active_message_count == 0
        assert [queue.name async for queue in client.list_queues()] == ["a/b"]
        assert [queue.name async for queue in client.list_queues_runtime_properties()] == ["a/b"]
        with pytest.raises(ResourceExistsError):
            await client.create_queue("a/b")
        await client.delete_queue("a/b")
        with pytest.raises(ResourceNotFoundError):
            await client.get_queue("a/b")
        assert (await client.get_namespace_properties()).name == "contoso"


async def test_the_sdk_follows_the_pages_of_a_list(service: HttpService) -> None:
    async with ServiceBusAdministrationClient.from_connection_string(
        service.connection_string, connection_verify=service.ca_file, retry_total=0
    ) as client:
        for number in range(5):
            assert service.put(f"/q{number}").status == 201
        names = [queue.name async for queue in client.list_queues(max_page_size=2)]
        assert names == ["q0", "q1", "q2", "q3", "q4"]
