"""What no SDK for Python does: plain HTTP, tokens for one address, and the examples of the page."""

from __future__ import annotations

import http.client
import os
import re
import shutil
import ssl
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.server.http.atom_entries import atom_entry, rule_entry
from tests.support.server_process import TIMEOUT_S

if TYPE_CHECKING:
    from tests.support.server_process import ServerProcess

PAGE = Path(__file__).parents[2] / "docs" / "management-http.md"
SOURCES = Path(__file__).parents[2] / "src"


class Caller:
    """Makes requests, each with a token for the very address that it asks for, as the JavaScript SDK does."""

    def __init__(self, server: ServerProcess, scheme: str) -> None:
        self._server = server
        if scheme == "https":
            trust = ssl.create_default_context(cafile=server.ca_file)
            port = int(server.admin_connection_string.split("/")[2].partition(";")[0].rpartition(":")[2])
            self._connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                server.host, port, timeout=TIMEOUT_S, context=trust
            )
        else:
            self._connection = http.client.HTTPConnection(server.host, server.http_port, timeout=TIMEOUT_S)

    def ask(self, method: str, address: str, body: str | None = None, **headers: str) -> tuple[int, str]:
        token = self._server.token(address.replace("%2F", "/").lower())
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self._connection.request(method, f"/{address}", body, {"Authorization": token, **named})
        answer = self._connection.getresponse()
        return answer.status, answer.read().decode()

    def close(self) -> None:
        self._connection.close()


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_all_is_served_with_and_without_tls(server: ServerProcess, name: str, scheme: str) -> None:
    caller = Caller(server, scheme)
    query = "?api-version=2021-05"
    topic, subscription = f"{name}%2Fnews", f"{name}%2Fnews/Subscriptions/all"
    for address, body in (
        (f"{name}/queue", atom_entry("QueueDescription")),
        (topic, atom_entry("TopicDescription")),
        (subscription, atom_entry("SubscriptionDescription")),
        (f"{subscription}/Rules/one", rule_entry("")),
    ):
        for status, condition in ((201, {}), (409, {}), (200, {"If_Match": "*"})):
            answered, text = caller.ask("PUT", address + query, body, **condition)
            assert answered == status, text
        answered, text = caller.ask("GET", address + query)
        assert answered == 200
        assert f"<id>{scheme}://{server.host}:" in text
    for address, found in (
        ("$Resources/queues", f"{name}/queue"),
        ("$Resources/Topics", f"{name}/news"),
        (f"{topic}/Subscriptions/", "all"),
        (f"{subscription}/Rules/", "one"),
        ("$namespaceinfo", "contoso"),
    ):
        answered, text = caller.ask("GET", address + query)
        assert answered == 200
        assert f'<title type="text">{found}</title>' in text
    for address in (f"{name}/queue", f"{subscription}/Rules/one", subscription, topic):
        assert caller.ask("DELETE", address + query) == (200, "")
        assert caller.ask("GET", address + query)[0] == 404
        assert caller.ask("PUT", address + query, atom_entry("Nothing"), If_Match="*")[0] in (400, 404)
        assert caller.ask("DELETE", address + query)[0] == 404
    caller.close()


def test_a_subscription_brings_its_rule(server: ServerProcess, name: str) -> None:
    caller = Caller(server, "http")
    assert caller.ask("PUT", name, atom_entry("TopicDescription"))[0] == 201
    sql = '<Filter i:type="SqlFilter"><SqlExpression>{}</SqlExpression></Filter>'
    wanted = f"<DefaultRuleDescription>{sql}<Name>mine</Name></DefaultRuleDescription>"
    status, text = caller.ask(
        "PUT", f"{name}/subscriptions/a", atom_entry("SubscriptionDescription", wanted.format("a = "))
    )
    assert status == 400
    assert "the filter is wrong at line 1, column 5" in text
    assert caller.ask("GET", f"{name}/subscriptions/a")[0] == 404
    body = atom_entry("SubscriptionDescription", wanted.format("a = 1"))
    assert caller.ask("PUT", f"{name}/subscriptions/a", body)[0] == 201
    _, text = caller.ask("GET", f"{name}/subscriptions/a/rules")
    assert re.findall('<title type="text">([^<]*)</title><published>', text) == ["mine"]
    assert "<SqlExpression>a = 1</SqlExpression>" in text
    caller.close()


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_the_examples_of_the_page_are_true(server: ServerProcess) -> None:
    [example] = re.findall("```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(SOURCES),
        "HOST": f"{server.host}:{server.http_port}",
        "KEY_NAME": server.key_name,
        "KEY": server.key,
    }
    ran = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", example], env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "<Error>" not in ran.stdout
    assert "<MaxDeliveryCount>7</MaxDeliveryCount>" in ran.stdout
    assert "<SqlExpression>priority &gt; 5</SqlExpression>" in ran.stdout
    assert re.search("<KeyName>reporter</KeyName><PrimaryKey>[^<]{44}</PrimaryKey>", ran.stdout)
    server.request("GET", "orders", expected=404)
    server.request("DELETE", "news", expected=200)
