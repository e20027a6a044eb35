"""What a namespace shows to its clients: keys, a certificate, and the file that says how to reach it.

Owns: where these come from at a start: the data directory, or what the settings say instead.
"""

from __future__ import annotations

import datetime as dt
import logging
import os
from typing import TYPE_CHECKING, Final

from twinbus.server.certificates import Certificate
from twinbus.server.development_certificates import development_certificate
from twinbus.server.keys import KeyRing
from twinbus.server.ready_file import ReadyFile, connection_string

if TYPE_CHECKING:
    from collections.abc import Mapping

    from twinbus.server.data_directory import DataDirectory
    from twinbus.server.settings import ServeSettings

log: Final = logging.getLogger(__name__)


def load_keys(settings: ServeSettings, data: DataDirectory) -> KeyRing:
    """The root key, which is made at the first start, and those that are good beside it."""
    ring = KeyRing.load(data.keys).with_keys(settings.keys)
    if settings.emulator_key:
        log.warning("the emulator's key is good here: everybody knows it, and all on this machine can use it")
        ring = ring.with_emulator_key()
    return ring


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
        connection_string=_messaging(settings, ports, keys),
        admin_connection_string=_administration(settings, ports, keys),
        ca_file=str(ca_file) if ca_file is not None else None,
        pid=os.getpid(),
    )


def _messaging(settings: ServeSettings, ports: Mapping[str, int], keys: KeyRing) -> str | None:
    """Without TLS where that is open, since it needs no certificate; else with TLS."""
    if "amqp" in ports:
        return connection_string(settings.host, ports["amqp"], keys.root, is_emulator=True)
    if "amqps" in ports:
        return connection_string(settings.host, ports["amqps"], keys.root, is_emulator=False)
    return None


def _administration(settings: ServeSettings, ports: Mapping[str, int], keys: KeyRing) -> str | None:
    if "https" not in ports:
        return None
    return connection_string(settings.host, ports["https"], keys.root, is_emulator=False)
