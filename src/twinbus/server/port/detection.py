"""Detection of a connection's protocol from its first bytes.

    detect(b"GET")      # WireProtocol.HTTP
    detect(b"AM")       # None: one more byte decides

All served protocols let the client send first, and differ within four bytes: AMQP starts with its protocol header
(`AMQP`), TLS with a handshake record (0x16), and HTTP with a method, which is a word in letters. A method may also
start with `A`, so up to four bytes are needed. Other bytes belong to no served protocol.

Owns: this decision. Knows nothing of sockets.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Final


class WireProtocol(Enum):
    """The protocol of a connection, as its first bytes show."""

    AMQP = "AMQP"
    HTTP = "HTTP"
    TLS = "TLS"
    UNKNOWN = "an unknown protocol"


TLS_HANDSHAKE_RECORD: Final = 0x16
"""The first byte of a TLS connection: the type of the record that contains the ClientHello."""
_AMQP_HEADER: Final = b"AMQP"
_LETTER: Final = re.compile(rb"[A-Za-z]")


def detect(first_bytes: bytes) -> WireProtocol | None:
    """Return the protocol of a connection that starts with these bytes, or None if more bytes are needed."""
    if first_bytes.startswith(_AMQP_HEADER):
        return WireProtocol.AMQP
    if _AMQP_HEADER.startswith(first_bytes):
        return None
    if first_bytes[0] == TLS_HANDSHAKE_RECORD:
        return WireProtocol.TLS
    return WireProtocol.HTTP if _LETTER.match(first_bytes) else WireProtocol.UNKNOWN
