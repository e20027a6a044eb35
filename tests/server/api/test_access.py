"""The rules of access that a server on a loopback address cannot show: other machines, and a key with Listen only."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.requests import Request

from tests.server.api.api_client import basic
from twinbus.model.errors import Unauthorized
from twinbus.server.api.access import Access, Authenticator
from twinbus.server.auth.key_registry import KeyRegistry
from twinbus.server.auth.keys import Key, KeyRing, Right
from twinbus.server.auth.sas import LoginFailed
from twinbus.server.http.call import Call
from twinbus.server.http.limits import DEFAULT_LIMITS
from twinbus.server.runtime.system_clock import SystemClock

LISTENER = Key("listener", "a-secret-of-the-listener", rights=frozenset({Right.LISTEN}))


def authenticate(*, host: str, scheme: str, secret: str = LISTENER.primary) -> Access:
    header = ("authorization", basic(LISTENER.name, secret))
    scope: dict[str, Any] = {
        "type": "http",
        "method": "GET",
        "path": "/$api/v1/overview",
        "query_string": b"",
        "headers": [tuple(text.encode() for text in header)],
        "client": (host, 50_000),
        "server": ("localhost", 80),
        "scheme": scheme,
    }
    registry = KeyRegistry(KeyRing([LISTENER]), {})
    authenticator = Authenticator(registry, SystemClock(), lambda *_: None)
    return authenticator.authenticate(Call.from_request(Request(scope), {}, DEFAULT_LIMITS))


def test_another_machine_must_use_tls_to_present_a_key() -> None:
    with pytest.raises(Unauthorized, match="not accepted on a connection without TLS") as refused:
        authenticate(host="192.0.2.7", scheme="http")
    assert not isinstance(refused.value, LoginFailed)
    assert authenticate(host="192.0.2.7", scheme="https").key_name == "listener"
    assert authenticate(host="127.0.0.1", scheme="http").key_name == "listener"


def test_a_wrong_secret_counts_as_a_failed_login() -> None:
    with pytest.raises(LoginFailed, match="wrong"):
        authenticate(host="127.0.0.1", scheme="http", secret="another")


def test_a_key_with_listen_reads_but_does_not_close_connections() -> None:
    access = authenticate(host="127.0.0.1", scheme="http")
    access.check_namespace(Right.LISTEN)
    assert access.may_read("orders")
    assert access.scopes == [""]
    with pytest.raises(Unauthorized, match="the key 'listener' has no right to Manage on the namespace"):
        access.check_namespace(Right.MANAGE)
