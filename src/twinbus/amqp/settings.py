"""What a connection is told at its start: its name, its times, and a limit on everything a peer controls.

Every limit has a default that an ordinary client never meets. A server may offer more or less; nothing is unlimited.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final


class UnauthenticatedInput:
    """Bytes of input held for all connections without credentials."""

    def __init__(self, *, max_bytes: int, free_bytes: int) -> None:
        """Above `max_bytes` in total, a connection may still hold `free_bytes`: enough to authenticate."""
        self.max_bytes = max_bytes
        self.free_bytes = free_bytes
        self.held_bytes = 0

    def join(self) -> ConnectionInput:
        """The part of one more connection."""
        return ConnectionInput(self)


class ConnectionInput:
    """Bytes of input held for one of the connections."""

    def __init__(self, total: UnauthenticatedInput) -> None:
        """Use `SharedInput.join`."""
        self.total = total
        self.held_bytes = 0

    def update(self, held_bytes: int) -> bool:
        """Count what the connection holds now; False if it has grown and there is no room for that."""
        shared, before = self.total, self.held_bytes
        self.held_bytes = held_bytes
        shared.held_bytes += held_bytes - before
        return held_bytes <= before or held_bytes <= shared.free_bytes or shared.held_bytes <= shared.max_bytes


MIN_MAX_FRAME_SIZE: Final = 512
"""The specification's floor: every peer can send and take frames of this size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a peer may make us hold or do."""

    max_frame_size: int = 65_536
    """Bytes of one frame; advertised in open, and what a larger frame is refused by."""
    max_sessions: int = 256
    """Sessions at a time on a connection; advertised as channel-max."""
    max_links: int = 5_000
    """Links at a time on a connection. One more is refused by a detach; the others go on."""
    max_handle: int = 65_535
    """Highest handle, advertised in begin. Some clients never reuse a handle, so it is higher than `max_links`."""
    incoming_window: int = 5_000
    """Transfer frames a peer may send in a session before it hears from us again."""
    max_unsettled: int = 50_000
    """Unsettled deliveries of a session, each way. A peer beyond it loses the session; our own `sendable` is 0."""
    max_message_size: int = 1_048_576
    """Bytes of one message, over all its frames; advertised in attach. A larger one is rejected, not stored."""
    max_assembling_bytes: int = 67_108_864
    """Bytes of messages whose last frame has not come yet, over all links of a connection."""
    enforce_credit: bool = True
    """Detach a link whose sender ignores credit. The Azure SDK for Python does ignore it, so a server says False."""
    max_depth: int = 32
    """Nesting of lists, maps, arrays and descriptions in a value."""
    max_string_bytes: int = 1_048_576
    """Length of one string, symbol or binary in a value that is decoded (message bodies are not)."""
    max_items: int = 65_536
    """Elements of all lists, maps and arrays in one decoded value of a message together."""
    max_performative_items: int = 1_000
    """... and in one performative: an element of one byte becomes an object of 70, and some performatives are kept."""
    max_name_bytes: int = 4_096
    """Length of a link's name: it is kept for as long as the link is."""
    max_attaches: int = 1_000_000_000
    """Links that the peer attaches in the life of a connection, one after the other."""
    max_unanswered_bytes: int = 33_554_432
    """Bytes of messages the program has not answered yet, above which a server stops reading from the peer."""
    max_pipelined_bytes: int = 65_536
    """What a peer may send ahead of the answer to its SASL exchange."""

    def __post_init__(self) -> None:
        """Refuse what no peer could be told."""
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
"""Of the limits that are told to the peer; the others are our own affair."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One connection's own side of the agreement."""

    container_id: str
    """Our name in open."""
    hostname: str | None = None
    """A client says in open which host it means; a server leaves it out."""
    properties: dict[str, object] | None = None
    """For open: product, version and the like."""
    idle_timeout_ms: int = 120_000
    """The longest silence we ask of the peer (advertised); after twice that we give up. 0: never."""
    handshake_timeout_ms: int = 20_000
    """From the start to open; also how long a close may wait for its answer."""
    min_idle_timeout_ms: int = 0
    """A peer that asks for heartbeats more often than this is refused; 0: none is."""
    first_delivery_id: int = 0
    """The id of the first message that we send in a session."""
    limits: Limits = field(default_factory=Limits)
    unauthenticated_limits: Limits | None = None
    """What holds until `connection.raise_limits`: a server trusts nobody who has shown no credentials yet.

    Only limits on what the peer makes us hold may differ (sessions, links, attaches, unfinished and unanswered
    messages): what is advertised in open, begin and attach comes from `limits`, since it is advertised once.
    """
    unauthenticated_input: UnauthenticatedInput | None = None
    """Until `connection.raise_limits`, the input held for the peer also counts here, with that of all other peers that
    have shown no credentials yet. A connection that grows beyond what is left is closed."""
