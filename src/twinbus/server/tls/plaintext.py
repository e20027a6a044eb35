"""The check whether a connection keeps its data confidential from the network.

Owns: this check for one connection. The settings decide which ports accept connections without TLS.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio


def is_confidential(transport: asyncio.BaseTransport) -> bool:
    """Return whether a connection uses TLS or comes from this machine."""
    if transport.get_extra_info("sslcontext") is not None:
        return True
    peer = transport.get_extra_info("peername")
    return isinstance(peer, tuple) and is_loopback(str(peer[0]))


def is_loopback(host: str) -> bool:
    """Return whether an address, as text, is a loopback address; False for text that is not an address."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback
