"""With the public emulator key, requests need an allowed Host header and must not come from pages of other sites."""

from __future__ import annotations

import pytest

from twinbus.model.errors import InvalidArgument
from twinbus.server.http.allowed_hosts import ANY_HOST, AllowedHosts
from twinbus.server.http.error_responses import Forbidden

HOSTS = AllowedHosts(["build-7", "Bus.Corp.Example", "*.test.example"])


def headers(host: str | None, *origins: str) -> list[tuple[bytes, bytes]]:
    host_header = [(b"host", host.encode("latin-1"))] if host is not None else []
    return [*host_header, *((b"origin", origin.encode("latin-1")) for origin in origins)]


@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "LOCALHOST:5300", "localhost.", "127.0.0.1", "127.20.3.4:1", "10.1.2.3:443", "[::1]:5300"),
        *("build-7:5300", "BUILD-7.", "bus.corp.example", "a.test.example", None),
    ],
)
def test_an_allowed_host_is_accepted(host: str | None) -> None:
    HOSTS.check(headers(host))


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "test.example", "a.b.test.example"),
        *("build-7.evil.example", "corp.example", "0x7f.1", "2130706433", "xlocalhost"),
    ],
)
def test_any_other_host_is_refused(host: str) -> None:
    with pytest.raises(Forbidden, match=r"is not allowed: .*--allowed-host"):
        HOSTS.check(headers(host))
    ANY_HOST.check(headers(host, "http://evil.example"))


@pytest.mark.parametrize("host", ["", "a:1/orders", "[::1", "a@b", "a:b", "a:123456", "a b", "\xe9", "a\tb"])
def test_an_invalid_host_is_always_refused(host: str) -> None:
    for hosts in (HOSTS, ANY_HOST):
        with pytest.raises(InvalidArgument, match="it has to be a name or an address"):
            hosts.check(headers(host))


@pytest.mark.parametrize(
    "origin",
    [
        *(
            "http://localhost:3000",
            "https://127.0.0.1",
            "http://[::1]:8080",
            "http://build-7",
            "https://a.test.example",
        ),
        "http://10.0.0.1:5300",
    ],
)
def test_pages_of_local_and_allowed_hosts_are_accepted(origin: str) -> None:
    HOSTS.check(headers("10.0.0.1:5300", origin))


@pytest.mark.parametrize(
    "origin",
    [
        *("null", "", "http://evil.example", "https://localhost.evil.example", "http://10.0.0.2", "http://10.0.0.1:1"),
        *("file://", "chrome-extension://abcdef", "http://localhost@evil.example", "http://localhost/evil"),
    ],
)
def test_pages_of_other_sites_are_refused(origin: str) -> None:
    with pytest.raises(Forbidden, match="pages of other sites are refused"):
        HOSTS.check(headers("10.0.0.1:5300", origin))
    with pytest.raises(Forbidden):
        HOSTS.check(headers("10.0.0.1:5300", "http://localhost", origin))
