"""A development certificate, which the server creates if the operator provides none.

Owns: `tls/server.pem` and `tls/server.key` in the data directory. A local CA (`development_authority`) signs the
certificate, so that clients that trust the CA still trust the server after its certificate was renewed.
"""

from __future__ import annotations

import ipaddress
import logging
import socket
from typing import TYPE_CHECKING, Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from twinbus.server.runtime.data_directory import make_directory, write_atomically
from twinbus.server.tls.certificates import Certificate
from twinbus.server.tls.development_authority import (
    CA_FILE,
    NO_KEY_USAGE,
    RENEW_BEFORE,
    CertificateAndKey,
    certificate_builder,
    common_name,
    ensure_authority,
    lock_authority,
    private_pem,
    public_pem,
    read_authority_key,
    read_certificate,
)

if TYPE_CHECKING:
    import datetime as dt
    from pathlib import Path

_SERVER_DAYS: Final = 397
"""The longest validity that browsers accept."""
_ANY_ADDRESS: Final = {"0.0.0.0", "::"}  # noqa: S104  # only compared, never bound

logger = logging.getLogger(__name__)


def ensure_development_certificate(
    directory: Path, host: str, now: dt.datetime, authority_directory: Path | None = None
) -> Certificate:
    """Return the development certificate; create or renew it if necessary.

    A certificate is renewed if it expires within 30 days, if the server's host names have changed, or if the CA in
    `authority_directory` (default: `directory`) has not signed it.
    """
    make_directory(directory)
    authority_directory = authority_directory or directory
    files = Certificate(directory / "server.pem", directory / "server.key", authority_directory / CA_FILE)
    names = _host_names(host)
    with lock_authority(authority_directory):
        authority = ensure_authority(authority_directory, now)
        if not _is_usable(files, authority, names, now):
            issued = _issue_certificate(read_authority_key(authority_directory, authority), names, now)
            # The key is written first: after a crash, the next startup must not find a certificate without its key.
            write_atomically(files.key_file, private_pem(issued.key))
            write_atomically(files.certificate_file, public_pem(issued.certificate), 0o644)
            logger.info(
                "created a development certificate",
                extra={"file": str(files.certificate_file), "names": " ".join(names)},
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
    server = read_certificate(files.certificate_file)
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
        and now + RENEW_BEFORE < server.not_valid_after_utc
        and set(alternative_names) == {_general_name(name) for name in names}
        and key.public_key() == server.public_key()
    )


def _issue_certificate(authority: CertificateAndKey, names: list[str], now: dt.datetime) -> CertificateAndKey:
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = authority.certificate
    # Some clients reject a certificate that expires after its CA.
    days = min(_SERVER_DAYS, (issuer.not_valid_after_utc - now).days)
    certificate = (
        certificate_builder(key, common_name("twinbus"), issuer.subject, now, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.KeyUsage(**{**NO_KEY_USAGE, "digital_signature": True}), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()), critical=False)
        .sign(authority.key, hashes.SHA256())
    )
    return CertificateAndKey(certificate, key)
