"""The settings of a server, and the errors that stop it from starting.

Owns: the options of `twinbus serve`, their defaults and their valid values. Knows only the option names of the command
line, because an error names the invalid option. Disks and ports are not checked until they are used.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from twinbus.model.limits import NamespaceLimits
from twinbus.model.path import INVALID_NAMESPACE_NAME, NAMESPACE_NAME
from twinbus.server.tls.plaintext import is_loopback

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from twinbus.model.entity_file.plan import Plan
    from twinbus.server.auth.keys import Key

PROTOCOLS: Final = ("amqp", "amqps", "http", "https")
"""The protocols over which clients connect to a namespace; each has a port. The AMQP port serves all protocols."""
PLAINTEXT_PROTOCOLS: Final = ("amqp", "http")
"""The protocols without TLS."""
LOG_LEVELS: Final = ("debug", "info", "warning", "error")
LOG_FORMATS: Final = ("text", "json")
MAX_STORES: Final = 64
DEFAULT_STORES: Final = 4
"""The number of stores in a new data directory, if `--stores` is not given."""
MAX_WORKERS: Final = 64

_HOST: Final = re.compile(r"[A-Za-z0-9._:%-]{1,253}")
_ALLOWED_HOST: Final = re.compile(r"(?:\*\.)?[A-Za-z0-9_-][A-Za-z0-9._-]{0,252}")
_SIZE: Final = re.compile(r"([0-9]{1,15})\s*([A-Za-z]*)")
_SIZE_UNITS: Final = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}


class StartError(Exception):
    """The server cannot start. The message says why, and what to do."""


class ConfigurationError(StartError):
    """The configuration is invalid, so the server cannot start until the configuration is changed."""


class StoppedBeforeReady(Exception):
    """The server was stopped before it was ready."""


class InvalidSetting(ConfigurationError):
    """An option has an invalid value."""

    def __init__(self, option: str, value: object, reason: str) -> None:
        """Create the error; its message has the option as typed, the value, and the reason."""
        super().__init__(f"{option} {value}: {reason}")
        self.option = option
        self.value = value
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    """The settings for serving a namespace."""

    name: str
    """The name of the namespace."""
    data: Path
    """The data directory."""
    host: str = "127.0.0.1"
    """The address or host name to listen on."""
    amqp_port: int | None = 5672
    """The port for all protocols. For this and the other ports, 0 means any free port, and None means not to listen."""
    amqps_port: int | None = 5671
    http_port: int | None = 5300
    https_port: int | None = 5443
    plaintext: tuple[str, ...] = ()
    """Protocols that are served without TLS even if other machines can reach `host`."""
    workers: int = 1
    """The number of worker processes. If there are several, a supervisor starts them, and each worker owns some
    stores."""
    worker_timeout_s: float = 5.0
    """A worker that sends no heartbeat for this long is killed and restarted."""
    stores: int | None = None
    """The number of stores in the data directory (default: the current number, or `DEFAULT_STORES` for a new
    directory)."""
    store_dirs: tuple[Path, ...] = ()
    """Directories in which new stores are created, in turn (default: the data directory)."""
    ready_file: Path | None = None
    min_free_bytes: int = 2**30
    """A store refuses sends while its disk has less free space than this."""
    store_timeout_s: float = 10.0
    """A store that does not respond for this long counts as unavailable."""
    max_connections: int = 10_000
    """The limit on connections per process that serves clients, over all its ports."""
    max_unauthenticated: int = 1_000
    """The limit on unauthenticated connections from one address; at most half of `max_connections`."""
    link_idle_s: float = 600.0
    """A link that is idle for this long is detached."""
    token_timeout_s: float = 20.0
    """A connection that is not authenticated within this time is closed."""
    log_level: str = "info"
    log_format: str = "text"
    tls_cert: Path | None = None
    """The file with the server's certificate and its intermediate certificates (default: a development certificate)."""
    tls_key: Path | None = None
    measure_pauses: bool = False
    """Whether pauses of the event loop are measured and shown in /health."""
    metering: bool = True
    """Whether the usage of clients is recorded in `usage` in the data directory."""
    usage_days: int = 0
    """How many days usage records are kept; 0 keeps them forever."""
    sync: bool = True
    """Whether commits are synced to disk. False is only for tests and measurements, because accepted messages can be
    lost."""
    limits: NamespaceLimits = field(default_factory=NamespaceLimits)
    keys: tuple[Key, ...] = ()
    """Keys in addition to the root key, which is in the data directory."""
    emulator_key: bool = False
    """Whether the publicly known key of Microsoft's emulator is accepted. If so, `host` must be a loopback address."""
    allowed_hosts: tuple[str, ...] = ()
    """With the emulator's key: additional host names that clients may use. A name may start with `*.`."""
    plan: Plan | None = None
    """The entities that must exist before the server accepts clients."""

    def __post_init__(self) -> None:
        """Raise InvalidSetting for an invalid value or combination of values."""
        self._check_names()
        self._check_ports()
        for name, (option, lowest, highest) in _RANGES.items():
            value = getattr(self, name)
            if value is not None:
                _check_range(option, value, lowest, highest)
        if self.stores is not None and self.workers > self.stores:
            reason = f"each worker needs a store of its own, but --stores is {self.stores}: raise --stores"
            raise InvalidSetting("--workers", self.workers, reason)
        if (self.tls_cert is None) != (self.tls_key is None):
            given, missing = ("--tls-cert", "--tls-key") if self.tls_cert else ("--tls-key", "--tls-cert")
            raise InvalidSetting(given, self.tls_cert or self.tls_key, f"needs {missing} too")
        if self.emulator_key and not self.is_loopback:
            raise InvalidSetting(
                "--host", self.host, "must be a loopback address with --emulator-key, whose key is publicly known"
            )

    @property
    def is_loopback(self) -> bool:
        """Whether only clients on this machine can reach the server."""
        return is_loopback(self.host) or self.host.lower() == "localhost"

    @property
    def open_protocols(self) -> tuple[str, ...]:
        """The protocols whose ports are open. If other machines can reach `host`, the AMQP port may serve only TLS."""
        return tuple(
            protocol
            for protocol in PROTOCOLS
            if getattr(self, f"{protocol}_port") is not None and (protocol != "http" or self.allows_plaintext("http"))
        )

    def allows_plaintext(self, protocol: str) -> bool:
        """Return whether clients may use a protocol (`amqp` or `http`) without TLS."""
        return self.is_loopback or protocol in self.plaintext

    def port(self, protocol: str) -> int:
        """Return the port of an open protocol."""
        return int(getattr(self, f"{protocol}_port"))

    def check_explicit_ports(self, explicit_fields: Collection[str]) -> None:
        """Raise InvalidSetting if the HTTP port that the user set (`explicit_fields`) would stay closed."""
        if "http_port" in explicit_fields and self.http_port is not None and "http" not in self.open_protocols:
            raise InvalidSetting(
                "--http-port",
                self.http_port,
                f"has no TLS, but other machines can reach --host {self.host}: add --plaintext http, or set "
                "--http-port none",
            )

    def _check_names(self) -> None:
        if not NAMESPACE_NAME.fullmatch(self.name):
            raise InvalidSetting("NAME", repr(self.name), INVALID_NAMESPACE_NAME)
        if not _HOST.fullmatch(self.host):
            raise InvalidSetting("--host", repr(self.host), "is neither an address nor a host name")
        for name in self.allowed_hosts:
            if not _ALLOWED_HOST.fullmatch(name):
                raise InvalidSetting(
                    "--allowed-host", repr(name), "is not a host name: write it without scheme and port"
                )
        _check_choice("--log-level", self.log_level, LOG_LEVELS)
        _check_choice("--log-format", self.log_format, LOG_FORMATS)

    def _check_ports(self) -> None:
        taken: dict[int, str] = {}
        for option, port in (
            ("--amqp-port", self.amqp_port),
            ("--amqps-port", self.amqps_port),
            ("--http-port", self.http_port),
            ("--https-port", self.https_port),
        ):
            if port is None:
                continue
            _check_range(option, port, 0, 65_535)
            if port and port in taken:
                raise InvalidSetting(option, port, f"is already used by {taken[port]}")
            taken[port] = option
        for protocol in self.plaintext:
            _check_choice("--plaintext", protocol, PLAINTEXT_PROTOCOLS)
        if not self.open_protocols:
            raise InvalidSetting("--amqps-port", "none", "no port would be open: open at least one")


_RANGES: Final[dict[str, tuple[str, float, float]]] = {
    "workers": ("--workers", 1, MAX_WORKERS),
    "worker_timeout_s": ("--worker-timeout", 1, 3_600),
    "stores": ("--stores", 1, MAX_STORES),
    "min_free_bytes": ("--min-free", 0, 2**60),
    "store_timeout_s": ("--store-timeout", 0.001, 3_600),
    "max_connections": ("--max-connections", 1, 1_000_000),
    "max_unauthenticated": ("--max-unauthenticated", 1, 1_000_000),
    "link_idle_s": ("link_idle", 0.001, 86_400),
    "token_timeout_s": ("token_timeout", 0.001, 3_600),
    "usage_days": ("--usage-days", 0, 100_000),
}


def parse_port(option: str, text: str) -> int | None:
    """Return the port in `text`, or None for `none`."""
    if text.strip().lower() == "none":
        return None
    try:
        return int(text)
    except ValueError:
        raise InvalidSetting(option, repr(text), "is not a port: give a number, 0 for any free port, or none") from None


def parse_size(option: str, text: str) -> int:
    """Return a size such as `1GiB`, `500MB` or `0` in bytes."""
    match = _SIZE.fullmatch(text.strip())
    unit = _SIZE_UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise InvalidSetting(option, repr(text), "is not a size: write it as 1GiB, 500MB or 0")
    return int(match[1]) * unit


def _check_range(option: str, value: float, lowest: float, highest: float) -> None:
    if not lowest <= value <= highest:
        raise InvalidSetting(option, value, f"it can be {lowest} to {highest}")


def _check_choice(option: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InvalidSetting(option, repr(value), f"it can be {', '.join(choices)}")
