"""Well-formed and malformed HTTP requests, each on its own connection.

Owns: shared access signatures, and reading the status line of a response.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import time
import urllib.parse
from typing import TYPE_CHECKING

from tests.campaigns.attacks.raw_peer import TIMEOUT_S, PeerRefused
from tests.support.server_process import AUTHORIZATION_RULE, QUEUE_ENTRY

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.campaigns.attacks.target_server import TargetServer


def token(target: TargetServer, path: str, name: str, key: str) -> str:
    """Return a shared access signature for an entity."""
    expiry = int(time.time() + 3600)
    resource = urllib.parse.quote_plus(f"sb://{target.host}/{path}")
    digest = hmac.digest(key.encode(), f"{resource}\n{expiry}".encode(), hashlib.sha256)
    signature = urllib.parse.quote_plus(base64.b64encode(digest))
    return f"SharedAccessSignature sr={resource}&sig={signature}&se={expiry}&skn={name}"


async def status_of(target: TargetServer, head: Sequence[str], body: bytes = b"") -> int:
    """Send a request with these lines, and return the status; raise PeerRefused if there is no response."""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            reader, writer = await asyncio.open_connection(target.host, target.http_port)
            try:
                writer.write("\r\n".join([*head, "", ""]).encode() + body)
                line = await reader.readline()
            finally:
                writer.transport.abort()
    except (OSError, TimeoutError) as error:
        raise PeerRefused(str(error)) from None
    if not line:
        raise PeerRefused("the server closed the connection without an answer")
    return int(line.split()[1])


async def request(
    target: TargetServer,
    method: str,
    path: str,
    *,
    expected: Sequence[int],
    rules: Sequence[tuple[str, str]] = (),
    headers: Mapping[str, str] | None = None,
) -> None:
    """Create, update or delete a queue with the owner's key. `rules` are the names and secrets of its keys."""
    body = (
        QUEUE_ENTRY.format("".join(AUTHORIZATION_RULE.format(name=name, key=key) for name, key in rules))
        if method == "PUT"
        else ""
    )
    all_headers = {"Authorization": token(target, path, target.root_name, target.root_key), **(headers or {})}
    lines = [f"{method} /{path}?api-version=2021-05 HTTP/1.1", f"Host: {target.host}:{target.http_port}"]
    lines += [f"{name}: {text}" for name, text in all_headers.items()]
    lines += [f"Content-Length: {len(body.encode())}", "Content-Type: application/atom+xml"]
    status = await status_of(target, lines, body.encode())
    if status not in expected:
        raise RuntimeError(f"{method} {path}: status {status}")
