"""What a namespace shows to its clients: keys, a certificate, and the file that says how to reach it.

Owns: where these come from at a start and at a reload: the data directory, or what the settings say instead.
"""

from __future__ import annotations

import datetime as dt
import logging
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from twinbus.server.auth.keys import KeyRing
from twinbus.server.runtime.ready_file import ReadyFile, connection_string
from twinbus.server.tls.certificates import Certificate, make_server_context
from twinbus.server.tls.development_certificates import ensure_development_certificate

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping

    from twinbus.server.auth.keys import Key
    from twinbus.server.config.settings import ServeSettings
    from twinbus.server.runtime.data_directory import DataDirectory

log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LiveSettings:
    """All that can be changed while a server runs. What is None stays as it is."""

    keys: KeyRing
    certificate: Certificate | None = None
    tls: ssl.SSLContext | None = None
    """Made of the certificate, which can be used therefore."""
    log_level: str | None = None


def load_keys(settings: ServeSettings, data_directory: DataDirectory) -> KeyRing:
    """Return the keys of a start: those of the data directory, of which the first is made here, and all others."""
    if settings.emulator_key:
        log.warning("the emulator's key is good here: everybody knows it, and all on this machine can use it")
    ring = add_configured_keys(settings, KeyRing.load(data_directory.keys_file))
    if ring.root_key is None:
        log.warning("no key has Manage, so nobody can manage the namespace: twinbus key add makes one")
    return ring


def add_configured_keys(settings: ServeSettings, key_ring: KeyRing) -> KeyRing:
    """Return the keys of the data directory with those of the configuration file and the emulator. Misuse."""
    key_ring = key_ring.with_keys(settings.keys)
    return key_ring.with_emulator_key() if settings.emulator_key else key_ring


def read_live_settings(settings: ServeSettings, data_directory: DataDirectory) -> LiveSettings:
    """Read everything again that can change while a server runs. StartError if anything cannot be used."""
    ring = add_configured_keys(settings, KeyRing.load(data_directory.keys_file, create_missing=False))
    certificate = choose_certificate(settings, data_directory)
    return LiveSettings(ring, certificate, make_server_context(certificate), settings.log_level)


def choose_certificate(settings: ServeSettings, data_directory: DataDirectory) -> Certificate:
    """The operator's own, or one for development."""
    if settings.tls_cert is not None and settings.tls_key is not None:
        return Certificate(settings.tls_cert, settings.tls_key)
    return ensure_development_certificate(data_directory.tls_directory, settings.host, dt.datetime.now(dt.UTC))


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
        connection_string=messaging_connection_string(settings, ports, keys.root_key),
        admin_connection_string=_admin_connection_string(settings, ports, keys.root_key),
        ca_file=str(ca_file) if ca_file is not None else None,
        pid=os.getpid(),
    )


def messaging_connection_string(
    settings: ServeSettings, ports: Mapping[str, int | None], key: Key | None
) -> str | None:
    """Return a connection string without TLS where that is open, since it needs no certificate; else with TLS."""
    for way in ("amqp", "amqps"):
        port = ports.get(way)
        if port is not None and key is not None:
            return connection_string(settings.host, port, key, is_emulator=way == "amqp")
    return None


def _admin_connection_string(settings: ServeSettings, ports: Mapping[str, int], key: Key | None) -> str | None:
    if "https" not in ports or key is None:
        return None
    return connection_string(settings.host, ports["https"], key, is_emulator=False)
