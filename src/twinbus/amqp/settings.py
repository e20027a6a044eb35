"""Settings of a connection: its name, its timeouts, and limits on everything that a peer controls.

An ordinary client never reaches the default limits. A server may set other limits; nothing is unlimited.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final


class UnauthenticatedInput:
    """Shared budget for the input buffered for all connections that have not authenticated yet."""

    def __init__(self, *, max_bytes: int, free_bytes: int) -> None:
        """Create a budget of `max_bytes` for all connections together.

        Once the connections have used up the budget, each connection may still hold up to `free_bytes`. Choose
        `free_bytes` large enough for a client to authenticate.
        """
        self.max_bytes = max_bytes
        self.free_bytes = free_bytes
        self.held_bytes = 0

    def join(self) -> ConnectionInput:
        """Return the share for a new connection."""
        return ConnectionInput(self)


class ConnectionInput:
    """Input buffered for one unauthenticated connection."""

    def __init__(self, total: UnauthenticatedInput) -> None:
        """Create an empty share of `total`; use `UnauthenticatedInput.join`."""
        self.total = total
        self.held_bytes = 0

    def update(self, held_bytes: int) -> bool:
        """Set the number of bytes that the connection holds; return whether the number is allowed.

        A number that has not grown is always allowed. A larger number is allowed up to `free_bytes`, or if all
        connections together stay within the budget.
        """
        shared, before = self.total, self.held_bytes
        self.held_bytes = held_bytes
        shared.held_bytes += held_bytes - before
        return held_bytes <= before or held_bytes <= shared.free_bytes or shared.held_bytes <= shared.max_bytes


MIN_MAX_FRAME_SIZE: Final = 512
"""Lowest maximum frame size that the specification allows: every peer can send and receive frames of this size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits on what a peer can make us store or do."""

    max_frame_size: int = 65_536
    """Maximum frame size in bytes, advertised in open; larger frames are refused."""
    max_sessions: int = 256
    """Maximum number of concurrent sessions on a connection, advertised as channel-max."""
    max_links: int = 5_000
    """Maximum number of concurrent links on a connection. Further links are refused with a detach."""
    max_handle: int = 65_535
    """Highest handle, advertised in begin. The default exceeds `max_links` because some clients never reuse a
    handle."""
    incoming_window: int = 5_000
    """Number of transfer frames a peer may send in a session before we update its window."""
    max_unsettled: int = 50_000
    """Maximum number of unsettled deliveries in a session, in each direction.

    If the peer exceeds the limit, the session ends; when we reach the limit, `sendable` is 0.
    """
    max_message_size: int = 1_048_576
    """Maximum size of a message over all its frames, advertised in attach; larger messages are rejected."""
    max_assembling_bytes: int = 67_108_864
    """Maximum size of all incomplete messages, over all links on a connection."""
    enforce_credit: bool = True
    """Detach a link whose sender ignores credit. Servers set False, because the Azure SDK for Python ignores credit."""
    max_depth: int = 32
    """Maximum nesting of lists, maps, arrays and described values in a value."""
    max_string_bytes: int = 1_048_576
    """Maximum length of a string, symbol or binary in a decoded value (message bodies are not decoded)."""
    max_items: int = 65_536
    """Maximum number of elements in all lists, maps and arrays of one decoded value of a message."""
    max_performative_items: int = 1_000
    """Maximum number of elements in one performative.

    This limit is lower than `max_items`, because an element of one byte becomes an object of 70 bytes, and some
    performatives are kept in memory.
    """
    max_name_bytes: int = 4_096
    """Maximum length of a link's name, which is kept as long as the link exists."""
    max_attaches: int = 1_000_000_000
    """Maximum number of links that the peer may attach during the life of a connection."""
    max_unanswered_bytes: int = 33_554_432
    """Size of unanswered messages above which a server stops reading from the peer."""
    max_pipelined_bytes: int = 65_536
    """Maximum number of bytes that a peer may send while it waits for the response to its SASL frame."""

    def __post_init__(self) -> None:
        """Check that all limits advertised to the peer are in the range that the protocol allows."""
        for name, (lowest, highest) in _RANGES.items():
            value = getattr(self, name)
            if not lowest <= value <= highest:
                raise ValueError(f"{name} is {value}; it can be {lowest} to {highest}")


_RANGES: Final = {
    "max_frame_size": (MIN_MAX_FRAME_SIZE, 2**32 - 1),
    "max_sessions": (1, 2**16),
    "max_handle": (0, 2**32 - 1),
    "incoming_window": (1, 2**31 - 1),
    "max_unsettled": (1, 2**31 - 1),
    "max_message_size": (1, 2**64 - 1),
}
"""Valid ranges of the limits that are advertised to the peer; other limits are not checked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Local settings of one connection."""

    container_id: str
    """Our container id in open."""
    hostname: str | None = None
    """Host name that a client sends in open; None for servers."""
    properties: dict[str, object] | None = None
    """Connection properties for open, such as product and version."""
    idle_timeout_ms: int = 120_000
    """Idle timeout advertised to the peer. If the peer is silent for twice this time, the connection is closed (0: no
    timeout)."""
    handshake_timeout_ms: int = 20_000
    """Time limit for the handshake, up to open; also the time limit for the response to a close."""
    min_idle_timeout_ms: int = 0
    """Shortest idle timeout that a peer may request; a shorter timeout violates the protocol (0: no minimum)."""
    first_delivery_id: int = 0
    """Delivery id of the first message that we send in a session."""
    limits: Limits = field(default_factory=Limits)
    unauthenticated_limits: Limits | None = None
    """Limits in force until `connection.apply_authenticated_limits` is called: a server allows less to peers that have
    not authenticated.

    Only limits on resources held for the peer may differ (sessions, links, attaches, incomplete and unanswered
    messages). Limits advertised in open, begin and attach come from `limits`, since they are advertised only once."""
    unauthenticated_input: UnauthenticatedInput | None = None
    """Shared budget for the input of all peers that have not authenticated, used until
    `connection.apply_authenticated_limits`. A connection that exceeds the budget is closed."""
