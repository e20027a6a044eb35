"""What a server is told at its start, and why it may refuse to.

Owns: the options of `twinbus serve`, their defaults and what is valid. Knows nothing of the command line but the names
of its options: an error names the one that is wrong. Whether a disk or a port is there shows when it is used.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from twinbus.model.limits import NamespaceLimits
from twinbus.model.path import NAMESPACE_NAME
from twinbus.server.tls.plaintext import is_loopback

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from twinbus.server.auth.keys import Key
    from twinbus.server.config.plan import Plan

PROTOCOLS: Final = ("amqp", "amqps", "http", "https")
"""Into a namespace: each has a port."""
PLAINTEXT_PROTOCOLS: Final = ("amqp", "http")
"""Those without TLS."""
LOG_LEVELS: Final = ("debug", "info", "warning", "error")
LOG_FORMATS: Final = ("text", "json")
MAX_STORES: Final = 64
DEFAULT_STORES: Final = 4
"""Stores of a new data directory, if `--stores` is not given."""
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
    """What was asked for cannot be, and cannot be at the next start either."""


class StoppedBeforeReady(Exception):
    """The server was told to stop before it served."""


class InvalidSetting(ConfigurationError):
    """An option has a value that cannot be."""

    def __init__(self, option: str, value: object, reason: str) -> None:
        """Said in one line: the option as it is typed, what was given, and what can be."""
        super().__init__(f"{option} {value}: {reason}")
        self.option = option
        self.value = value
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    """One namespace and how it is served."""

    name: str
    """Of the namespace."""
    data: Path
    """The data directory."""
    host: str = "127.0.0.1"
    """Address or name to listen on."""
    amqp_port: int | None = 5672
    """This and the other ports: 0 means any free one, None that it is not opened."""
    amqps_port: int | None = 5671
    http_port: int | None = 5300
    https_port: int | None = 5443
    plaintext: tuple[str, ...] = ()
    """Ways without TLS that are open although `host` is reached from other machines."""
    workers: int = 1
    """Processes that serve it. More than one have a further process over them, and each has some of the stores."""
    worker_timeout_s: float = 5.0
    """One of several processes that has given no sign of life for so long is killed, and started again."""
    stores: int | None = None
    """How many stores the data directory is to have. None: as many as it has, or `NEW_STORES` if it is new."""
    store_dirs: tuple[Path, ...] = ()
    """Where stores are made, in turn; in the data directory if there are none."""
    ready_file: Path | None = None
    min_free_bytes: int = 2**30
    """With less than this free on the disk of a store, sends to it are refused."""
    store_timeout_s: float = 10.0
    """A store that has not answered for so long counts as unavailable."""
    max_connections: int = 10_000
    """Of each process that serves clients, over all its ports."""
    max_unauthenticated: int = 1_000
    """Connections of one address that have shown no valid key or token; at most half of `max_connections`."""
    link_idle_s: float = 600.0
    """A link on which nothing was asked or sent for so long is detached."""
    token_timeout_s: float = 20.0
    """A connection that has shown no valid key or token by then is closed."""
    log_level: str = "info"
    log_format: str = "text"
    tls_cert: Path | None = None
    """The server's certificate, with those between it and its authority; a development certificate if there is none."""
    tls_key: Path | None = None
    measure_pauses: bool = False
    """Find out how long the loop cannot do anything, and show it in /health."""
    metering: bool = True
    """Write down what clients use, in `usage` in the data directory."""
    usage_days: int = 0
    """How long that is kept; 0 is for ever."""
    sync: bool = True
    """False only for tests and measurements: accepted messages can be lost."""
    limits: NamespaceLimits = field(default_factory=NamespaceLimits)
    keys: tuple[Key, ...] = ()
    """Beside the root key, which is in the data directory."""
    emulator_key: bool = False
    """The key of Microsoft's emulator is good as well. Everybody knows it, so nobody else may reach the server."""
    allowed_hosts: tuple[str, ...] = ()
    """With the emulator's key: names by which clients may call the server, beside its own. May start with `*.`."""
    plan: Plan | None = None
    """The entities that have to be there when it serves."""

    def __post_init__(self) -> None:
        """Refuse what cannot be served."""
        self._check_names()
        self._check_ports()
        for name, (option, lowest, highest) in _RANGES.items():
            value = getattr(self, name)
            if value is not None:
                _check_range(option, value, lowest, highest)
        if self.stores is not None and self.workers > self.stores:
            reason = f"each needs a store of its own, and --stores is {self.stores}: more of these, or fewer processes"
            raise InvalidSetting("--workers", self.workers, reason)
        if (self.tls_cert is None) != (self.tls_key is None):
            given, missing = ("--tls-cert", "--tls-key") if self.tls_cert else ("--tls-key", "--tls-cert")
            raise InvalidSetting(given, self.tls_cert or self.tls_key, f"needs {missing} too")
        if self.emulator_key and not self.is_loopback:
            raise InvalidSetting(
                "--host", self.host, "with --emulator-key, which everybody knows, it can be a loopback address only"
            )

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches the server."""
        return is_loopback(self.host) or self.host.lower() == "localhost"

    @property
    def open_protocols(self) -> tuple[str, ...]:
        """The ways in that are open."""
        closed = () if self.is_loopback else tuple(way for way in PLAINTEXT_PROTOCOLS if way not in self.plaintext)
        return tuple(way for way in PROTOCOLS if getattr(self, f"{way}_port") is not None and way not in closed)

    def port(self, protocol: str) -> int:
        """The port of a way that is open."""
        return int(getattr(self, f"{protocol}_port"))

    def check_explicit_ports(self, explicit_fields: Collection[str]) -> None:
        """Refuse a port without TLS that was asked for and would stay closed. `given` are the fields that were set."""
        for way in PLAINTEXT_PROTOCOLS:
            if (
                f"{way}_port" in explicit_fields
                and getattr(self, f"{way}_port") is not None
                and way not in self.open_protocols
            ):
                raise InvalidSetting(
                    f"--{way}-port",
                    self.port(way),
                    f"it has no TLS, and --host {self.host} is reached from other machines: add --plaintext {way}, or "
                    f"make --{way}-port none",
                )

    def _check_names(self) -> None:
        if not NAMESPACE_NAME.fullmatch(self.name):
            raise InvalidSetting(
                "NAME",
                repr(self.name),
                "a namespace is named with 1 to 50 letters, digits and hyphens, starts with a letter and does not end "
                "with a hyphen",
            )
        if not _HOST.fullmatch(self.host):
            raise InvalidSetting("--host", repr(self.host), "is neither an address nor the name of a machine")
        for name in self.allowed_hosts:
            if not _ALLOWED_HOST.fullmatch(name):
                raise InvalidSetting(
                    "--allowed-host", repr(name), "is not the name of a machine; write it without scheme and port"
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
                raise InvalidSetting(option, port, f"{taken[port]} has it already")
            taken[port] = option
        for way in self.plaintext:
            _check_choice("--plaintext", way, PLAINTEXT_PROTOCOLS)
        if not self.open_protocols:
            raise InvalidSetting("--amqps-port", "none", "no port would be open: give the server at least one")


_RANGES: Final[dict[str, tuple[str, float, float]]] = {
    "workers": ("--workers", 1, MAX_WORKERS),
    "worker_timeout_s": ("--worker-timeout", 1, 3_600),
    "stores": ("--stores", 1, MAX_STORES),
    "min_free_bytes": ("--min-free", 0, 2**60),
    "store_timeout_s": ("--store-timeout", 0.001, 3_600),
    "max_connections": ("--max-connections", 1, 1_000_000),
    "max_unauthenticated": ("--max-unauthenticated", 1, 1_000_000),
    "link_idle_s": ("--link-idle", 0.001, 86_400),
    "token_timeout_s": ("--token-timeout", 0.001, 3_600),
    "usage_days": ("--usage-days", 0, 100_000),
}


def parse_port(option: str, text: str) -> int | None:
    """A port, or None for `none`."""
    if text.strip().lower() == "none":
        return None
    try:
        return int(text)
    except ValueError:
        raise InvalidSetting(option, repr(text), "is no port; give a number, 0 for any free one, or none") from None


def parse_size(option: str, text: str) -> int:
    """Bytes of `1GiB`, `500MB`, `0`."""
    match = _SIZE.fullmatch(text.strip())
    unit = _SIZE_UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise InvalidSetting(option, repr(text), "is no size; write it as 1GiB, 500MB or 0")
    return int(match[1]) * unit


def _check_range(option: str, value: float, lowest: float, highest: float) -> None:
    if not lowest <= value <= highest:
        raise InvalidSetting(option, value, f"it can be {lowest} to {highest}")


def _check_choice(option: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InvalidSetting(option, repr(value), f"it can be {', '.join(choices)}")
