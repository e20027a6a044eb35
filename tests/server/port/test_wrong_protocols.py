"""A client that speaks the wrong protocol on a port gets a reply that names the right protocol and port."""

from __future__ import annotations

import socket
import ssl
import subprocess
from typing import TYPE_CHECKING

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusConnectionError
from proton import ConnectionException

from tests.support.proton_client import connect_proton
from tests.support.server_process import TIMEOUT_S
from twinbus.client import NO_RETRY, BrokeredMessage, MessagingFactory
from twinbus.model.errors import ServiceBusError

if TYPE_CHECKING:
    from tests.support.server_process import ServerProcess

AMQP_HEADER = b"AMQP\x00\x01\x00\x00"


def curl(server: ServerProcess, scheme: str, port: int) -> subprocess.CompletedProcess[str]:
    command = ["curl", "--silent", "--show-error", "--include", "--max-time", "20", "--cacert", server.ca_file]
    return subprocess.run(
        [*command, f"{scheme}://{server.host}:{port}/health"], capture_output=True, text=True, check=False
    )


def connection_string_with_port(server: ServerProcess, port: int) -> str:
    return server.connection_string.replace(f":{server.amqp_port}", f":{port}")


@pytest.mark.parametrize("name", ["amqps", "https"])
def test_http_without_tls_gets_an_error_response(server: ServerProcess, name: str) -> None:
    port = getattr(server, f"{name}_port")
    response = curl(server, "http", port).stdout
    assert response.startswith("HTTP/1.1 400 Bad Request\n")
    served = {"amqps": "AMQP over TLS", "https": "HTTP over TLS"}[name]
    assert (
        f"port {port} serves {served}, but the client sent HTTP without TLS: use HTTP without TLS on port "
        f"{server.http_port} or HTTP over TLS on port {server.https_port}. TrackingId:" in response
    )


def test_https_on_the_amqps_port_gets_an_error_response(server: ServerProcess) -> None:
    response = curl(server, "https", server.amqps_port).stdout
    assert (
        f"port {server.amqps_port} serves AMQP over TLS, but the client sent HTTP over TLS: use HTTP over TLS on port "
        f"{server.https_port} or HTTP without TLS on port {server.http_port}." in response
    )


def test_tls_on_the_http_port_gets_an_alert(server: ServerProcess) -> None:
    assert "alert handshake failure" in curl(server, "https", server.http_port).stderr


@pytest.mark.parametrize("name", ["amqps", "http", "https"])
async def test_amqp_without_tls_gets_an_error_in_our_client(server: ServerProcess, name: str) -> None:
    string = connection_string_with_port(server, getattr(server, f"{name}_port"))
    async with MessagingFactory.from_connection_string(string, retry_policy=NO_RETRY) as factory:
        with pytest.raises(ServiceBusError, match=rf"use AMQP without TLS on port {server.amqp_port} or AMQP over TLS"):
            await factory.create_queue_client("orders").send(BrokeredMessage("hello"))


def test_amqp_without_tls_gets_an_error_in_the_sdk_for_python(server: ServerProcess) -> None:
    string = connection_string_with_port(server, server.http_port)
    with (
        pytest.raises(ServiceBusConnectionError, match=f"use AMQP without TLS on port {server.amqp_port}"),
        ServiceBusClient.from_connection_string(string, retry_total=0) as client,
        client.get_queue_sender("orders") as sender,
    ):
        sender.send_messages(ServiceBusMessage("hello"))


def test_amqp_over_tls_on_the_https_port_gets_an_error_in_proton(server: ServerProcess) -> None:
    with (
        pytest.raises(ConnectionException, match=f"use AMQP over TLS on port {server.amqps_port}"),
        connect_proton(server, tls=True, port=server.https_port),
    ):
        pass


def test_bytes_of_no_known_protocol_get_the_header_of_amqp(server: ServerProcess) -> None:
    with socket.create_connection((server.host, server.amqp_port), timeout=TIMEOUT_S) as client:
        client.sendall(b"\x00\x01\x02\x03\x04\x05\x06\x07")
        assert client.recv(64)[:4] == AMQP_HEADER[:4]
        assert client.recv(64) == b""


def test_a_protocol_is_recognised_from_bytes_that_arrive_one_by_one(server: ServerProcess) -> None:
    with socket.create_connection((server.host, server.amqp_port), timeout=TIMEOUT_S) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in AMQP_HEADER:
            client.send(bytes([byte]))
        assert client.recv(8) == AMQP_HEADER
    with socket.create_connection((server.host, server.amqp_port), timeout=TIMEOUT_S) as plain:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        context = ssl.create_default_context(cafile=server.ca_file)
        with context.wrap_socket(plain, server_hostname="localhost") as client:
            for byte in b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n":
                client.send(bytes([byte]))
            assert client.recv(64).startswith(b"HTTP/1.1 200 OK\r\n")
