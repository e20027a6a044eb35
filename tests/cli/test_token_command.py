"""`twinbus token` prints a token that the server accepts, for the namespace or for one entity."""

from __future__ import annotations

import datetime as dt
import json
from typing import TYPE_CHECKING

import pytest

from tests.support.cli import invoke
from tests.support.http_client import HttpClient
from twinbus.cli.output import EXIT_FAILED, EXIT_MISUSE

if TYPE_CHECKING:
    from tests.support.server_process import ServerProcess

KEY = "Endpoint=sb://host;SharedAccessKeyName=root;SharedAccessKey=c2VjcmV0"


def test_a_token_of_the_namespace_is_accepted_everywhere(server: ServerProcess, queue: str) -> None:
    result = invoke("token", "--ready-file", str(server.ready_file))
    assert HttpClient(server).request("POST", f"/{queue}/messages", "one", token=result.output.strip()).status == 201


def test_a_token_of_an_entity_is_refused_for_others(server: ServerProcess, queue: str) -> None:
    token = invoke("token", queue, "--ready-file", str(server.ready_file)).output.strip()
    client = HttpClient(server)
    assert client.request("POST", f"/{queue}/messages", "one", token=token).status == 201
    assert client.request("POST", f"/{server.create_queue()}/messages", "one", token=token).status == 401


def test_the_lifetime_decides_when_the_token_expires() -> None:
    content = json.loads(invoke("token", "--connection-string", KEY, "--lifetime", "1h30m", "--json").output)
    expires = dt.datetime.fromisoformat(content["expires"])
    assert abs(expires - dt.datetime.now(dt.UTC) - dt.timedelta(minutes=90)) < dt.timedelta(seconds=10)
    assert f"&se={expires.timestamp():.0f}&" in content["token"]
    assert (content["uri"], content["key"]) == ("sb://host/", "root")


@pytest.mark.parametrize(
    ("arguments", "string", "code", "reason"),
    [
        (("--lifetime", "367d"), KEY, EXIT_MISUSE, "--lifetime is longer than 366d"),
        (("--lifetime", "never"), KEY, EXIT_MISUSE, "--lifetime is longer than 366d"),
        (("--lifetime", "soon"), KEY, EXIT_MISUSE, "'soon' is not a duration: use 30s"),
        (("--lifetime", "0s"), KEY, EXIT_MISUSE, "'0s' is too short: use 1ms or more"),
        ((), "Endpoint=sb://host;SharedAccessSignature=c2VjcmV0", EXIT_FAILED, "stdin has a signature, not a key"),
        (("invoices",), f"{KEY};EntityPath=orders", EXIT_FAILED, "the connection string is for 'orders'"),
        (("orders2",), f"{KEY};EntityPath=orders", EXIT_FAILED, "the connection string is for 'orders'"),
    ],
)
def test_a_token_that_cannot_be_made_is_refused(
    arguments: tuple[str, ...], string: str, code: int, reason: str
) -> None:
    result = invoke("token", *arguments, "--connection-string", "-", stdin=string, columns=200)
    assert result.exit_code == code
    assert reason in result.output
    assert "c2VjcmV0" not in result.output
