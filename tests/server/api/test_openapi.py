"""The OpenAPI document is current, and describes every response."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from tests.server.api.schema import find_mismatch
from twinbus.server.api.openapi import OPENAPI_DOCUMENT

if TYPE_CHECKING:
    from tests.server.api.api_client import ApiClient
    from tests.support.server_process import ServerProcess

FILE = Path(__file__).parents[3] / "docs" / "openapi.json"
DOCUMENT: dict[str, Any] = json.loads(OPENAPI_DOCUMENT)
READS = [path for path, methods in DOCUMENT["paths"].items() if "get" in methods]


@pytest.fixture
def used_queue(server: ServerProcess, sdk: ServiceBusClient) -> str:
    """A queue with a message, whose session is locked."""
    queue = server.create_queue(RequiresSession="true")
    with sdk.get_queue_sender(queue) as sender:
        sender.send_messages(ServiceBusMessage("hello", session_id="s"))
    receiver = sdk.get_queue_receiver(queue, session_id="s")
    receiver.receive_messages(max_wait_time=10)
    return queue


def test_the_published_document_is_that_of_the_server(api: ApiClient) -> None:
    served = api.get("openapi.json", authorization=None)
    assert served.status == 200
    assert served.text == FILE.read_text(), "run: python -m twinbus.server.api.openapi > docs/openapi.json"


def test_every_response_matches_its_schema(server: ServerProcess, api: ApiClient, used_queue: str) -> None:
    api.get("overview", authorization="Basic x")  # a failed login
    outage = f"/$outage?path={used_queue}&seconds=60"
    api.request("PUT", outage)
    connection = next(one["id"] for one in api.read("connections")["connections"] if one["lock_count"])
    for path in READS:
        target = path.replace("{path}", used_queue).replace("{id}", connection)
        response = api.request("GET", target)
        schema = DOCUMENT["paths"][path]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
        assert response.status == 200, response.text
        assert find_mismatch(response.content, schema, DOCUMENT, path) is None
        lists = [value for value in response.content.values() if isinstance(value, list)]
        assert all(lists) or path.endswith(("pairing", "overview")), f"{path} shows nothing that could be wrong"
    api.request("DELETE", outage)
    assert server.is_running


def test_a_closed_connection_is_the_only_change(api: ApiClient) -> None:
    for path, methods in DOCUMENT["paths"].items():
        assert set(methods) - {"get"} == ({"delete"} if path.endswith("connections/{id}") else set())
        assert api.request("POST", path.replace("{", "").replace("}", "")).status in (404, 405)
