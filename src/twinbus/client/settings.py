"""Settings of a factory (timeouts, retries, TLS, identity), and its states.

Owns the options, their defaults and their validation. The users of the settings are in other modules.
"""

from __future__ import annotations

import ssl
import uuid
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Final, TypedDict

from twinbus.client.clock import SystemClock
from twinbus.client.retry import RetryPolicy
from twinbus.model.times import duration_s

if TYPE_CHECKING:
    import datetime as dt
    from pathlib import Path

    from twinbus.client.clock import Clock
    from twinbus.client.tokens import TokenProvider

OPERATION_TIMEOUT_S: Final = 60.0
CLIENT_ID_MAX_CHARACTERS: Final = 128


class FactoryState(Enum):
    """State of a factory."""

    OPEN = "open"
    """The factory can be used, whether or not it is connected."""
    CLOSED = "closed"
    FAULTED = "faulted"
    """The factory was aborted after an error, which is in its `fault`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FactorySettings:
    """Settings of one factory."""

    operation_timeout_s: float = OPERATION_TIMEOUT_S
    """Timeout of an operation with all its retries. Partitioned entities need more than 15 s."""
    retry_policy: RetryPolicy = field(default_factory=RetryPolicy)
    tls: ssl.SSLContext | None = None
    """TLS context that verifies the namespace's certificate; None for the certificate authorities of this machine."""
    idle_timeout_s: float = 60.0
    """A connection that received nothing for twice this time is dropped."""
    client_id: str = field(default_factory=lambda: f"twinbus-{uuid.uuid4()}")
    """Name under which the namespace lists this factory and meters its usage."""
    clock: Clock = field(default_factory=SystemClock)

    def __post_init__(self) -> None:
        """Raise ValueError for invalid values."""
        if self.operation_timeout_s <= 0:
            raise ValueError(f"operation_timeout is {self.operation_timeout_s:g} s; it must be positive")
        if not 0 < len(self.client_id) <= CLIENT_ID_MAX_CHARACTERS:
            limit = CLIENT_ID_MAX_CHARACTERS
            raise ValueError(f"client_id has {len(self.client_id)} characters; it must have 1 to {limit}")
        if self.idle_timeout_s < 0:
            raise ValueError(f"idle_timeout is {self.idle_timeout_s:g} s; it must not be negative (0: no idle timeout)")


class ClientOptions(TypedDict, total=False):
    """Keyword arguments for the `from_connection_string` of a factory or a manager."""

    operation_timeout: dt.timedelta | float
    """Timeout of an operation with all its retries (default: 60 s)."""
    retry_policy: RetryPolicy | None
    ca_file: str | Path | None
    """File of certificate authorities for the namespace's certificate (default: those of this machine)."""
    tls: ssl.SSLContext | None
    """TLS context that verifies the namespace's certificate, instead of `ca_file`."""
    token_provider: TokenProvider | None
    """Source of tokens, instead of the key or the signature in the connection string."""
    client_id: str | None
    """Name under which the namespace lists the client and meters its usage (default: a random name)."""
    clock: Clock | None


def settings_from_options(options: ClientOptions) -> FactorySettings:
    """Return the settings for keyword arguments, with defaults for missing arguments."""
    ca_file, tls = options.get("ca_file"), options.get("tls")
    settings = FactorySettings(
        operation_timeout_s=duration_s(options.get("operation_timeout", OPERATION_TIMEOUT_S)),
        retry_policy=options.get("retry_policy") or RetryPolicy(),
        tls=tls or (tls_context(ca_file) if ca_file is not None else None),
        clock=options.get("clock") or SystemClock(),
    )
    client_id = options.get("client_id")
    return settings if client_id is None else replace(settings, client_id=client_id)


def tls_context(ca_file: str | Path | None) -> ssl.SSLContext:
    """Return a TLS context that trusts the certificate authorities in `ca_file` (default: those of this machine)."""
    return ssl.create_default_context(cafile=ca_file)
