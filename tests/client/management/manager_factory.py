"""Namespace managers of a real server, over HTTP or HTTPS.

async with connect_manager() as manager:
    await manager.create_queue("orders")
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twinbus.client import NO_RETRY, NamespaceManager

if TYPE_CHECKING:
    from tests.support.server_process import ServerProcess


class ManagerFactory:
    """Factory of managers of one server."""

    def __init__(self, server: ServerProcess, scheme: str) -> None:
        self.server = server
        self.scheme = scheme

    def connection_string(self, *, key: str | None = None, key_name: str | None = None) -> str:
        """Return a connection string of the server."""
        server = self.server
        port, suffix = (
            (server.https_port, "") if self.scheme == "https" else (server.http_port, ";UseDevelopmentEmulator=true")
        )
        credentials = f"SharedAccessKeyName={key_name or server.key_name};SharedAccessKey={key or server.key}"
        return f"Endpoint=sb://{server.host}:{port};{credentials}{suffix}"

    def __call__(self, text: str | None = None, **options: Any) -> NamespaceManager:  # noqa: ANN401  # arguments of NamespaceManager
        """Return a manager (default: no retries)."""
        options = {"retry_policy": NO_RETRY, "operation_timeout": 30, "ca_file": self.server.ca_file, **options}
        return NamespaceManager.from_connection_string(text or self.connection_string(), **options)
