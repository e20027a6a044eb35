"""Sequence numbers and lock tokens: which fragment of its entity one names."""

from __future__ import annotations

from typing import Final

SEQUENCE_FRAGMENT_SHIFT: Final = 48
"""The bits of a sequence number above these are the number of its fragment."""
TOKEN_FRAGMENT_BYTE: Final = 8
"""The position, in a lock token and in a delivery tag, of the byte that is the number of its fragment."""
LOCK_TOKEN_BYTES: Final = 16


def fragment_of_sequence(sequence: int) -> int:
    """Return the number of the fragment that holds the message of a sequence number."""
    return sequence >> SEQUENCE_FRAGMENT_SHIFT


def delivery_tag_of(token: bytes) -> bytes:
    """Return the delivery tag of a token: the bytes of the GUID in .NET's order."""
    return token[3::-1] + token[5:3:-1] + token[7:5:-1] + token[8:]


lock_token_of: Final = delivery_tag_of
"""The order of the bytes is reversed by reversing it again."""
