"""Administration over HTTP without an SDK: with and without TLS, tokens for one address, and examples of the docs."""

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


class HttpClient:
    """HTTP client that uses a token for exactly the requested address, like the JavaScript SDK."""

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
        header_fields = {name.replace("_", "-"): value for name, value in headers.items()}
        self._connection.request(method, f"/{address}", body, {"Authorization": token, **header_fields})
        response = self._connection.getresponse()
        return response.status, response.read().decode()

    def close(self) -> None:
        self._connection.close()


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_entities_are_administered_with_and_without_tls(server: ServerProcess, name: str, scheme: str) -> None:
    client = HttpClient(server, scheme)
    query = "?api-version=2021-05"
    topic, subscription = f"{name}%2Fnews", f"{name}%2Fnews/Subscriptions/all"
    for address, body in (
        (f"{name}/queue", atom_entry("QueueDescription")),
        (topic, atom_entry("TopicDescription")),
        (subscription, atom_entry("SubscriptionDescription")),
        (f"{subscription}/Rules/one", rule_entry("")),
    ):
        for status, condition in ((201, {}), (409, {}), (200, {"If_Match": "*"})):
            response_status, text = client.ask("PUT", address + query, body, **condition)
            assert response_status == status, text
        response_status, text = client.ask("GET", address + query)
        assert response_status == 200
        assert f"<id>{scheme}://{server.host}:" in text
    for address, title in (
        ("$Resources/queues", f"{name}/queue"),
        ("$Resources/Topics", f"{name}/news"),
        (f"{topic}/Subscriptions/", "all"),
        (f"{subscription}/Rules/", "one"),
        ("$namespaceinfo", "contoso"),
    ):
        response_status, text = client.ask("GET", address + query)
        assert response_status == 200
        assert f'<title type="text">{title}</title>' in text
    for address in (f"{name}/queue", f"{subscription}/Rules/one", subscription, topic):
        assert client.ask("DELETE", address + query) == (200, "")
        assert client.ask("GET", address + query)[0] == 404
        assert client.ask("PUT", address + query, atom_entry("Nothing"), If_Match="*")[0] in (400, 404)
        assert client.ask("DELETE", address + query)[0] == 404
    client.close()


def test_a_subscription_is_created_with_its_default_rule(server: ServerProcess, name: str) -> None:
    client = HttpClient(server, "http")
    assert client.ask("PUT", name, atom_entry("TopicDescription"))[0] == 201
    sql = '<Filter i:type="SqlFilter"><SqlExpression>{}</SqlExpression></Filter>'
    default_rule = f"<DefaultRuleDescription>{sql}<Name>mine</Name></DefaultRuleDescription>"
    status, text = client.ask(
        "PUT", f"{name}/subscriptions/a", atom_entry("SubscriptionDescription", default_rule.format("a = "))
    )
    assert status == 400
    assert "the filter is wrong at line 1, column 5" in text
    assert client.ask("GET", f"{name}/subscriptions/a")[0] == 404
    body = atom_entry("SubscriptionDescription", default_rule.format("a = 1"))
    assert client.ask("PUT", f"{name}/subscriptions/a", body)[0] == 201
    _, text = client.ask("GET", f"{name}/subscriptions/a/rules")
    assert re.findall('<title type="text">([^<]*)</title><published>', text) == ["mine"]
    assert "<SqlExpression>a = 1</SqlExpression>" in text
    client.close()


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_the_examples_of_the_documentation_work(server: ServerProcess) -> None:
    [example] = re.findall("```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(SOURCES),
        "HOST": f"{server.host}:{server.http_port}",
        "KEY_NAME": server.key_name,
        "KEY": server.key,
    }
    completed = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", example], env=environment, capture_output=True, text=True, check=False
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert "<Error>" not in completed.stdout
    assert "<MaxDeliveryCount>7</MaxDeliveryCount>" in completed.stdout
    assert "<SqlExpression>priority &gt; 5</SqlExpression>" in completed.stdout
    assert re.search("<KeyName>reporter</KeyName><PrimaryKey>[^<]{44}</PrimaryKey>", completed.stdout)
    server.request("GET", "orders", expected=404)
    server.request("DELETE", "news", expected=200)
