"""From a key to a fragment.

    fragment = BLAKE2b(key as UTF-8, 8 bytes), read as a big-endian number, modulo 16

The same on every machine and after every start: what a key has led to is where its messages lie.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

from twinbus.model.description import FRAGMENTS

_DIGEST_BYTES: Final = 8


def fragment_of(key: bytes) -> int:
    """The number of the fragment that all messages of this key are in."""
    return int.from_bytes(blake2b(key, digest_size=_DIGEST_BYTES).digest(), "big") % FRAGMENTS
