"""Who may read what: keys of the namespace and of entities, tokens, and HTTP Basic."""

from __future__ import annotations

import base64
import os
from typing import TYPE_CHECKING

import pytest

from tests.server.api.api_client import basic
from tests.support.server_process import AUTHORIZATION_RULE, QUEUE_ENTRY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.server.api.api_client import ApiClient
    from tests.support.server_process import ServerProcess

SECRET = base64.b64encode(os.urandom(32)).decode()
READABLE = ["overview", "connections", "stores", "workers", "disk", "pairing", "outages", "metrics"]


@pytest.fixture
def queue_with_key(server: ServerProcess, name: str) -> Iterator[str]:
    """A queue whose key `reader` has the right Listen, and `writer` the right Send."""
    rules = AUTHORIZATION_RULE.format(name="writer", key=SECRET)
    reader = rules.replace("Send", "Listen").replace("writer", "reader")
    both = rules.replace("</AuthorizationRules>", "") + reader.replace("<AuthorizationRules>", "")
    server.request("PUT", name, QUEUE_ENTRY.format(both), expected=201)
    yield name
    server.delete_queue(name)


@pytest.mark.parametrize("resource", [*READABLE, "entities", "failed-logins", "entities/orders", "connections/0-1"])
def test_a_request_without_a_token_is_refused(api: ApiClient, resource: str) -> None:
    response = api.get(resource, authorization=None)
    assert response.status == 401
    assert response.error.startswith("the request has no Authorization header: send a SharedAccessSignature")


def test_a_wrong_key_is_refused_and_listed_among_failed_logins_without_its_secret(
    server: ServerProcess, api: ApiClient
) -> None:
    wrong = api.get("overview", authorization=basic(server.key_name, "my-guess"))
    assert (wrong.status, wrong.error) == (401, "the name or the secret of the key is wrong")
    assert api.get("overview", authorization=basic("my-guess", "my-guess")).status == 401
    assert api.get("overview", authorization=server.token("", key="my-guess")).status == 401
    listed = api.get("failed-logins")
    latest = listed.content["failed_logins"][:3]
    assert [login["key"] for login in latest] == [server.key_name, "unknown", server.key_name]
    assert {login["mechanism"] for login in latest} == {"http"}
    assert "my-guess" not in listed.text


def test_a_key_of_an_entity_reads_that_entity_only(api: ApiClient, queue: str, queue_with_key: str) -> None:
    reader = basic("reader", SECRET)
    listed = api.get("entities", authorization=reader).content
    assert ([entity["path"] for entity in listed["entities"]], listed["next"]) == ([queue_with_key], None)
    for resource in ("entities", "locks", "sessions"):
        assert api.get(f"{resource}/{queue_with_key}", authorization=reader).status == 200
        refused = api.get(f"{resource}/{queue}", authorization=reader)
        assert (refused.status, refused.error) == (401, f"the key 'reader' has no right to Listen on '{queue}'")
    for resource in READABLE:
        assert (
            api.get(resource, authorization=reader).error == "the key 'reader' has no right to Listen on the namespace"
        )


def test_a_token_for_an_entity_reads_that_entity_only(server: ServerProcess, api: ApiClient, queue: str) -> None:
    token = server.token(queue)
    assert [one["path"] for one in api.get("entities", authorization=token).content["entities"]] == [queue]
    assert api.get("overview", authorization=token).status == 401
    assert api.get("overview", authorization=server.token("$api/v1")).status == 200
    assert api.request("GET", "/metrics", authorization=server.token("metrics")).status == 401


def test_the_right_send_reads_nothing(api: ApiClient, queue_with_key: str) -> None:
    writer = basic("writer", SECRET)
    assert api.get("entities", authorization=writer).error == "the key 'writer' has no right to Listen"
    assert api.get(f"entities/{queue_with_key}", authorization=writer).status == 401


def test_a_key_is_accepted_over_tls_and_from_this_machine(server: ServerProcess, api: ApiClient) -> None:
    key = basic(server.key_name, server.key)
    assert api.get("overview", authorization=key, tls=True).status == 200
    assert api.get("overview", authorization=key).status == 200  # a loopback address
    assert api.request("GET", "/metrics", authorization=key).status == 200
    malformed = api.get("overview", authorization="Basic %%%")
    assert malformed.error == "the Authorization header is not valid: Basic is followed by name:secret in base64"
