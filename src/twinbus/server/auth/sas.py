"""Shared access signatures: texts that prove, until a given time, that who made them holds a key.

Owns: how a token is read and checked (`model.signature` writes them), and what it grants. Knows nothing of links or
requests: who has a grant asks it whether it `allows` a right on a path, and looks after its expiry. Errors show neither
key nor signature, and neither their text nor the time until they come says which names of keys there are.
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
"""The Azure SDK for Python percent-encodes the name of the key twice; nobody is known to do it more often."""
_DECOY: Final = Key("", new_secret())
"""Where no key has the name in a token, its signature is compared with those of this one: it takes the same time."""


class LoginFailed(Unauthorized):
    """A key or token that is wrong, malformed or expired."""

    def __init__(self, text: str, reason: str, key_names: Sequence[str] = ()) -> None:
        """`reason` is for the log; `names` are what the name of the key can be, and no key may have any of them."""
        super().__init__(text)
        self.reason = reason
        self.key_names = key_names


@dataclass(frozen=True, slots=True)
class Token:
    """What stands in a token, not checked yet."""

    resource: str
    """Percent-encoded as it came: this very text was signed, and every client encodes differently."""
    signature: str = field(repr=False)
    expiry: str
    """Seconds since 1970, as signed."""
    key_name: str
    """As it came."""

    @classmethod
    def parse(cls, text: str) -> Token:
        """Read a token; Unauthorized says what is wrong with its form."""
        if len(text) > MAX_TOKEN_CHARACTERS:
            raise _malformed_error(f"the token has {len(text)} characters; it can have {MAX_TOKEN_CHARACTERS}")
        scheme = _SCHEME.match(text)
        if scheme is None or not text.isascii():
            raise _malformed_error(
                "the token is no shared access signature: it starts with 'SharedAccessSignature sr='"
            )
        found: dict[str, str] = {}
        for parameter in text[scheme.end() :].strip().split("&"):
            name, _, value = parameter.partition("=")
            if name in found:
                raise _malformed_error(f"the token has {name!r:.20} twice")
            found[name] = value
        for name in _PARAMETERS:
            if not found.get(name):
                raise _malformed_error(f"the token has no {name!r}")
        if not _EXPIRY.fullmatch(found["se"]):
            raise _malformed_error("the token's 'se' is not a number of seconds since 1970")
        return cls(found["sr"], unquote(found["sig"]), found["se"], found["skn"])

    @property
    def expires_s(self) -> int:
        """Seconds since 1970."""
        return int(self.expiry)

    @property
    def scope(self) -> str:
        """Path of what the token is for."""
        return scope_of(unquote_plus(self.resource))

    def signing_secret(self, key: Key) -> str | None:
        """The one of the key's secrets that this token was made with; None if it was not made with the key."""
        given = self.signature.encode()
        secrets = (key.primary, key.secondary or key.primary)  # two comparisons for every key: see _DECOY
        for secret in (*secrets, key.emulator_secret) if key.emulator_secret is not None else secrets:
            if hmac.compare_digest(given, sign(self.resource, self.expiry, secret).encode()):
                return secret
        return None

    def key_names(self) -> Iterator[str]:
        """What the name of the key can be: as it came, and decoded until nothing changes."""
        name, decoded = "", self.key_name
        for _ in range(_MAX_ENCODINGS + 1):
            if decoded == name:
                return
            name, decoded = decoded, unquote_plus(decoded)
            yield name


@dataclass(frozen=True, slots=True)
class Grant:
    """What somebody has shown to be allowed."""

    key: Key
    """As it was when it was shown."""
    secret: str = field(repr=False)
    """The one of the key's that was shown, or signed with."""
    scope: str
    """A path in lower case, without scheme, host and slashes at its ends; "" is the whole namespace."""
    expires_s: float
    """Seconds since 1970; infinite for a key that was shown itself."""

    @property
    def key_name(self) -> str:
        """Of the key."""
        return self.key.name

    def allows(self, right: Right, entity_path: str) -> bool:
        """This right, on this entity and all below it: its sub-queues, its subscriptions, its `$management`."""
        return right in self.key.rights and self.covers_path(entity_path)

    def covers_path(self, entity_path: str) -> bool:
        """It is about this entity, or all."""
        return self.covers(path.canonical_key(path.relative_path(entity_path)))

    def covers(self, requested: str) -> bool:
        """It is about this path: in its scope, and, for a key of an entity, that entity's; `a` does not own `a/b`."""
        return scope_covers(self.scope, requested) and (
            not self.key.owner or path.parent_entity(requested) == self.key.owner
        )


class KeySource(Protocol):
    """Where keys are found."""

    def find_named(self, name: str, scope: str) -> Sequence[Key]:
        """The keys of that name that can be good for `scope`."""


def verify(token_text: str, audience: str, keys: KeySource, wall_s: float, host: str = "") -> Grant:
    """What a token grants to who asks for `audience`: the address of an entity, or of a request.

    A token for the bare `host`, as the caller calls it, is one for the namespace: the SDK for JavaScript writes such.
    It has to have a port: without one it could be the name of an entity, and it is the caller who says what the host
    is.
    """
    token = Token.parse(token_text)
    scope = "" if ":" in token.scope and token.scope == host.lower() else token.scope
    wanted = scope_of(audience)
    grant = _verify_signature(token, keys, scope, wall_s)
    if not grant.covers(wanted):
        raise _wrong_scope_error(scope, wanted)
    return grant


def verify_request(token_text: str, entity: str, address: str, keys: KeySource, wall_s: float) -> Grant:
    """Return what a token grants on `entity` to an HTTP request for `address`, which is the entity's or below it.

    As in Service Bus, the token may be for any prefix of the address, by whole segments: the namespace, the entity, or
    `entity/messages`. A scope below the entity opens this request alone, neither another address of the entity nor a
    link: the grant is for the entity, so the caller must not use it for anything but this request.
    """
    token = Token.parse(token_text)
    scope, of_entity = token.scope, path.canonical_key(path.relative_path(entity))
    # The address is decoded already. What is behind the entity is not decoded again: an id may have a % of its own.
    wanted = of_entity + path.canonical_key(address.removeprefix(entity))
    is_below = scope != of_entity and scope_covers(of_entity, scope) and scope_covers(scope, wanted)
    grant = _verify_signature(token, keys, of_entity if is_below else scope, wall_s)
    if not grant.covers(of_entity):
        raise _wrong_scope_error(scope, wanted)
    return grant


def _verify_signature(token: Token, keys: KeySource, scope: str, wall_s: float) -> Grant:
    """Check a token's signature, with the keys that can be good for `scope`, and its expiry."""
    names = list(token.key_names())
    found = [key for name in names for key in keys.find_named(name, scope)] or [_DECOY]
    signed = next(((key, secret) for key in found if (secret := token.signing_secret(key))), None)
    if signed is None:
        raise LoginFailed(
            "the signature does not match that of any key with this name: check the name and the secret of the key, "
            "and that it is a key of the namespace or of the entity that the token is for",
            "wrong key name or signature",
            names,
        )
    if token.expires_s <= wall_s:
        text = f"the token has expired at {_iso_time(token.expires_s)}; now is {_iso_time(wall_s)}"
        raise LoginFailed(text, "expired token", names)
    return Grant(*signed, scope, token.expires_s)


def _wrong_scope_error(scope: str, requested: str) -> Unauthorized:
    return Unauthorized(f"the token is for {scope!r:.300}, not for {requested!r:.300}")


def verify_own_scope(token_text: str, keys: KeySource, wall_s: float) -> Grant:
    """What a token grants on what it is for, whatever that is. Unauthorized."""
    return verify(token_text, unquote_plus(Token.parse(token_text).resource), keys, wall_s)


def scope_of(uri: str) -> str:
    """The path in a URI that a token is for, to compare with others. Clients sign a request's URL with its query."""
    return path.canonical_key(path.relative_path(re.split(r"[?#]", uri, maxsplit=1)[0]))


def scope_covers(scope: str, requested: str) -> bool:
    """`wanted` is `scope` or below it, by whole segments: a token for `orders` is none for `orders2`."""
    return not scope or requested == scope or requested.startswith(f"{scope}/")


def _malformed_error(text: str) -> LoginFailed:
    return LoginFailed(text, "malformed token")


def _iso_time(seconds: float) -> str:
    return dt.datetime.fromtimestamp(seconds, dt.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
