"""Access control for the API: checks the tokens and keys in requests.

A request needs the `Listen` right on the namespace to read, and `Manage` to close connections and to read failed
logins. A key or token for one entity allows reading that entity only. Besides shared access signatures, the API accepts
the name and secret of a key as HTTP Basic, which Prometheus and curl send, but only on a connection that keeps the
secret confidential.

Owns these rules. Knows nothing of the resources.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from twinbus.model.errors import Unauthorized
from twinbus.model.path import canonical_key
from twinbus.server.auth import sas
from twinbus.server.auth.keys import Right
from twinbus.server.auth.sas import LoginFailed
from twinbus.server.http.call import mark_authorised
from twinbus.server.tls.plaintext import is_loopback

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request

    from twinbus.broker.clock import Clock
    from twinbus.server.auth.key_registry import KeyRegistry
    from twinbus.server.auth.sas import Grant
    from twinbus.server.http.call import Call

_BASIC: Final = re.compile(r"Basic +", re.IGNORECASE)
_MAX_BASIC_CHARACTERS: Final = 2_048


@dataclass(frozen=True, slots=True)
class Access:
    """What the caller of a request may read."""

    grants: tuple[Grant, ...]
    address: str
    """The canonical path of the request; a token may be for a prefix of this path."""

    @property
    def key_name(self) -> str:
        """The name of the caller's key."""
        return self.grants[0].key_name

    def allows_namespace(self, right: Right) -> bool:
        """Return whether the caller has a right on the whole namespace."""
        return any(right in grant.key.rights and self._covers_namespace(grant) for grant in self.grants)

    def check_namespace(self, right: Right) -> None:
        """Raise Unauthorized unless the caller has a right on the whole namespace."""
        if not self.allows_namespace(right):
            raise Unauthorized(f"the key {self.key_name!r} has no right to {right.value} on the namespace")

    def may_read(self, entity_path: str) -> bool:
        """Return whether the caller may read an entity."""
        return any(
            Right.LISTEN in grant.key.rights and (self._covers_namespace(grant) or grant.covers_path(entity_path))
            for grant in self.grants
        )

    def check_entity(self, entity_path: str) -> None:
        """Raise Unauthorized unless the caller may read an entity."""
        if not self.may_read(entity_path):
            raise Unauthorized(f"the key {self.key_name!r} has no right to {Right.LISTEN.value} on '{entity_path}'")

    @property
    def scopes(self) -> list[str]:
        """Prefixes of the paths of all entities that the caller may read; "" for the whole namespace.

        Raise Unauthorized if the caller may read no entity.
        """
        if self.allows_namespace(Right.LISTEN):
            return [""]
        scopes = {grant.scope or grant.key.owner for grant in self.grants if Right.LISTEN in grant.key.rights}
        if not scopes:
            raise Unauthorized(f"the key {self.key_name!r} has no right to {Right.LISTEN.value}")
        return sorted(scopes)

    def _covers_namespace(self, grant: Grant) -> bool:
        return not grant.key.owner and sas.scope_covers(grant.scope, self.address)


class Authenticator:
    """Checks the tokens and keys of requests."""

    def __init__(
        self,
        key_registry: KeyRegistry,
        clock: Clock,
        on_login_failed: Callable[[str, str, LoginFailed], None],
    ) -> None:
        """Create an authenticator; `on_login_failed` gets the mechanism, the client's address and the failure."""
        self._key_registry = key_registry
        self._clock = clock
        self._on_login_failed = on_login_failed

    def authenticate(self, call: Call) -> Access:
        """Return what the caller may read. Raise Unauthorized if the token or key is missing or wrong."""
        header = call.token
        if header is None:
            raise Unauthorized(
                "the request has no Authorization header: send a SharedAccessSignature, or the name and secret of a "
                "key as Basic"
            )
        try:
            if _BASIC.match(header):
                grants = self._check_basic(call.request, header)
            else:
                grants = (sas.verify_for_own_audience(header, self._key_registry, self._clock.wall_ms() / 1000),)
        except LoginFailed as failure:
            self._on_login_failed("http", _client_address(call.request), failure)
            raise
        mark_authorised(call.request.scope)
        return Access(grants, _resource_of(call.address))

    def _check_basic(self, request: Request, header: str) -> tuple[Grant, ...]:
        if not _is_confidential(request):
            raise Unauthorized(
                "a key is not accepted on a connection without TLS, because it reveals the key to the network: use "
                "HTTPS, or send a SharedAccessSignature"
            )
        name, secret = _decode_basic(header)
        grants = self._key_registry.check_password(name, secret)
        if not grants:
            raise LoginFailed("the name or the secret of the key is wrong", "wrong key name or secret", (name,))
        return tuple(grants)


def _decode_basic(header: str) -> tuple[str, str]:
    try:
        text = base64.b64decode(_BASIC.sub("", header[:_MAX_BASIC_CHARACTERS], count=1), validate=True).decode()
    except (ValueError, binascii.Error):
        raise LoginFailed(
            "the Authorization header is not valid: Basic is followed by name:secret in base64", "malformed header"
        ) from None
    name, _, secret = text.partition(":")
    return name, secret


def _is_confidential(request: Request) -> bool:
    return request.url.scheme == "https" or (request.client is not None and is_loopback(request.client.host))


def _client_address(request: Request) -> str:
    return f"{request.client.host}:{request.client.port}" if request.client is not None else "unknown"


def _resource_of(address: str) -> str:
    """Return the path that a token must cover: a token for a queue called `metrics` does not cover `/metrics`."""
    return canonical_key(address if address.startswith("$") else f"$api/v1/{address}")
