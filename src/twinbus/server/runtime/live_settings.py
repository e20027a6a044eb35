"""Settings that can change while a server runs (keys, certificate, log level), and the contents of the ready file.

Owns: where these settings come from at startup and at a reload: the data directory, or the configuration.
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
from twinbus.server.tls.development_authority import choose_authority_directory
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
    """Settings that can change while a server runs. None means unchanged."""

    keys: KeyRing
    certificate: Certificate | None = None
    tls: ssl.SSLContext | None = None
    """The TLS context made from the certificate, which proves that the certificate is usable."""
    log_level: str | None = None


def load_keys(settings: ServeSettings, data_directory: DataDirectory) -> KeyRing:
    """Return the keys at startup, and create the first key in a new data directory."""
    if settings.emulator_key:
        log.warning("the emulator's key is accepted: it is publicly known, and every user of this machine can use it")
    ring = add_configured_keys(settings, KeyRing.load(data_directory.keys_file))
    if ring.root_key is None:
        log.warning("no key has Manage, so nobody can manage the namespace: create one with twinbus key add")
    return ring


def add_configured_keys(settings: ServeSettings, key_ring: KeyRing) -> KeyRing:
    """Return the keys from the data directory, the configuration file and the emulator.

    Raise ConfigurationError if two keys have the same name.
    """
    key_ring = key_ring.with_keys(settings.keys)
    return key_ring.with_emulator_key() if settings.emulator_key else key_ring


def read_live_settings(settings: ServeSettings, data_directory: DataDirectory) -> LiveSettings:
    """Reread all settings that can change while a server runs. Raise StartError if a setting is not usable."""
    ring = add_configured_keys(settings, KeyRing.load(data_directory.keys_file, create_missing=False))
    certificate = choose_certificate(settings, data_directory)
    return LiveSettings(ring, certificate, make_server_context(certificate), settings.log_level)


def choose_certificate(settings: ServeSettings, data_directory: DataDirectory) -> Certificate:
    """Return the certificate from the settings, or a development certificate if the settings have none."""
    if settings.tls_cert is not None and settings.tls_key is not None:
        return Certificate(settings.tls_cert, settings.tls_key)
    own_directory = data_directory.tls_directory
    return ensure_development_certificate(
        own_directory, settings.host, dt.datetime.now(dt.UTC), choose_authority_directory(own_directory)
    )


def make_ready_file(
    settings: ServeSettings, ports: Mapping[str, int], keys: KeyRing, certificate: Certificate
) -> ReadyFile:
    """Return the contents of this process's ready file."""
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
    """Return a connection string for AMQP, without TLS if that is allowed: the client then needs no certificate.

    A connection string with the AMQP port is also for administration, because that port serves all protocols.
    """
    is_plaintext = settings.allows_plaintext("amqp")
    for name in ("amqp", "amqps") if is_plaintext else ("amqps", "amqp"):
        port = ports.get(name)
        if port is not None and key is not None:
            return connection_string(settings.host, port, key, is_emulator=is_plaintext and name == "amqp")
    return None


def _admin_connection_string(settings: ServeSettings, ports: Mapping[str, int], key: Key | None) -> str | None:
    port = ports.get("https", ports.get("amqp"))
    return connection_string(settings.host, port, key, is_emulator=False) if port is not None and key else None
