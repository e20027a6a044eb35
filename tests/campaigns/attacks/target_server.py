"""Description of the attacked server for the honest client and the attackers.

Owns: addresses, keys and entity names, and their JSON form, which is passed to the client processes.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class TargetServer:
    """Address of the server, and the keys of each side."""

    host: str
    amqp_port: int
    amqps_port: int
    http_port: int
    https_port: int
    root_name: str
    root_key: str
    """Key of the owner; the honest client uses it, and it revokes keys."""
    listen_name: str
    listen_key: str
    """Key of the attackers with the right Listen only, on the whole namespace."""
    send_name: str
    send_key: str
    """Key of the attackers with the right Send only."""
    queue: str = "orders"
    """Queue of the honest client; the attackers' keys may read its messages."""
    backlog_queue: str = "shelf"
    """Queue with large messages, for peeks and browse links."""
    session_queue: str = "baskets"
    """Queue with sessions, of the smallest size."""
    topic: str = "news"
    """Topic with the subscription `all`."""

    @property
    def connection_string(self) -> str:
        """Connection string with the owner's key."""
        return self.connection_string_of(self.root_name, self.root_key)

    def connection_string_of(self, name: str, key: str) -> str:
        """Return a connection string with another key."""
        return (
            f"Endpoint=sb://{self.host}:{self.amqp_port};SharedAccessKeyName={name};SharedAccessKey={key};"
            "UseDevelopmentEmulator=true;"
        )

    def as_json(self) -> str:
        """Return the description as one line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> TargetServer:
        """Parse the output of `as_json`."""
        return cls(**json.loads(text))
