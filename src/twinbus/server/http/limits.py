"""What one caller over HTTP may take: bytes and time. Connections are limited where they are accepted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """The numbers of one listener and of what it serves."""

    max_head_bytes: int = 65_536
    """Request line and headers. Tokens travel there."""
    max_body_bytes: int = 65_536
    """The description of an entity is a few kilobytes. Messages wait in the same loop while it is read."""
    max_wait_s: float = 240.0
    """For a message, whatever `timeout` asks for."""
    max_page: int = 1_000
    """Entities in one page of a list, whatever `$top` asks for."""
    tls_handshake_timeout_s: float = 20.0
    head_timeout_s: float = 20.0
    """From the first byte of a request, or the opening of the connection, to the end of its headers."""
    body_timeout_s: float = 20.0
    """From the end of the headers to the end of the body."""
    write_timeout_s: float = 20.0
    """How long a client may not read what is sent to it."""
    keep_alive_s: int = 75
    """How long a connection may be without a request. Longer than the clients' own, who else reuse one as it closes."""


DEFAULT_LIMITS: Final = HttpLimits()
