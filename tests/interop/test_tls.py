"""TLS on the way, with a certificate made here: both ends in both roles, and nobody talks to a stranger."""

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
    """One that signs itself: whoever trusts it trusts the server that has it."""

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


class Encrypted(ProtonEchoClient):
    """Notes what proton thinks of the connection."""

    is_encrypted = False

    def on_connection_opened(self, event: ProtonEvent) -> None:
        super().on_connection_opened(event)
        self.is_encrypted = event.transport.encrypted


class EncryptedEcho(ProtonEchoServer):
    """Notes what proton thinks of the connection."""

    is_encrypted = False

    def on_connection_opened(self, event: ProtonEvent) -> None:
        super().on_connection_opened(event)
        self.is_encrypted = event.transport.encrypted


async def test_a_proton_client_talks_to_our_server_over_tls(certificate: Certificate) -> None:
    async with serving(EchoServer, tls=certificate.for_our_server()) as server:
        talker = Encrypted(
            server.port, BODIES, ssl_domain=certificate.for_proton_client(), user=USER, password=PASSWORD
        )
        await run(talker)
        program = await server.accepted()
    assert talker.failures == []
    assert talker.is_encrypted
    assert talker.received == BODIES
    assert [init.mechanism for init in program.events_of(SaslInitReceived)] == ["PLAIN"]


async def test_our_client_talks_to_a_proton_server_over_tls(certificate: Certificate) -> None:
    echo = EncryptedEcho(ssl_domain=certificate.for_proton_server())
    async with (
        running(echo) as port,
        connected(EchoClient(BODIES), port, tls=certificate.for_our_client()) as talker,
    ):
        talker.start()
        await talker.wait_until(lambda: talker.accepted == len(talker.received) == len(BODIES))
    assert echo.failures == []
    assert echo.is_encrypted
    assert talker.received == BODIES


async def test_a_proton_client_says_nothing_to_a_server_of_ours_that_it_does_not_trust(
    certificate: Certificate, other_certificate: Certificate
) -> None:
    async with serving(EchoServer, tls=certificate.for_our_server()) as server:
        talker = Encrypted(server.port, BODIES, ssl_domain=other_certificate.for_proton_client())
        await run(talker)
    assert talker.failures != []
    assert not talker.was_open


async def test_our_client_says_nothing_to_a_proton_server_that_it_does_not_trust(
    certificate: Certificate, other_certificate: Certificate
) -> None:
    server, client = ProtonServer(ssl_domain=certificate.for_proton_server()), RecordingHandler()
    with pytest.raises(ssl.SSLCertVerificationError):
        async with running(server) as port, connected(client, port, tls=other_certificate.for_our_client()):
            pass
    assert server.user is None
    assert client.events == []


async def test_our_server_forgets_a_client_that_never_gets_through_the_tls_handshake(certificate: Certificate) -> None:
    async with serving(EchoServer, tls=certificate.for_our_server()) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"AMQP\x00\x01\x00\x00")
        async with asyncio.timeout(TIMEOUT_S):
            await reader.read()  # its alert, then the end
        writer.close()
        trusting = Encrypted(server.port, ["hello"], ssl_domain=certificate.for_proton_client())
        await run(trusting)
        program = await server.accepted()
        await program.wait_until_closed()
        assert server.listener.peers == set()
    assert trusting.received == ["hello"]
