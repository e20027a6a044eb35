"""The Host and Origin headers that a request may have.

    hosts = AllowedHosts(["build-7", "*.corp.example"])
    hosts.check(headers)            # InvalidArgument or Forbidden

Owns: the format of a Host header, and the defence against web pages if a publicly known key is accepted
(`--emulator-key`). A page from any site can open a WebSocket to a server on its visitor's machine. Through DNS
rebinding (a host name of the site that resolves to 127.0.0.1), the page can also use HTTP. The page cannot change the
headers that the browser sets: the name in Host, and the page's site in Origin. If all keys are secret, a page has no
key, and every name is accepted.
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
    """The host names that a server accepts in requests."""

    def __init__(self, names: Iterable[str] | None = None) -> None:
        """Accept `names`, IP addresses and localhost; None accepts every name. A name may be `*.example.com`."""
        self._names = None if names is None else _normalise(names)

    def replace(self, names: Iterable[str]) -> None:
        """Accept these names instead of the current names."""
        self._names = _normalise(names)

    def check(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Raise InvalidArgument if Host is malformed, Forbidden if Host or Origin is not allowed.

        Header names are in lower case. An HTTP/1.0 request may have no Host.
        """
        pairs = list(headers)
        hosts = [value.decode("latin-1") for name, value in pairs if name == b"host"]
        for host in hosts:
            match = _HOST_PATTERN.fullmatch(host)
            if match is None:
                raise InvalidArgument(f"Host is {host!r:.80}; it has to be a name or an address, and perhaps a port")
            if self._names is not None:
                self._check_host(match["name"])
        if self._names is not None:
            for origin in [value.decode("latin-1") for name, value in pairs if name == b"origin"]:
                self._check_origin(origin, hosts)

    def _check_host(self, name: str) -> None:
        if _parse_address(name) is None and not self._is_allowed(name):
            raise Forbidden(
                f"Host {name!r:.80} is not allowed: with --emulator-key, use an IP address, localhost, a name in the "
                "certificate, or a name given by --allowed-host"
            )

    def _check_origin(self, origin: str, hosts: list[str]) -> None:
        match = _ORIGIN_PATTERN.fullmatch(origin)
        host = _HOST_PATTERN.fullmatch(match["host"]) if match is not None else None
        if host is not None:
            address = _parse_address(host["name"])
            is_local = address.is_loopback if address is not None else self._is_allowed(host["name"])
            if is_local or host[0].lower() in [requested.lower() for requested in hosts]:
                return
        raise Forbidden(
            f"Origin {origin!r:.80} is not allowed: with --emulator-key, whose key is publicly known, pages of other "
            "sites are refused; allow a host with --allowed-host"
        )

    def _is_allowed(self, name: str) -> bool:
        assert self._names is not None
        host = name.lower().rstrip(".")
        return host == _LOCALHOST or host in self._names or f"*.{host.partition('.')[2]}" in self._names


def _normalise(names: Iterable[str]) -> frozenset[str]:
    return frozenset(name.lower().rstrip(".") for name in names)


def _parse_address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return None


ANY_HOST: Final = AllowedHosts()
