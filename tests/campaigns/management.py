"""Creating, deleting and counting queues over HTTP.

Owns: the requests and their tokens. An unreachable server raises OSError, an unexpected status `UnexpectedStatus`.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import http.client
import re
import time
import urllib.parse
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from tests.campaigns.restartable_server import Endpoint

REQUEST_TIMEOUT_S: Final = 30.0
QUEUE_ENTRY: Final = (
    '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">'
    '<QueueDescription xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect">'
    "{}</QueueDescription></content></entry>"
)
DEFAULT_SETTINGS: Final = {"LockDuration": "PT1M", "MaxDeliveryCount": "1000000"}
"""A delivery count that is never reached: no message is dead-lettered for it."""


class MessageCounts(NamedTuple):
    """Message counts of a queue."""

    active: int
    dead_lettered: int
    scheduled: int
    deferred: int


class UnexpectedStatus(Exception):
    """The status of a response is not an expected one."""


async def create_queue(endpoint: Endpoint, name: str, **settings: str) -> None:
    content = "".join(f"<{setting}>{text}</{setting}>" for setting, text in (DEFAULT_SETTINGS | settings).items())
    status, body = await _request(endpoint, "PUT", name, QUEUE_ENTRY.format(content))
    if status not in {201, 409}:
        raise UnexpectedStatus(f"PUT {name}: {status} {body[:300]}")


async def delete_queue(endpoint: Endpoint, name: str) -> None:
    status, body = await _request(endpoint, "DELETE", name)
    if status not in {200, 404}:
        raise UnexpectedStatus(f"DELETE {name}: {status} {body[:300]}")


async def queue_exists(endpoint: Endpoint, name: str) -> bool:
    status, body = await _request(endpoint, "GET", name)
    if status not in {200, 404}:
        raise UnexpectedStatus(f"GET {name}: {status} {body[:300]}")
    return status == 200


async def active_count(endpoint: Endpoint, name: str) -> int:
    return (await message_counts(endpoint, name)).active


async def message_counts(endpoint: Endpoint, name: str) -> MessageCounts:
    status, body = await _request(endpoint, "GET", name)
    counts = dict(re.findall(r"[:<](\w*MessageCount)>(\d+)<", body))
    if status != 200 or "ActiveMessageCount" not in counts:
        raise UnexpectedStatus(f"GET {name}: {status} {body[:300]}")
    total = int(counts.pop("MessageCount"))
    return MessageCounts(
        active=int(counts["ActiveMessageCount"]),
        dead_lettered=int(counts["DeadLetterMessageCount"]),
        scheduled=int(counts["ScheduledMessageCount"]),
        deferred=total - sum(int(count) for count in counts.values()),
    )


async def _request(endpoint: Endpoint, method: str, name: str, body: str | None = None) -> tuple[int, str]:
    return await asyncio.to_thread(_request_blocking, endpoint, method, name, body)


def _request_blocking(endpoint: Endpoint, method: str, name: str, body: str | None) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", endpoint.http_port, timeout=REQUEST_TIMEOUT_S)
    token = _token(f"http://127.0.0.1:{endpoint.http_port}/{name}", endpoint)
    headers = {"Authorization": token, "Content-Type": "application/atom+xml"}
    try:
        connection.request(method, f"/{name}?api-version=2021-05", body, headers)
        response = connection.getresponse()
        return response.status, response.read().decode()
    except http.client.HTTPException as error:  # the connection ended within the response
        raise ConnectionError(str(error)) from error
    finally:
        connection.close()


def _token(uri: str, endpoint: Endpoint) -> str:
    expiry, quoted = int(time.time()) + 3600, urllib.parse.quote_plus(uri)
    digest = hmac.new(endpoint.key.encode(), f"{quoted}\n{expiry}".encode(), hashlib.sha256).digest()
    signature = urllib.parse.quote_plus(base64.b64encode(digest))
    return f"SharedAccessSignature sr={quoted}&sig={signature}&se={expiry}&skn={endpoint.key_name}"
