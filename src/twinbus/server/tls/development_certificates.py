"""A development certificate, which the server creates if the operator provides none.

Owns: `tls/` in the data directory. A local CA (ca.pem, ca.key) signs the server's certificate (server.pem, server.key),
so that clients that trust ca.pem still trust the server after its certificate was renewed.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import logging
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from twinbus.server.config.settings import StartError
from twinbus.server.runtime.data_directory import make_directory, write_atomically
from twinbus.server.tls.certificates import Certificate

if TYPE_CHECKING:
    from pathlib import Path

_CA_DAYS: Final = 3_650
_SERVER_DAYS: Final = 397
"""The longest validity that browsers accept."""
_RENEW_BEFORE: Final = dt.timedelta(days=30)
_CLOCK_SKEW: Final = dt.timedelta(days=1)
"""How far a certificate is backdated, for clients whose clocks are behind the server's."""
_ANY_ADDRESS: Final = {"0.0.0.0", "::"}  # noqa: S104  # only compared, never bound
_NO_KEY_USAGE: Final = dict.fromkeys(
    (
        "digital_signature",
        "content_commitment",
        "key_encipherment",
        "data_encipherment",
        "key_agreement",
        "key_cert_sign",
        "crl_sign",
        "encipher_only",
        "decipher_only",
    ),
    False,
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _CertificateAndKey:
    """A certificate with its private key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def ensure_development_certificate(directory: Path, host: str, now: dt.datetime) -> Certificate:
    """Return the development certificate; create or renew it if necessary.

    A certificate is renewed if it expires within 30 days, or if the server's host names have changed.
    """
    make_directory(directory)
    files = Certificate(directory / "server.pem", directory / "server.key", directory / "ca.pem")
    names = _host_names(host)
    authority = _read_certificate(directory / "ca.pem")
    if authority is None or authority.not_valid_after_utc <= now + _RENEW_BEFORE:
        authority = _create_authority(directory, now)
    if not _is_usable(files, authority, names, now):
        signer = _CertificateAndKey(authority, _read_private_key(directory / "ca.key", authority))
        issued = _issue_certificate(signer, names, now)
        # The key is written first, so that the next startup after a crash does not find a certificate without its key.
        write_atomically(files.key_file, _private_pem(issued.key))
        write_atomically(files.certificate_file, _public_pem(issued.certificate), 0o644)
        logger.info(
            "created a development certificate", extra={"file": str(files.certificate_file), "names": " ".join(names)}
        )
    return files


def _host_names(host: str) -> list[str]:
    """Return the names and addresses under which clients may reach this machine."""
    names = ["localhost", "127.0.0.1", "::1", socket.gethostname(), host]
    usable = (name.lower() for name in names if name not in _ANY_ADDRESS and name and name.isascii())
    return list(dict.fromkeys(usable))


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _is_usable(files: Certificate, authority: x509.Certificate, names: list[str], now: dt.datetime) -> bool:
    server = _read_certificate(files.certificate_file)
    if server is None or not files.key_file.exists():
        return False
    try:
        server.verify_directly_issued_by(authority)
        alternative_names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        key = serialization.load_pem_private_key(files.key_file.read_bytes(), password=None)
    except Exception:  # noqa: BLE001  # an invalid certificate is replaced, whatever the error
        return False
    return (
        server.not_valid_before_utc <= now
        and now + _RENEW_BEFORE < server.not_valid_after_utc
        and set(alternative_names) == {_general_name(name) for name in names}
        and key.public_key() == server.public_key()
    )


def _create_authority(directory: Path, now: dt.datetime) -> x509.Certificate:
    key = ec.generate_private_key(ec.SECP256R1())
    # The name contains a digest of the key, so that a client that trusts several such CAs can tell them apart.
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    name = _common_name(f"twinbus development authority {identifier.digest.hex()[:8]}")
    certificate = (
        _certificate_builder(key, name, name, now, _CA_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.KeyUsage(**{**_NO_KEY_USAGE, "key_cert_sign": True, "crl_sign": True}), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    write_atomically(directory / "ca.key", _private_pem(key))
    write_atomically(directory / "ca.pem", _public_pem(certificate), 0o644)
    logger.info("created a development CA; clients must trust it", extra={"file": str(directory / "ca.pem")})
    return certificate


def _issue_certificate(authority: _CertificateAndKey, names: list[str], now: dt.datetime) -> _CertificateAndKey:
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = authority.certificate
    # Some clients reject a certificate that expires after its CA.
    days = min(_SERVER_DAYS, (issuer.not_valid_after_utc - now).days)
    certificate = (
        _certificate_builder(key, _common_name("twinbus"), issuer.subject, now, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.KeyUsage(**{**_NO_KEY_USAGE, "digital_signature": True}), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()), critical=False)
        .sign(authority.key, hashes.SHA256())
    )
    return _CertificateAndKey(certificate, key)


def _certificate_builder(
    key: ec.EllipticCurvePrivateKey, subject: x509.Name, issuer: x509.Name, now: dt.datetime, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now - _CLOCK_SKEW + dt.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _common_name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _read_certificate(file: Path) -> x509.Certificate | None:
    try:
        return x509.load_pem_x509_certificate(file.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise StartError(f"{file} is not a certificate ({error}): remove it to create a new one") from error


def _read_private_key(file: Path, certificate: x509.Certificate) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(file.read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise StartError(
            f"the server's certificate must be renewed, but the CA's private key {file} cannot be read ({error}): "
            f"restore it, or remove {file.with_suffix('.pem')} to create a new CA, which clients then have to trust"
        ) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise StartError(f"{file} is not the key of {file.with_suffix('.pem')}: remove both to create a new CA")
    return key


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return key.private_bytes(encoding, form, serialization.NoEncryption())


def _public_pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
