"""The server's certificate, and the SSL context for its sockets.

Owns: the TLS versions, and the replacement of the certificate while the server runs. Does not know where a certificate
comes from: from the operator, or from `development_certificates`. Knows nothing of sockets.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from twinbus.server.config.settings import StartError

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Certificate:
    """The files of a certificate and its private key."""

    certificate_file: Path
    key_file: Path
    ca_file: Path | None = None
    """The CA certificate that clients have to trust; None if the operator's certificate is used."""


def host_names(certificate: Certificate) -> list[str]:
    """Return the host names in a certificate; some may start with `*.`.

    Raise StartError if the file is not a certificate.
    """
    # Imported here, because a worker process does not need this package otherwise.
    from cryptography import x509  # noqa: PLC0415

    try:
        parsed = x509.load_pem_x509_certificate(certificate.certificate_file.read_bytes())
        names = parsed.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    except (OSError, ValueError) as error:
        raise StartError(f"{certificate.certificate_file} is not a certificate ({error})") from error
    return names.get_values_for_type(x509.DNSName)


def make_server_context(certificate: Certificate) -> ssl.SSLContext:
    """Return an SSL context for server sockets, with TLS 1.2 or later.

    Raise StartError if the certificate cannot be used.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2

    def refuse_password() -> NoReturn:
        raise StartError(f"the private key {certificate.key_file} has a password: use a key without a password")

    try:
        context.load_cert_chain(certificate.certificate_file, certificate.key_file, password=refuse_password)
    except (OSError, ssl.SSLError) as error:
        raise StartError(
            f"the certificate {certificate.certificate_file} with the key {certificate.key_file} cannot be used: "
            f"{error.strerror or error}"
        ) from error
    return context


class ServerTls:
    """A server's TLS configuration. Replacing the certificate affects new connections only."""

    def __init__(self, certificate: Certificate) -> None:
        """Load a certificate. Raise StartError if the certificate cannot be used."""
        self.context = make_server_context(certificate)
        """The context for the listening sockets; it stays the same when the certificate is replaced."""
        self._current = self.context
        # The callback runs in every handshake, with or without a server name. Loading a certificate into the context
        # itself could fail halfway and leave the context with a certificate and a key that do not match.
        self.context.sni_callback = self._select_context

    def replace(self, context: ssl.SSLContext) -> None:
        """Use another context, created by `make_server_context`, for new connections."""
        self._current = context

    def _select_context(
        self, connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _context: ssl.SSLContext
    ) -> None:
        if self._current is not self.context:
            connection.context = self._current
