"""Shared access signatures: tokens that prove, until they expire, that their creator holds a key.

Owns: parsing and verification of tokens (`model.signature` creates them), and the grants that result. Knows nothing of
links or requests: the caller asks a grant whether it `allows` a right on a path, and observes its expiry. Errors
contain neither key nor signature, and neither their text nor their timing reveals which key names exist.
"""

from __future__ import annotations

import datetime as dt
import hmac
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import unquote, unquote_plus

from twinbus.model import path
from twinbus.model.authorization import new_secret
from twinbus.model.errors import Unauthorized
from twinbus.model.signature import sign
from twinbus.server.auth.keys import Key

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from twinbus.server.auth.keys import Right

MAX_TOKEN_CHARACTERS: Final = 8_192
_SCHEME: Final = re.compile(r"SharedAccessSignature +", re.IGNORECASE)
_EXPIRY: Final = re.compile(r"[0-9]{1,12}")
_PARAMETERS: Final = ("sr", "sig", "se", "skn")
_MAX_ENCODINGS: Final = 3
"""The Azure SDK for Python percent-encodes the name of the key twice; no known client encodes it more often."""
_DECOY: Final = Key("", new_secret())
"""A stand-in for an unknown key, so that verification takes the same time whether or not the name exists."""


class LoginFailed(Unauthorized):
    """A login with a wrong, malformed or expired key or token."""

    def __init__(self, text: str, reason: str, key_names: Sequence[str] = ()) -> None:
        """Create an error with a text for the client and a `reason` for the log.

        `key_names` are the possible readings of the key's name; a key with such a name need not exist.
        """
        super().__init__(text)
        self.reason = reason
        self.key_names = key_names


@dataclass(frozen=True, slots=True)
class Token:
    """The fields of a token that is not verified yet."""

    resource: str
    """The audience, percent-encoded as received, because this exact text was signed, and clients encode in different
    ways."""
    signature: str = field(repr=False)
    expiry: str
    """Seconds since 1970, as signed."""
    key_name: str
    """The name of the key, as received."""

    @classmethod
    def parse(cls, text: str) -> Token:
        """Parse a token. Raise LoginFailed if the token is malformed."""
        if len(text) > MAX_TOKEN_CHARACTERS:
            raise _malformed_error(f"the token has {len(text)} characters (limit: {MAX_TOKEN_CHARACTERS})")
        scheme = _SCHEME.match(text)
        if scheme is None or not text.isascii():
            raise _malformed_error(
                "the token is not a shared access signature, which starts with 'SharedAccessSignature sr='"
            )
        fields: dict[str, str] = {}
        for parameter in text[scheme.end() :].strip().split("&"):
            name, _, value = parameter.partition("=")
            if name in fields:
                raise _malformed_error(f"the token has {name!r:.20} twice")
            fields[name] = value
        for name in _PARAMETERS:
            if not fields.get(name):
                raise _malformed_error(f"the token has no {name!r}")
        if not _EXPIRY.fullmatch(fields["se"]):
            raise _malformed_error("the token's 'se' is not a number of seconds since 1970")
        return cls(fields["sr"], unquote(fields["sig"]), fields["se"], fields["skn"])

    @property
    def expires_s(self) -> int:
        """The time of expiry, in seconds since 1970."""
        return int(self.expiry)

    @property
    def scope(self) -> str:
        """The canonical path that the token is for."""
        return scope_of(unquote_plus(self.resource))

    def signing_secret(self, key: Key) -> str | None:
        """Return the secret of `key` that signed this token; None if none of its secrets did."""
        signature = self.signature.encode()
        secrets = (key.primary, key.secondary or key.primary)  # two comparisons for every key: see _DECOY
        for secret in (*secrets, key.emulator_secret) if key.emulator_secret is not None else secrets:
            if hmac.compare_digest(signature, sign(self.resource, self.expiry, secret).encode()):
                return secret
        return None

    def key_names(self) -> Iterator[str]:
        """Yield the possible names of the key: as received, then decoded until the name no longer changes."""
        name, decoded = "", self.key_name
        for _ in range(_MAX_ENCODINGS + 1):
            if decoded == name:
                return
            name, decoded = decoded, unquote_plus(decoded)
            yield name


@dataclass(frozen=True, slots=True)
class Grant:
    """The rights that a client has proved with a key or a token."""

    key: Key
    """The key as it was when the client logged in."""
    secret: str = field(repr=False)
    """The key's secret that the client presented, or that signed the token."""
    scope: str
    """A path in lower case, without scheme, host and slashes at its ends; "" is the whole namespace."""
    expires_s: float
    """Seconds since 1970; infinite if the client presented the key itself."""

    @property
    def key_name(self) -> str:
        """The name of the key."""
        return self.key.name

    def allows(self, right: Right, entity_path: str) -> bool:
        """Return whether the grant gives a right on an entity, or on its sub-queues, subscriptions or `$management`."""
        return right in self.key.rights and self.covers_path(entity_path)

    def covers_path(self, entity_path: str) -> bool:
        """Return whether an entity is within the grant's scope."""
        return self.covers(path.canonical_key(path.relative_path(entity_path)))

    def covers(self, requested: str) -> bool:
        """Return whether a canonical path is within the grant's scope.

        A key of an entity covers only that entity. For example, a key of queue `a` does not cover queue `a/b`.
        """
        return scope_covers(self.scope, requested) and (
            not self.key.owner or path.parent_entity(requested) == self.key.owner
        )


class KeySource(Protocol):
    """A set of keys that can be searched by name."""

    def find_named(self, name: str, scope: str) -> Sequence[Key]:
        """Return the keys with this name that can be valid for `scope`."""


def verify(token_text: str, audience: str, keys: KeySource, wall_s: float, host: str = "") -> Grant:
    """Return the grant that a token gives for `audience`, the address of an entity or a request. Raise Unauthorized.

    A token for the bare `host` to which the client connected is a token for the namespace, because the SDK for
    JavaScript creates such tokens. The host must include a port, because a name without a port could be the name of an
    entity.
    """
    token = Token.parse(token_text)
    scope = "" if ":" in token.scope and token.scope == host.lower() else token.scope
    requested = scope_of(audience)
    grant = _verify_signature(token, keys, scope, wall_s)
    if not grant.covers(requested):
        raise _wrong_scope_error(scope, requested)
    return grant


def verify_request(token_text: str, entity: str, address: str, keys: KeySource, wall_s: float) -> Grant:
    """Return what a token grants on `entity` to an HTTP request for `address`, the entity's address or one below it.

    As in Service Bus, the token may be for any prefix of the address, by whole segments: the namespace, the entity, or
    `entity/messages`. A token with a scope below the entity is valid for this request only, neither for another address
    of the entity nor for a link. The returned grant covers the whole entity, so the caller must not use the grant for
    anything else.
    """
    token = Token.parse(token_text)
    scope, entity_scope = token.scope, path.canonical_key(path.relative_path(entity))
    # The address is already decoded. Decoding its part after the entity again would corrupt an id that contains a %.
    requested = entity_scope + path.canonical_key(address.removeprefix(entity))
    is_below = scope != entity_scope and scope_covers(entity_scope, scope) and scope_covers(scope, requested)
    grant = _verify_signature(token, keys, entity_scope if is_below else scope, wall_s)
    if not grant.covers(entity_scope):
        raise _wrong_scope_error(scope, requested)
    return grant


def _verify_signature(token: Token, keys: KeySource, scope: str, wall_s: float) -> Grant:
    """Return a token's grant after checking its expiry, and its signature with the keys that can cover `scope`."""
    names = list(token.key_names())
    candidates = [key for name in names for key in keys.find_named(name, scope)] or [_DECOY]
    match = next(((key, secret) for key in candidates if (secret := token.signing_secret(key))), None)
    if match is None:
        raise LoginFailed(
            "the signature does not match any key with this name: check the name and the secret of the key, "
            "and that it is a key of the namespace or of the entity that the token is for",
            "wrong key name or signature",
            names,
        )
    if token.expires_s <= wall_s:
        text = f"the token expired at {_iso_time(token.expires_s)}; the server's time is {_iso_time(wall_s)}"
        raise LoginFailed(text, "expired token", names)
    return Grant(*match, scope, token.expires_s)


def _wrong_scope_error(scope: str, requested: str) -> Unauthorized:
    return Unauthorized(f"the token is for {scope!r:.300}, not for {requested!r:.300}")


def verify_for_own_audience(token_text: str, keys: KeySource, wall_s: float) -> Grant:
    """Return the grant that a token gives for its own audience. Raise Unauthorized."""
    return verify(token_text, unquote_plus(Token.parse(token_text).resource), keys, wall_s)


def scope_of(uri: str) -> str:
    """Return the canonical path in a token's URI, without the query that clients sign as part of a request's URL."""
    return path.canonical_key(path.relative_path(re.split(r"[?#]", uri, maxsplit=1)[0]))


def scope_covers(scope: str, requested: str) -> bool:
    """Return whether `requested` is `scope` or below it, by whole segments: `orders` does not cover `orders2`."""
    return not scope or requested == scope or requested.startswith(f"{scope}/")


def _malformed_error(text: str) -> LoginFailed:
    return LoginFailed(text, "malformed token")


def _iso_time(seconds: float) -> str:
    return dt.datetime.fromtimestamp(seconds, dt.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
