"""Each test starts its own HTTP service; the event loop and the certificate are shared."""

from __future__ import annotations

import datetime as dt
import ipaddress
import ssl
from typing import TYPE_CHECKING

import pytest
from azure.servicebus.management import ServiceBusAdministrationClient
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.server.http.http_service import HttpService, LoopThread
from tests.server.http.in_memory_administration import InMemoryAdministration
from twinbus.server.http.limits import HttpLimits
from twinbus.server.runtime.acceptor import FIRST_BYTES_TIMEOUT_S
from twinbus.server.runtime.admission import Admission

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from starlette.types import ASGIApp

    StartService = Callable[..., HttpService]


@pytest.fixture(scope="session")
def loop() -> Iterator[LoopThread]:
    loop = LoopThread()
    yield loop
    loop.stop()


@pytest.fixture(scope="session")
def certificate_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A self-signed certificate and its key in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = dt.datetime.now(dt.UTC)
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("tls") / "localhost.pem"
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
    return str(path)


@pytest.fixture(scope="session")
def tls(certificate_file: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate_file)
    return context


@pytest.fixture
def start_service(loop: LoopThread, certificate_file: str, tls: ssl.SSLContext) -> Iterator[StartService]:
    started = []

    def start(
        app: ASGIApp | None = None,
        *,
        admission: Admission | None = None,
        first_bytes_s: float = FIRST_BYTES_TIMEOUT_S,
        **limits: float,
    ) -> HttpService:
        service = HttpService(
            loop,
            InMemoryAdministration(),
            certificate_file,
            HttpLimits(**limits),  # type: ignore[arg-type]
            Admission() if admission is None else admission,
            first_bytes_s,
        )
        started.append(service.start(tls, app))
        return service

    yield start
    for service in started:
        service.stop()


@pytest.fixture
def service(start_service: StartService) -> HttpService:
    return start_service()


@pytest.fixture
def client(service: HttpService) -> Iterator[ServiceBusAdministrationClient]:
    """The unmodified SDK over HTTPS, which verifies the certificate."""
    with ServiceBusAdministrationClient.from_connection_string(
        service.connection_string, connection_verify=service.ca_file, retry_total=0
    ) as client:
        yield client
