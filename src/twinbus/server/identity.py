"""What a namespace shows to its clients: keys, a certificate, and the file that says how to reach it.

Owns: where these come from at a start and at a reload: the data directory, or what the settings say instead.
"""

from __future__ import annotations

import datetime as dt
import logging
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from twinbus.server.certificates import Certificate, server_context
from twinbus.server.development_certificates import development_certificate
from twinbus.server.keys import KeyRing
from twinbus.server.ready_file import ReadyFile, connection_string

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping

    from twinbus.server.data_directory import DataDirectory
    from twinbus.server.keys import Key
    from twinbus.server.settings import ServeSettings

log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Identity:
    """All that can be changed while a server runs. What is None stays as it is."""

    keys: KeyRing
    certificate: Certificate | None = None
    tls: ssl.SSLContext | None = None
    """Made of the certificate, which can be used therefore."""
    log_level: str | None = None


def load_keys(settings: ServeSettings, data: DataDirectory) -> KeyRing:
    """Return the keys of a start: those of the data directory, of which the first is made here, and all others."""
    if settings.emulator_key:
        log.warning("the emulator's key is good here: everybody knows it, and all on this machine can use it")
    ring = complete_keys(settings, KeyRing.load(data.keys))
    if ring.root is None:
        log.warning("no key has Manage, so nobody can manage the namespace: twinbus key add makes one")
    return ring


def complete_keys(settings: ServeSettings, ring: KeyRing) -> KeyRing:
    """Return the keys of the data directory with those of the configuration file and the emulator. Misuse."""
    ring = ring.with_keys(settings.keys)
    return ring.with_emulator_key() if settings.emulator_key else ring


def reload(settings: ServeSettings, data: DataDirectory) -> Identity:
    """Read everything again that can change while a server runs. StartError if anything cannot be used."""
    ring = complete_keys(settings, KeyRing.load(data.keys, makes=False))
    certificate = choose_certificate(settings, data)
    return Identity(ring, certificate, server_context(certificate), settings.log_level)


def choose_certificate(settings: ServeSettings, data: DataDirectory) -> Certificate:
    """The operator's own, or one for development."""
    if settings.tls_cert is not None and settings.tls_key is not None:
        return Certificate(settings.tls_cert, settings.tls_key)
    return development_certificate(data.tls, settings.host, dt.datetime.now(dt.UTC))


def make_ready_file(
    settings: ServeSettings, ports: Mapping[str, int], keys: KeyRing, certificate: Certificate
) -> ReadyFile:
    """Says that this process serves."""
    ca_file = certificate.ca_file
    return ReadyFile(
        namespace=settings.name,
        amqp_port=ports.get("amqp"),
        amqps_port=ports.get("amqps"),
        http_port=ports.get("http"),
        https_port=ports.get("https"),
        connection_string=messaging(settings, ports, keys.root),
        admin_connection_string=_administration(settings, ports, keys.root),
        ca_file=str(ca_file) if ca_file is not None else None,
        pid=os.getpid(),
    )


def messaging(settings: ServeSettings, ports: Mapping[str, int | None], key: Key | None) -> str | None:
    """Return a connection string without TLS where that is open, since it needs no certificate; else with TLS."""
    for way in ("amqp", "amqps"):
        port = ports.get(way)
        if port is not None and key is not None:
            return connection_string(settings.host, port, key, is_emulator=way == "amqp")
    return None


def _administration(settings: ServeSettings, ports: Mapping[str, int], key: Key | None) -> str | None:
    if "https" not in ports or key is None:
        return None
    return connection_string(settings.host, ports["https"], key, is_emulator=False)
