"""The development CA, which signs the certificates of a user's servers.

    directory = choose_authority_directory(data_directory.tls_directory)
    with lock_authority(directory):
        authority = ensure_authority(directory, now)

All namespaces of a user share one CA in the user's configuration folder, so that clients trust one file. A data
directory with a CA of its own keeps that CA, because clients trust it. If the configuration folder is not usable, as
for a service user without a home, the CA is in the data directory, too.

Owns: ca.pem and ca.key, their place, and the fields that all development certificates have. Knows nothing of servers.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import fcntl
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from twinbus.server.config.settings import StartError
from twinbus.server.runtime.data_directory import check_own_file, make_directory, write_atomically

if TYPE_CHECKING:
    from collections.abc import Iterator

CA_FILE: Final = "ca.pem"
CA_KEY_FILE: Final = "ca.key"
RENEW_BEFORE: Final = dt.timedelta(days=30)
"""How long before its end a certificate is renewed."""
_CA_DAYS: Final = 3_650
_CLOCK_SKEW: Final = dt.timedelta(days=1)
"""How far a certificate is backdated, for clients whose clocks are behind the server's."""
NO_KEY_USAGE: Final = dict.fromkeys(
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
class CertificateAndKey:
    """A certificate with its private key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


# --- the place of the CA ----------------------------------------------------------------------------------------------


def choose_authority_directory(own_directory: Path) -> Path:
    """Return the directory of the CA: the user's configuration folder, or `own_directory` in the data directory."""
    if (own_directory / CA_FILE).exists():
        return own_directory
    try:
        return _make_user_directory()
    except (StartError, OSError, RuntimeError) as error:  # RuntimeError: the user has no home
        logger.info("the development CA is in the data directory: %s", error)
        return own_directory


def _make_user_directory() -> Path:
    """Return twinbus's folder in the user's configuration, created if missing. Raise an error if it is not usable."""
    folder = os.environ.get("XDG_CONFIG_HOME")
    directory = (Path(folder) if folder else Path.home() / ".config").absolute() / "twinbus"
    if _owner_of_nearest(directory) != os.geteuid():  # such as the home of the user who called sudo
        raise StartError(f"{directory} is in a folder of another user")
    make_directory(directory)
    if not os.access(directory, os.W_OK | os.X_OK):
        raise StartError(f"{directory} cannot be written")
    with lock_authority(directory):  # not every file system has locks: the user's home may be on another machine
        return directory


def _owner_of_nearest(path: Path) -> int:
    """Return the owner of a directory, or of its nearest parent that exists."""
    nearest = next(directory for directory in (path, *path.parents) if directory.exists())
    return nearest.stat().st_uid


@contextlib.contextmanager
def lock_authority(directory: Path) -> Iterator[None]:
    """Wait until no other server uses the CA in a directory, and lock it."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


# --- the CA -----------------------------------------------------------------------------------------------------------


def ensure_authority(directory: Path, now: dt.datetime) -> x509.Certificate:
    """Return the CA's certificate in a locked directory; create a CA if there is none, or if it expires soon."""
    check_own_file(directory / CA_FILE)
    check_own_file(directory / CA_KEY_FILE, is_private=True)
    authority = read_certificate(directory / CA_FILE)
    if authority is None or authority.not_valid_after_utc <= now + RENEW_BEFORE:
        return _create_authority(directory, now)
    return authority


def read_authority_key(directory: Path, authority: x509.Certificate) -> CertificateAndKey:
    """Return the CA with its key. Raise StartError if the key cannot be read, or is not the key of `authority`."""
    return CertificateAndKey(authority, _read_private_key(directory / CA_KEY_FILE, authority))


def _create_authority(directory: Path, now: dt.datetime) -> x509.Certificate:
    key = ec.generate_private_key(ec.SECP256R1())
    # The name contains a digest of the key, so that a client that trusts several such CAs can tell them apart.
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    name = common_name(f"twinbus development authority {identifier.digest.hex()[:8]}")
    certificate = (
        certificate_builder(key, name, name, now, _CA_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.KeyUsage(**{**NO_KEY_USAGE, "key_cert_sign": True, "crl_sign": True}), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    write_atomically(directory / CA_KEY_FILE, private_pem(key))
    write_atomically(directory / CA_FILE, public_pem(certificate), 0o644)
    logger.info("created a development CA; clients must trust it", extra={"file": str(directory / CA_FILE)})
    return certificate


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


# --- fields and files of certificates ---------------------------------------------------------------------------------


def certificate_builder(
    key: ec.EllipticCurvePrivateKey, subject: x509.Name, issuer: x509.Name, now: dt.datetime, days: int
) -> x509.CertificateBuilder:
    """Return a certificate with the fields that all development certificates have."""
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


def common_name(text: str) -> x509.Name:
    """Return a name that consists of a common name."""
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def read_certificate(file: Path) -> x509.Certificate | None:
    """Return the certificate in a file, or None if there is no file. Raise StartError if it is no certificate."""
    try:
        return x509.load_pem_x509_certificate(file.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise StartError(f"{file} is not a certificate ({error}): remove it to create a new one") from error


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a private key as the content of a file."""
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return key.private_bytes(encoding, form, serialization.NoEncryption())


def public_pem(certificate: x509.Certificate) -> bytes:
    """Return a certificate as the content of a file."""
    return certificate.public_bytes(serialization.Encoding.PEM)
