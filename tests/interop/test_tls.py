"""TLS with self-signed certificates: both peers in both roles, and refusal of untrusted servers."""

from __future__ import annotations

import asyncio
import datetime as dt
import ipaddress
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from proton import SSLDomain

from tests.interop.proton_peers import ProtonEchoClient, ProtonEchoServer, ProtonEvent, ProtonServer, run, running
from tests.interop.twinbus_peers import (
    PASSWORD,
    TIMEOUT_S,
    USER,
    EchoClient,
    EchoServer,
    RecordingHandler,
    connected,
    serving,
)
from twinbus.amqp.events import SaslInitReceived

if TYPE_CHECKING:
    from pathlib import Path

BODIES = [f"secret {number}" for number in range(100)] + ["x" * 200_000]


@dataclass(frozen=True)
class Certificate:
    """A self-signed certificate and its key: a client that trusts it trusts the server that uses it."""

    public: Path
    private: Path

    def for_our_server(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self.public, self.private)
        return context

    def for_our_client(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.public)

    def for_proton_server(self) -> SSLDomain:
        domain = SSLDomain(SSLDomain.MODE_SERVER)
        domain.set_credentials(str(self.public), str(self.private), None)
        return domain

    def for_proton_client(self) -> SSLDomain:
        domain = SSLDomain(SSLDomain.MODE_CLIENT)
        domain.set_trusted_ca_db(str(self.public))
        domain.set_peer_authentication(SSLDomain.VERIFY_PEER_NAME)
        return domain


def make_certificate(folder: Path) -> Certificate:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = dt.datetime.now(dt.UTC)
    alternatives = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    certificate = Certificate(folder / "certificate.pem", folder / "key.pem")
    certificate.public.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    certificate.private.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return certificate


@pytest.fixture
def certificate(tmp_path: Path) -> Certificate:
    return make_certificate(tmp_path)


@pytest.fixture
def other_certificate(tmp_path: Path) -> Certificate:
    (tmp_path / "other").mkdir()
    return make_certificate(tmp_path / "other")


class TlsClient(ProtonEchoClient):
    """Records whether proton reports the connection as encrypted."""

    is_encrypted = False

    def on_connection_opened(self, event: ProtonEvent) -> None:
        super().on_connection_opened(event)
        self.is_encrypted = event.transport.encrypted


class TlsEchoServer(ProtonEchoServer):
    """Records whether proton reports the connection as encrypted."""

    is_encrypted = False

    def on_connection_opened(self, event: ProtonEvent) -> None:
        super().on_connection_opened(event)
        self.is_encrypted = event.transport.encrypted


async def test_a_proton_client_exchanges_messages_with_our_server_over_tls(certificate: Certificate) -> None:
    async with serving(EchoServer, tls=certificate.for_our_server()) as server:
        client = TlsClient(
            server.port, BODIES, ssl_domain=certificate.for_proton_client(), user=USER, password=PASSWORD
        )
        await run(client)
        handler = await server.accepted()
    assert client.failures == []
    assert client.is_encrypted
    assert client.received == BODIES
    assert [init.mechanism for init in handler.events_of(SaslInitReceived)] == ["PLAIN"]


async def test_our_client_exchanges_messages_with_a_proton_server_over_tls(certificate: Certificate) -> None:
    server = TlsEchoServer(ssl_domain=certificate.for_proton_server())
    async with (
        running(server) as port,
        connected(EchoClient(BODIES), port, tls=certificate.for_our_client()) as client,
    ):
        client.start()
        await client.wait_until(lambda: client.accepted == len(client.received) == len(BODIES))
    assert server.failures == []
    assert server.is_encrypted
    assert client.received == BODIES


async def test_a_proton_client_does_not_open_a_connection_to_an_untrusted_server_of_ours(
    certificate: Certificate, other_certificate: Certificate
) -> None:
    async with serving(EchoServer, tls=certificate.for_our_server()) as server:
        client = TlsClient(server.port, BODIES, ssl_domain=other_certificate.for_proton_client())
        await run(client)
    assert client.failures != []
    assert not client.was_open


async def test_our_client_does_not_open_a_connection_to_an_untrusted_proton_server(
    certificate: Certificate, other_certificate: Certificate
) -> None:
    server, client = ProtonServer(ssl_domain=certificate.for_proton_server()), RecordingHandler()
    with pytest.raises(ssl.SSLCertVerificationError):
        async with running(server) as port, connected(client, port, tls=other_certificate.for_our_client()):
            pass
    assert server.user is None
    assert client.events == []


async def test_our_server_drops_a_client_that_fails_the_tls_handshake(certificate: Certificate) -> None:
    async with serving(EchoServer, tls=certificate.for_our_server()) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"AMQP\x00\x01\x00\x00")
        async with asyncio.timeout(TIMEOUT_S):
            await reader.read()  # the TLS alert, then the end of the stream
        writer.close()
        client = TlsClient(server.port, ["hello"], ssl_domain=certificate.for_proton_client())
        await run(client)
        handler = await server.accepted()
        await handler.wait_until_closed()
        assert server.listener.peers == set()
    assert client.received == ["hello"]
