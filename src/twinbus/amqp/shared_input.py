"""Input of peers without credentials: a limit for all connections of a process together.

    shared = SharedInput(max_bytes=33_554_432, free_bytes=4_096)
    settings = Settings(container_id="contoso", first_limits=few, first_input=shared)

`Settings.first_limits` bound one connection; a thousand connections may hold a thousand times as much. Each connection
counts its own bytes here until `raise_limits`.

Owns: the sum, and whether a connection may have more.
"""

from __future__ import annotations


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
