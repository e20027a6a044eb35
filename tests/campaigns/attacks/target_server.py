"""The server under attack, as the honest client and the attackers see it.

Owns: addresses, keys and entity names, and their form as JSON: both clients are processes of their own.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class TargetServer:
    """Where the server is, and which keys each side has."""

    host: str
    amqp_port: int
    amqps_port: int
    http_port: int
    https_port: int
    root_name: str
    root_key: str
    """The owner's key: the honest client's, and the one that revokes keys."""
    listen_name: str
    listen_key: str
    """An attacker's key with the right Listen alone, on the whole namespace."""
    send_name: str
    send_key: str
    """An attacker's key with the right Send alone."""
    queue: str = "orders"
    """The honest client's queue; its messages are what the attackers' keys may read."""
    backlog_queue: str = "shelf"
    """A queue that holds large messages: for peeks and browse links."""
    session_queue: str = "baskets"
    """A queue with sessions, of the smallest size."""
    topic: str = "news"
    """A topic with the subscription `all`."""

    @property
    def connection_string(self) -> str:
        """The owner's, for messages."""
        return self.connection_string_of(self.root_name, self.root_key)

    def connection_string_of(self, name: str, key: str) -> str:
        """A connection string with another key."""
        return (
            f"Endpoint=sb://{self.host}:{self.amqp_port};SharedAccessKeyName={name};SharedAccessKey={key};"
            "UseDevelopmentEmulator=true;"
        )

    def as_json(self) -> str:
        """In one line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> TargetServer:
        """Read what `as_json` wrote."""
        return cls(**json.loads(text))
