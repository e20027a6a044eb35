"""A client that trusts the development CA trusts the server under all its names, also after a renewal."""

from __future__ import annotations

import contextlib
import datetime as dt
import socket
import ssl
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from azure.servicebus._pyamqp._transport import SSLTransport
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from twinbus.server.config.settings import StartError
from twinbus.server.tls.certificates import Certificate, make_server_context
from twinbus.server.tls.development_certificates import ensure_development_certificate

if TYPE_CHECKING:
    from pathlib import Path

NOW = dt.datetime.now(dt.UTC)
HOST = "127.0.0.1"


@pytest.fixture
def tls(tmp_path: Path) -> Path:
    return tmp_path / "tls"


def strict_client(ca_file: Path | None) -> ssl.SSLContext:
    """Return a client context that verifies as strictly as Python 3.13 does by default."""
    context = ssl.create_default_context(cafile=ca_file)
    context.verify_flags |= ssl.VERIFY_X509_STRICT | ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def handshake(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> str | None:
    """Return the negotiated TLS version; raise the error of the client."""
    near, far = socket.socketpair()

    def serve() -> None:
        with far, contextlib.suppress(OSError):  # the client raises the reason
            server.wrap_socket(far, server_side=True).close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with near, client.wrap_socket(near, server_hostname=name) as secure:
            return secure.version()
    finally:
        thread.join()


def read(file: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(file.read_bytes())


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "::1", socket.gethostname(), "bus.example"])
def test_a_strict_client_trusts_the_server_by_each_of_its_names(tls: Path, name: str) -> None:
    certificate = ensure_development_certificate(tls, "bus.example", NOW)
    assert handshake(make_server_context(certificate), strict_client(certificate.ca_file), name) == "TLSv1.3"


def test_a_client_that_expects_another_host_name_refuses_the_server(tls: Path) -> None:
    certificate = ensure_development_certificate(tls, HOST, NOW)
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        handshake(make_server_context(certificate), strict_client(certificate.ca_file), "other.example")


def test_a_client_that_does_not_know_the_ca_refuses_the_server(tls: Path, tmp_path: Path) -> None:
    certificate = ensure_development_certificate(tls, HOST, NOW)
    other = ensure_development_certificate(tmp_path / "other", HOST, NOW)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(make_server_context(certificate), strict_client(other.ca_file), "localhost")


def test_tls_1_2_is_the_lowest_accepted_version(tls: Path) -> None:
    certificate = ensure_development_certificate(tls, HOST, NOW)
    client = strict_client(certificate.ca_file)
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    assert handshake(make_server_context(certificate), client, "localhost") == "TLSv1.2"
    assert make_server_context(certificate).minimum_version == ssl.TLSVersion.TLSv1_2


def test_the_python_sdk_trusts_the_server_with_the_ca_file(tls: Path) -> None:
    """Use the SDK's transport as its client does for connection_verify=<file>."""
    certificate = ensure_development_certificate(tls, HOST, NOW)
    with socket.create_server((HOST, 0)) as listener, ThreadPoolExecutor(1) as executor:
        listener.settimeout(10)
        port, trusted = listener.getsockname()[1], {"ca_certs": str(certificate.ca_file)}
        received = executor.submit(accept_first_bytes, listener, make_server_context(certificate))
        transport = SSLTransport("localhost", port=port, ssl_opts=trusted)  # type: ignore[no-untyped-call]
        transport.connect()  # type: ignore[no-untyped-call]
        transport.write(b"AMQP\x03\x01\x00\x00")  # type: ignore[no-untyped-call]
        assert received.result(10) == b"AMQP\x03\x01\x00\x00"
        transport.close()  # type: ignore[no-untyped-call]


def accept_first_bytes(listener: socket.socket, context: ssl.SSLContext) -> bytes:
    """Return the first bytes that a client sends over TLS."""
    plain, _ = listener.accept()
    with context.wrap_socket(plain, server_side=True) as secure:
        return secure.recv(8)


def test_only_the_owner_can_read_the_keys_and_no_other_files_are_left(tls: Path) -> None:
    ensure_development_certificate(tls, HOST, NOW)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tls.iterdir()}
    assert modes == {"ca.key": 0o600, "ca.pem": 0o644, "server.key": 0o600, "server.pem": 0o644}


def test_the_next_start_uses_the_same_certificate(tls: Path) -> None:
    first = read(ensure_development_certificate(tls, HOST, NOW).certificate_file)
    later = NOW + dt.timedelta(days=397 - 32)
    assert read(ensure_development_certificate(tls, HOST, later).certificate_file) == first
    assert first.not_valid_after_utc - first.not_valid_before_utc == dt.timedelta(days=397)


@pytest.mark.parametrize("days", [397 - 30, 398, 1000])
def test_a_certificate_that_expires_soon_is_renewed_by_the_same_ca(tls: Path, days: int) -> None:
    certificate = ensure_development_certificate(tls, HOST, NOW)
    before, authority = read(certificate.certificate_file), read(tls / "ca.pem")
    ensure_development_certificate(tls, HOST, NOW + dt.timedelta(days=days))
    after = read(certificate.certificate_file)
    assert after != before
    assert after.not_valid_after_utc > NOW + dt.timedelta(days=days + 30)
    assert read(tls / "ca.pem") == authority
    after.verify_directly_issued_by(authority)


def test_a_certificate_does_not_outlive_its_ca_and_an_expiring_ca_is_replaced(tls: Path) -> None:
    ensure_development_certificate(tls, HOST, NOW)
    authority = read(tls / "ca.pem")
    ensure_development_certificate(tls, HOST, NOW + dt.timedelta(days=3_500))
    assert read(tls / "server.pem").not_valid_after_utc <= authority.not_valid_after_utc
    ensure_development_certificate(tls, HOST, NOW + dt.timedelta(days=3_640))
    assert read(tls / "ca.pem") != authority
    read(tls / "server.pem").verify_directly_issued_by(read(tls / "ca.pem"))


def test_a_new_host_name_causes_a_new_certificate(tls: Path) -> None:
    certificate = ensure_development_certificate(tls, HOST, NOW)
    authority = (tls / "ca.pem").read_bytes()
    first = read(certificate.certificate_file)
    assert read(ensure_development_certificate(tls, "0.0.0.0", NOW).certificate_file) == first  # noqa: S104  # not a name
    assert read(ensure_development_certificate(tls, "10.9.8.7", NOW).certificate_file) != first
    assert (tls / "ca.pem").read_bytes() == authority
    assert handshake(make_server_context(certificate), strict_client(certificate.ca_file), "10.9.8.7")


@pytest.mark.parametrize("lost", ["server.pem", "server.key", "ca.pem"])
def test_a_lost_file_is_created_again(tls: Path, lost: str) -> None:
    certificate = ensure_development_certificate(tls, HOST, NOW)
    (tls / lost).unlink()
    ensure_development_certificate(tls, HOST, NOW)
    assert handshake(make_server_context(certificate), strict_client(tls / "ca.pem"), "localhost")


def test_a_key_that_does_not_match_its_certificate_is_replaced(tls: Path) -> None:
    """A start that is interrupted between the two files leaves this state."""
    certificate = ensure_development_certificate(tls, HOST, NOW)
    (tls / "server.key").write_bytes((tls / "ca.key").read_bytes())
    ensure_development_certificate(tls, HOST, NOW)
    assert handshake(make_server_context(certificate), strict_client(tls / "ca.pem"), "localhost")


def test_without_the_ca_key_a_valid_certificate_is_used_and_a_renewal_is_refused(tls: Path) -> None:
    ensure_development_certificate(tls, HOST, NOW)
    (tls / "ca.key").unlink()
    ensure_development_certificate(tls, HOST, NOW)
    with pytest.raises(StartError, match=r"key .*ca\.key cannot be read .* or remove .*ca\.pem to create a new CA"):
        ensure_development_certificate(tls, HOST, NOW + dt.timedelta(days=390))


def test_the_key_of_another_ca_is_refused(tls: Path) -> None:
    ensure_development_certificate(tls, HOST, NOW)
    (tls / "ca.key").write_bytes((tls / "server.key").read_bytes())
    with pytest.raises(StartError, match=r"ca\.key is not the key of .*ca\.pem"):
        ensure_development_certificate(tls, "other.example", NOW)


def test_a_file_that_is_not_a_certificate_is_refused(tls: Path) -> None:
    tls.mkdir()
    (tls / "ca.pem").write_text("hello")
    with pytest.raises(StartError, match=r"ca\.pem is not a certificate"):
        ensure_development_certificate(tls, HOST, NOW)


# --- the operator's own certificate -----------------------------------------------------------------------------------


def test_an_operators_own_certificate_is_used(tls: Path) -> None:
    development = ensure_development_certificate(tls, "bus.example", NOW)
    own = Certificate(development.certificate_file, development.key_file)
    assert own.ca_file is None
    assert handshake(make_server_context(own), strict_client(development.ca_file), "bus.example")


def test_an_unusable_own_certificate_is_refused_with_a_reason(tls: Path, tmp_path: Path) -> None:
    development = ensure_development_certificate(tls, HOST, NOW)
    for certificate, reason in [
        (Certificate(tmp_path / "missing.pem", development.key_file), "No such file or directory"),
        (Certificate(development.certificate_file, tls / "ca.key"), "(?i)key.values.mismatch"),
        (Certificate(development.key_file, development.key_file), r"cannot be used: \S+"),
    ]:
        with pytest.raises(StartError, match=reason):
            make_server_context(certificate)


def test_a_key_with_a_password_is_refused_without_a_prompt(tls: Path) -> None:
    certificate = ensure_development_certificate(tls, HOST, NOW)
    key = serialization.load_pem_private_key(certificate.key_file.read_bytes(), password=None)
    certificate.key_file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"password"),
        )
    )
    with pytest.raises(StartError, match=r"server\.key has a password: use a key without a password"):
        make_server_context(certificate)
