"""Connection strings: one line that says where a namespace is and with which key to go there.

    Endpoint=sb://contoso.servicebus.windows.net/;SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey=...

Owns: how such a line is read. The key is never printed.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

AMQP_PORT: Final = 5672
AMQPS_PORT: Final = 5671
HTTP_PORT: Final = 5300
HTTPS_PORT: Final = 443
_FIELD_NAMES: Final = {
    "endpoint": "Endpoint",
    "sharedaccesskeyname": "SharedAccessKeyName",
    "sharedaccesskey": "SharedAccessKey",
    "sharedaccesssignature": "SharedAccessSignature",
    "entitypath": "EntityPath",
    "usedevelopmentemulator": "UseDevelopmentEmulator",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionString:
    """What stands in one."""

    host: str
    port: int | None = None
    """As given; None: the usual one of whatever is spoken."""
    key_name: str | None = None
    key: str | None = field(default=None, repr=False)
    signature: str | None = field(default=None, repr=False)
    """A token that somebody else made, instead of a key."""
    entity_path: str | None = None
    """The one entity it is good for."""
    is_emulator: bool = False
    """Speak without TLS."""

    @classmethod
    def parse(cls, text: str) -> ConnectionString:
        """Read one; ValueError says what is wrong with it."""
        found: dict[str, str] = {}
        for part in text.strip().strip(";").split(";"):
            name, separator, value = part.partition("=")
            known = _FIELD_NAMES.get(name.strip().lower())
            if known is None or not separator:
                known_ones = ", ".join(_FIELD_NAMES.values())
                raise ValueError(f"the connection string has {name.strip()!r:.40}; it can have {known_ones}")
            if known in found:
                raise ValueError(f"the connection string has {known} twice")
            found[known] = value.strip()
        host, port = _host_and_port(found.get("Endpoint"))
        has_key = "SharedAccessKeyName" in found and "SharedAccessKey" in found
        if has_key == ("SharedAccessSignature" in found):
            raise ValueError(
                "the connection string needs either SharedAccessKeyName and SharedAccessKey, or SharedAccessSignature"
            )
        return cls(
            host=host,
            port=port,
            key_name=found.get("SharedAccessKeyName"),
            key=found.get("SharedAccessKey"),
            signature=found.get("SharedAccessSignature"),
            entity_path=found.get("EntityPath"),
            is_emulator=found.get("UseDevelopmentEmulator", "").lower() == "true",
        )

    @property
    def amqp_port(self) -> int:
        """Where AMQP is spoken."""
        return self.port or (AMQP_PORT if self.is_emulator else AMQPS_PORT)

    @property
    def http_port(self) -> int:
        """Where management is spoken."""
        return self.port or (HTTP_PORT if self.is_emulator else HTTPS_PORT)

    @property
    def http_base(self) -> str:
        """What the addresses of management start with."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'http' if self.is_emulator else 'https'}://{host}:{self.http_port}"

    @property
    def address(self) -> str:
        """Host and port, for people."""
        return f"{self.host}:{self.amqp_port}"

    @property
    def namespace(self) -> str | None:
        """The first label of the host's name; None where the host is an address, or a name that anything can have."""
        try:
            ipaddress.ip_address(self.host)
        except ValueError:
            return None if self.host.lower() in ("localhost", "localhost.localdomain") else self.host.split(".")[0]
        return None


def _host_and_port(endpoint: str | None) -> tuple[str, int | None]:
    if not endpoint:
        raise ValueError("the connection string has no Endpoint: it starts with Endpoint=sb://")
    parts = urlsplit(endpoint)
    if parts.scheme not in ("sb", "amqp", "amqps") or not parts.hostname:
        raise ValueError(f"the connection string's Endpoint is {endpoint!r:.80}; it is like sb://<host>[:<port>]/")
    return parts.hostname, parts.port
