"""What a factory is told: times, tries, and how to trust the namespace; and what it can be.

Owns: the options and their defaults, and the states.
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
    """What a factory can be."""

    OPEN = "open"
    """It can be used; whether it is connected is another question."""
    CLOSED = "closed"
    FAULTED = "faulted"
    """It gave up, or was given up; `fault` says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FactorySettings:
    """One factory's."""

    operation_timeout_s: float = OPERATION_TIMEOUT_S
    """For an operation with all its retries. Partitioned entities want more than 15 s (R102)."""
    retry_policy: RetryPolicy = field(default_factory=RetryPolicy)
    tls: ssl.SSLContext | None = None
    """How the namespace's certificate is checked; None: by this machine's authorities."""
    idle_timeout_s: float = 60.0
    """A connection on which nothing was heard for twice as long is given up."""
    client_id: str = field(default_factory=lambda: f"twinbus-{uuid.uuid4()}")
    """What the namespace calls this factory, and counts its usage under."""
    clock: Clock = field(default_factory=SystemClock)

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        if self.operation_timeout_s <= 0:
            raise ValueError(f"operation_timeout is {self.operation_timeout_s:g} s; it must be more than nothing")
        if not 0 < len(self.client_id) <= CLIENT_ID_MAX_CHARACTERS:
            most = CLIENT_ID_MAX_CHARACTERS
            raise ValueError(f"client_id has {len(self.client_id)} characters; it can have 1 to {most}")
        if self.idle_timeout_s < 0:
            raise ValueError(f"idle_timeout is {self.idle_timeout_s:g} s; it cannot be negative (0: never given up)")


class ClientOptions(TypedDict, total=False):
    """What `from_connection_string` of a factory or a manager can be told beside the string."""

    operation_timeout: dt.timedelta | float
    """For an operation with all its retries; 60 s if not given."""
    retry_policy: RetryPolicy | None
    ca_file: str | Path | None
    """The authorities that the namespace's certificate is checked by; else this machine's."""
    tls: ssl.SSLContext | None
    """How it is checked, instead."""
    token_provider: TokenProvider | None
    """Who gives tokens, instead of the key or the token in the string."""
    client_id: str | None
    """What the namespace calls the client, and counts its usage under; another one each time if not given."""
    clock: Clock | None


def settings_from_options(options: ClientOptions) -> FactorySettings:
    """The settings that these come to."""
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
    """A context that takes certificates of the authorities in `ca_file`, or of this machine's."""
    return ssl.create_default_context(cafile=ca_file)
