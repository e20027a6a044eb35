"""The certificate that the server shows, and what its sockets are wrapped in.

Owns: which TLS is spoken, and how another certificate takes the place of the first while the server runs. Knows nothing
of where a certificate comes from: it is the operator's own, or one of `development_certificates`. Knows nothing of
sockets.
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
    """Where a certificate and its key lie."""

    certificate_file: Path
    key_file: Path
    ca_file: Path | None = None
    """What a client has to trust; None for the operator's own certificate, whose authority it knows."""


def host_names(certificate: Certificate) -> list[str]:
    """The host names that a certificate is for; some may start with `*.`. StartError if the file is no certificate."""
    # Not before it is needed: a worker has no other use for it.
    from cryptography import x509  # noqa: PLC0415

    try:
        found = x509.load_pem_x509_certificate(certificate.certificate_file.read_bytes())
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    except (OSError, ValueError) as error:
        raise StartError(f"{certificate.certificate_file} is not a certificate ({error})") from error
    return names.get_values_for_type(x509.DNSName)


def make_server_context(certificate: Certificate) -> ssl.SSLContext:
    """For the sockets of a server: TLS 1.2 or later."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2

    def refuse_to_ask() -> NoReturn:
        raise StartError(f"the key {certificate.key_file} has a password: give one without")

    try:
        context.load_cert_chain(certificate.certificate_file, certificate.key_file, password=refuse_to_ask)
    except (OSError, ssl.SSLError) as error:
        raise StartError(
            f"the certificate {certificate.certificate_file} with the key {certificate.key_file} cannot be used: "
            f"{error.strerror or error}"
        ) from error
    return context


class ServerTls:
    """TLS of a server whose certificate can be replaced: new connections get the new one, others stay as they are."""

    def __init__(self, certificate: Certificate) -> None:
        """StartError if the certificate cannot be used."""
        self.context = make_server_context(certificate)
        """For the sockets, from first to last."""
        self._current = self.context
        # Called in every handshake, with a server name or without. Loading a certificate into the context itself could
        # fail half-way, and leave it with a certificate and a key that do not match.
        self.context.sni_callback = self._select_context

    def replace(self, context: ssl.SSLContext) -> None:
        """Use another context from now on, made by `server_context`."""
        self._current = context

    def _select_context(
        self, connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _context: ssl.SSLContext
    ) -> None:
        if self._current is not self.context:
            connection.context = self._current
