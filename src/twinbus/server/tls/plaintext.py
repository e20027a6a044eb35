"""Which connections keep what is sent on them from the network.

Owns: the answer for one connection. Which ports are open without TLS is said by the settings.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio


def is_confidential(transport: asyncio.BaseTransport) -> bool:
    """Whether a connection has TLS, or does not leave this machine."""
    if transport.get_extra_info("sslcontext") is not None:
        return True
    peer = transport.get_extra_info("peername")
    return isinstance(peer, tuple) and is_loopback(str(peer[0]))


def is_loopback(host: str) -> bool:
    """Whether an address, as text, is one of this machine alone; False for anything that is no address."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback
