"""A failed login gets the same error whether the key name or the secret is wrong, and leaves a line in the log."""

from __future__ import annotations

import re
from http.client import HTTPConnection
from typing import TYPE_CHECKING

import pytest

from tests.support.raw_client import connect_raw
from tests.support.server_process import TIMEOUT_S
from twinbus.amqp.sasl import Credentials

if TYPE_CHECKING:
    from tests.support.server_process import ServerProcess

WRONG_SECRET = "bm90LXRoZS1zZWNyZXQtb2YtYW55LWtleQ"
SECRET_AS_NAME = "c2VjcmV0LXRoYXQtd2FzLXR5cGVkLWFzLWEtbmFtZQ"


def log_in_with_http(server: ServerProcess, queue: str, key_name: str) -> tuple[int, str]:
    connection = HTTPConnection(server.host, server.http_port, timeout=TIMEOUT_S)
    try:
        token = server.token(queue, key=WRONG_SECRET, key_name=key_name)
        connection.request("POST", f"/{queue}/messages", "x", {"Authorization": token})
        answer = connection.getresponse()
        return answer.status, re.sub("TrackingId:[0-9a-f-]+", "", answer.read().decode())
    finally:
        connection.close()


async def log_in_with_cbs(server: ServerProcess, queue: str, key_name: str) -> tuple[int, str]:
    async with connect_raw(server, Credentials.anonymous()) as client:
        properties = {"operation": "put-token", "name": f"sb://{server.host}/{queue}", "type": "jwt"}
        response = await client.request_status(
            "$cbs", properties, server.token(queue, key=WRONG_SECRET, key_name=key_name)
        )
        return int(response["status-code"]), str(response["status-description"])


async def log_in_with_sasl(server: ServerProcess, _queue: str, key_name: str) -> tuple[int, str]:
    with pytest.raises(AssertionError, match="it was not let in"):
        async with connect_raw(server, Credentials.plain(key_name, WRONG_SECRET)):
            pass
    return 401, ""


@pytest.mark.parametrize("way", ["http", "cbs", "sasl"])
async def test_failed_logins_do_not_reveal_key_names_and_are_logged(
    server: ServerProcess, queue: str, way: str
) -> None:
    server.check_log()
    errors = []
    for name in (server.key_name, SECRET_AS_NAME):
        if way == "http":
            errors.append(log_in_with_http(server, queue, name))
        else:
            errors.append(await (log_in_with_cbs if way == "cbs" else log_in_with_sasl)(server, queue, name))
    assert errors[0] == errors[1]
    assert errors[0][0] == 401
    lines = [line for line in server.check_log().splitlines() if "a login failed" in line]
    assert [re.findall("way=([a-z]+) .*key_name=([A-Za-z]+) ", line) for line in lines] == [
        [(way, server.key_name)],
        [(way, "unknown")],
    ]
    assert all("client=127." in line for line in lines)
    assert not any(secret in line for line in lines for secret in (WRONG_SECRET, SECRET_AS_NAME))
