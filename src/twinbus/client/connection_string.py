"""Connection strings: the address of a namespace and the key or signature for it, in one line.

    Endpoint=sb://contoso.servicebus.windows.net/;SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey=...

Owns the parsing of connection strings and the default ports. A `repr` never shows the key or the signature.
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
    """A parsed connection string."""

    host: str
    port: int | None = None
    """Port in the endpoint; None for the default port of the protocol."""
    key_name: str | None = None
    key: str | None = field(default=None, repr=False)
    signature: str | None = field(default=None, repr=False)
    """Shared access signature, given instead of a key."""
    entity_path: str | None = None
    """The entity to which the connection string is limited, if any."""
    is_emulator: bool = False
    """Whether to connect without TLS (UseDevelopmentEmulator)."""

    @classmethod
    def parse(cls, text: str) -> ConnectionString:
        """Parse a connection string. Raise ValueError if it is invalid."""
        values: dict[str, str] = {}
        for part in text.strip().strip(";").split(";"):
            name, separator, value = part.partition("=")
            field_name = _FIELD_NAMES.get(name.strip().lower())
            if field_name is None or not separator:
                field_names = ", ".join(_FIELD_NAMES.values())
                raise ValueError(f"unknown field {name.strip()!r:.40} in the connection string; use {field_names}")
            if field_name in values:
                raise ValueError(f"the connection string has {field_name} twice")
            values[field_name] = value.strip()
        host, port = _host_and_port(values.get("Endpoint"))
        has_key = "SharedAccessKeyName" in values and "SharedAccessKey" in values
        if has_key == ("SharedAccessSignature" in values):
            raise ValueError(
                "the connection string needs either SharedAccessKeyName and SharedAccessKey, or SharedAccessSignature"
            )
        return cls(
            host=host,
            port=port,
            key_name=values.get("SharedAccessKeyName"),
            key=values.get("SharedAccessKey"),
            signature=values.get("SharedAccessSignature"),
            entity_path=values.get("EntityPath"),
            is_emulator=values.get("UseDevelopmentEmulator", "").lower() == "true",
        )

    @property
    def amqp_port(self) -> int:
        """Port for AMQP."""
        return self.port or (AMQP_PORT if self.is_emulator else AMQPS_PORT)

    @property
    def http_port(self) -> int:
        """Port for management over HTTP."""
        return self.port or (HTTP_PORT if self.is_emulator else HTTPS_PORT)

    @property
    def http_base(self) -> str:
        """Base URL for management over HTTP."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'http' if self.is_emulator else 'https'}://{host}:{self.http_port}"

    @property
    def address(self) -> str:
        """Host and AMQP port, for logs and messages."""
        return f"{self.host}:{self.amqp_port}"

    @property
    def namespace(self) -> str | None:
        """First label of the host name; None if the host is an IP address or localhost."""
        try:
            ipaddress.ip_address(self.host)
        except ValueError:
            return None if self.host.lower() in ("localhost", "localhost.localdomain") else self.host.split(".")[0]
        return None


def _host_and_port(endpoint: str | None) -> tuple[str, int | None]:
    if not endpoint:
        raise ValueError("the connection string has no Endpoint: add Endpoint=sb://<host>/")
    parts = urlsplit(endpoint)
    if parts.scheme not in ("sb", "amqp", "amqps") or not parts.hostname:
        raise ValueError(f"invalid Endpoint {endpoint!r:.80} in the connection string; use sb://<host>[:<port>]/")
    return parts.hostname, parts.port
