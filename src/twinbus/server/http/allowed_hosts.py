"""Which Host and Origin headers a request may have.

    hosts = Hosts(["build-7", "*.corp.example"])
    hosts.check(headers)            # InvalidArgument or Forbidden

Owns: the form of a Host header, and the defence against web pages where everybody knows a key (`--emulator-key`).
A page of any site can open a WebSocket to a server on its visitor's machine; by DNS rebinding (a name of the site's own
that resolves to 127.0.0.1) it can also use HTTP. The page cannot change what the browser says about it: the name in
Host, and its site in Origin. Where all keys are secret a page has none to show, and every name is accepted.
"""

from __future__ import annotations

import ipaddress
import re
from typing import TYPE_CHECKING, Final

from twinbus.model.errors import InvalidArgument
from twinbus.server.http.error_responses import Forbidden

if TYPE_CHECKING:
    from collections.abc import Iterable

_HOST_PATTERN: Final = re.compile(r"(?P<name>[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?")
_ORIGIN_PATTERN: Final = re.compile(r"[a-z][a-z0-9+.-]*://(?P<host>.+)", re.IGNORECASE)
_LOCALHOST: Final = "localhost"


class AllowedHosts:
    """The names that a server answers to."""

    def __init__(self, names: Iterable[str] | None = None) -> None:
        """Beside these: IP addresses and localhost. A name may be `*.example.com`. None: every name."""
        self._names = None if names is None else _normalise(names)

    def replace(self, names: Iterable[str]) -> None:
        """Answer to these names instead."""
        self._names = _normalise(names)

    def check(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """InvalidArgument for a Host that is malformed, Forbidden for one that is not ours, or a foreign Origin.

        Names of headers are in lower case. A request of HTTP/1.0 may have no Host.
        """
        given = list(headers)
        hosts = [value.decode("latin-1") for name, value in given if name == b"host"]
        for host in hosts:
            match = _HOST_PATTERN.fullmatch(host)
            if match is None:
                raise InvalidArgument(f"Host is {host!r:.80}; it has to be a name or an address, and perhaps a port")
            if self._names is not None:
                self._check_host(match["name"])
        if self._names is not None:
            for origin in [value.decode("latin-1") for name, value in given if name == b"origin"]:
                self._check_origin(origin, hosts)

    def _check_host(self, name: str) -> None:
        if _parse_address(name) is None and not self._is_allowed(name):
            raise Forbidden(
                f"Host is {name!r:.80}, which is no name of this server: with --emulator-key it can be an IP address, "
                "localhost, a name in the certificate, or one given by --allowed-host"
            )

    def _check_origin(self, origin: str, hosts: list[str]) -> None:
        match = _ORIGIN_PATTERN.fullmatch(origin)
        host = _HOST_PATTERN.fullmatch(match["host"]) if match is not None else None
        if host is not None:
            address = _parse_address(host["name"])
            is_local = address.is_loopback if address is not None else self._is_allowed(host["name"])
            if is_local or host[0].lower() in [one.lower() for one in hosts]:
                return
        raise Forbidden(
            f"Origin is {origin!r:.80}: with --emulator-key, whose key everybody knows, pages of other sites are "
            "refused; --allowed-host allows one"
        )

    def _is_allowed(self, name: str) -> bool:
        assert self._names is not None
        wanted = name.lower().rstrip(".")
        return wanted == _LOCALHOST or wanted in self._names or f"*.{wanted.partition('.')[2]}" in self._names


def _normalise(names: Iterable[str]) -> frozenset[str]:
    return frozenset(name.lower().rstrip(".") for name in names)


def _parse_address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return None


ANY_HOST: Final = AllowedHosts()
