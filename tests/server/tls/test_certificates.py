"""Who trusts the development authority once trusts the server, by all its names, also after a renewal."""

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
    """As Python 3.13 verifies by default."""
    context = ssl.create_default_context(cafile=ca_file)
    context.verify_flags |= ssl.VERIFY_X509_STRICT | ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> str | None:
    """The TLS version that both ends agreed on; raises what the client does not like."""
    near, far = socket.socketpair()

    def serve() -> None:
        with far, contextlib.suppress(OSError):  # the client says why
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
    assert shake_hands(make_server_context(certificate), strict_client(certificate.ca_file), name) == "TLSv1.3"


def test_a_client_that_looks_for_another_server_is_not_taken_in(tls: Path) -> None:
    certificate = ensure_development_certificate(tls, HOST, NOW)
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        shake_hands(make_server_context(certificate), strict_client(certificate.ca_file), "other.example")


def test_a_client_that_does_not_know_the_authority_does_not_trust_the_server(tls: Path, tmp_path: Path) -> None:
    certificate = ensure_development_certificate(tls, HOST, NOW)
    other = ensure_development_certificate(tmp_path / "other", HOST, NOW)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(make_server_context(certificate), strict_client(other.ca_file), "localhost")


def test_tls_1_2_is_taken_and_what_is_older_is_not(tls: Path) -> None:
    certificate = ensure_development_certificate(tls, HOST, NOW)
    client = strict_client(certificate.ca_file)
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    assert shake_hands(make_server_context(certificate), client, "localhost") == "TLSv1.2"
    assert make_server_context(certificate).minimum_version == ssl.TLSVersion.TLSv1_2


def test_the_python_sdk_trusts_the_server_by_the_authoritys_file(tls: Path) -> None:
    """Its transport, told what its client tells it for connection_verify=<file>."""
    certificate = ensure_development_certificate(tls, HOST, NOW)
    with socket.create_server((HOST, 0)) as listener, ThreadPoolExecutor(1) as executor:
        listener.settimeout(10)
        port, trusted = listener.getsockname()[1], {"ca_certs": str(certificate.ca_file)}
        heard = executor.submit(hear, listener, make_server_context(certificate))
        transport = SSLTransport("localhost", port=port, ssl_opts=trusted)  # type: ignore[no-untyped-call]
        transport.connect()  # type: ignore[no-untyped-call]
        transport.write(b"AMQP\x03\x01\x00\x00")  # type: ignore[no-untyped-call]
        assert heard.result(10) == b"AMQP\x03\x01\x00\x00"
        transport.close()  # type: ignore[no-untyped-call]


def hear(listener: socket.socket, context: ssl.SSLContext) -> bytes:
    """The first bytes that a client sends over TLS."""
    plain, _ = listener.accept()
    with context.wrap_socket(plain, server_side=True) as secure:
        return secure.recv(8)


def test_keys_are_for_their_owner_alone_and_nothing_else_is_left(tls: Path) -> None:
    ensure_development_certificate(tls, HOST, NOW)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tls.iterdir()}
    assert modes == {"ca.key": 0o600, "ca.pem": 0o644, "server.key": 0o600, "server.pem": 0o644}


def test_the_next_start_finds_the_same_certificate(tls: Path) -> None:
    first = read(ensure_development_certificate(tls, HOST, NOW).certificate_file)
    later = NOW + dt.timedelta(days=397 - 32)
    assert read(ensure_development_certificate(tls, HOST, later).certificate_file) == first
    assert first.not_valid_after_utc - first.not_valid_before_utc == dt.timedelta(days=397)


@pytest.mark.parametrize("days", [397 - 30, 398, 1000])
def test_a_certificate_that_ends_soon_is_renewed_by_the_same_authority(tls: Path, days: int) -> None:
    certificate = ensure_development_certificate(tls, HOST, NOW)
    before, authority = read(certificate.certificate_file), read(tls / "ca.pem")
    ensure_development_certificate(tls, HOST, NOW + dt.timedelta(days=days))
    after = read(certificate.certificate_file)
    assert after != before
    assert after.not_valid_after_utc > NOW + dt.timedelta(days=days + 30)
    assert read(tls / "ca.pem") == authority
    after.verify_directly_issued_by(authority)


def test_a_certificate_does_not_outlive_its_authority_and_a_new_one_takes_over(tls: Path) -> None:
    ensure_development_certificate(tls, HOST, NOW)
    authority = read(tls / "ca.pem")
    ensure_development_certificate(tls, HOST, NOW + dt.timedelta(days=3_500))
    assert read(tls / "server.pem").not_valid_after_utc <= authority.not_valid_after_utc
    ensure_development_certificate(tls, HOST, NOW + dt.timedelta(days=3_640))
    assert read(tls / "ca.pem") != authority
    read(tls / "server.pem").verify_directly_issued_by(read(tls / "ca.pem"))


def test_other_names_make_another_certificate(tls: Path) -> None:
    certificate = ensure_development_certificate(tls, HOST, NOW)
    authority = (tls / "ca.pem").read_bytes()
    first = read(certificate.certificate_file)
    assert read(ensure_development_certificate(tls, "0.0.0.0", NOW).certificate_file) == first  # noqa: S104  # no name
    assert read(ensure_development_certificate(tls, "10.9.8.7", NOW).certificate_file) != first
    assert (tls / "ca.pem").read_bytes() == authority
    assert shake_hands(make_server_context(certificate), strict_client(certificate.ca_file), "10.9.8.7")


@pytest.mark.parametrize("lost", ["server.pem", "server.key", "ca.pem"])
def test_a_file_that_is_lost_is_made_anew(tls: Path, lost: str) -> None:
    certificate = ensure_development_certificate(tls, HOST, NOW)
    (tls / lost).unlink()
    ensure_development_certificate(tls, HOST, NOW)
    assert shake_hands(make_server_context(certificate), strict_client(tls / "ca.pem"), "localhost")


def test_a_key_that_is_not_the_certificates_is_made_anew(tls: Path) -> None:
    """A start that was cut off between the two files leaves this."""
    certificate = ensure_development_certificate(tls, HOST, NOW)
    (tls / "server.key").write_bytes((tls / "ca.key").read_bytes())
    ensure_development_certificate(tls, HOST, NOW)
    assert shake_hands(make_server_context(certificate), strict_client(tls / "ca.pem"), "localhost")


def test_without_the_authoritys_key_a_good_certificate_serves_and_a_renewal_says_what_to_do(tls: Path) -> None:
    ensure_development_certificate(tls, HOST, NOW)
    (tls / "ca.key").unlink()
    ensure_development_certificate(tls, HOST, NOW)
    with pytest.raises(StartError, match=r"key .*ca\.key cannot be read .* or remove .*ca\.pem for a new authority"):
        ensure_development_certificate(tls, HOST, NOW + dt.timedelta(days=390))


def test_the_key_of_another_authority_is_refused(tls: Path) -> None:
    ensure_development_certificate(tls, HOST, NOW)
    (tls / "ca.key").write_bytes((tls / "server.key").read_bytes())
    with pytest.raises(StartError, match=r"ca\.key is not the key of .*ca\.pem"):
        ensure_development_certificate(tls, "other.example", NOW)


def test_what_is_no_certificate_is_told(tls: Path) -> None:
    tls.mkdir()
    (tls / "ca.pem").write_text("hello")
    with pytest.raises(StartError, match=r"ca\.pem is not a certificate"):
        ensure_development_certificate(tls, HOST, NOW)


# ---------------------------------------------------------------------------------------- the operator's own


def test_an_operators_own_certificate_serves(tls: Path) -> None:
    made = ensure_development_certificate(tls, "bus.example", NOW)
    own = Certificate(made.certificate_file, made.key_file)
    assert own.ca_file is None
    assert shake_hands(make_server_context(own), strict_client(made.ca_file), "bus.example")


def test_an_own_certificate_that_cannot_be_used_is_named_with_the_reason(tls: Path, tmp_path: Path) -> None:
    made = ensure_development_certificate(tls, HOST, NOW)
    for certificate, reason in [
        (Certificate(tmp_path / "missing.pem", made.key_file), "No such file or directory"),
        (Certificate(made.certificate_file, tls / "ca.key"), "(?i)key.values.mismatch"),
        (Certificate(made.key_file, made.key_file), r"cannot be used: \S+"),
    ]:
        with pytest.raises(StartError, match=reason):
            make_server_context(certificate)


def test_a_key_with_a_password_is_refused_and_nobody_is_asked(tls: Path) -> None:
    made = ensure_development_certificate(tls, HOST, NOW)
    key = serialization.load_pem_private_key(made.key_file.read_bytes(), password=None)
    made.key_file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"password"),
        )
    )
    with pytest.raises(StartError, match=r"server\.key has a password: give one without"):
        make_server_context(made)
