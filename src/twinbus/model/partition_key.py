"""Partition keys: which fragment of a partitioned entity a message belongs to.

The one place of the rule: the session id is the key; without one, the partition key; without both, and only if the
entity detects duplicates, the message id. A message without a key goes to any fragment.

    fragment = BLAKE2b(key as UTF-8, 8 bytes), read as a big-endian number, modulo 16

The hash is the same on every machine and after every start: it says where the messages of a key are stored.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

from twinbus.model.description import FRAGMENT_COUNT
from twinbus.model.errors import InvalidOperation

_KEY_DIGEST_BYTES: Final = 8
_ID_DIGEST_BYTES: Final = 16


def partition_key(session: str | None, key: str | None, message_id: object = None) -> bytes | None:
    """Return the key of a message, or None. Pass `message_id` only if the entity detects duplicates.

    Raises InvalidOperation if the session id and the partition key are both set and differ.
    """
    if session is not None and key is not None and session != key:
        raise InvalidOperation(
            f"the message's partition key is {key!r:.80} and its session id {session!r:.80}: where both are given they "
            "have to be equal"
        )
    chosen = explicit_key(session, key)
    if chosen is not None:
        return chosen.encode()
    if message_id is None:
        return None
    return message_id.encode() if isinstance(message_id, str) else digest_of(message_id)


def explicit_key(session: str | None, key: str | None) -> str | None:
    """Return the session id or, without one, the partition key."""
    return session if session is not None else key


def fragment_of(key: bytes) -> int:
    """Return the number of the fragment that holds all messages of a key."""
    return int.from_bytes(blake2b(key, digest_size=_KEY_DIGEST_BYTES).digest(), "big") % FRAGMENT_COUNT


def identity_of(message_id: object, key: bytes | None) -> bytes:
    """Return the digest by which duplicates are detected: of the message id and, on a partitioned entity, the key."""
    digest = digest_of(message_id)
    return digest if key is None else blake2b(digest + key, digest_size=_ID_DIGEST_BYTES).digest()


def digest_of(message_id: object) -> bytes:
    """Return a message id in few bytes; ids of different types have different digests."""
    kind = type(message_id).__name__.encode()
    raw = message_id if isinstance(message_id, bytes) else str(message_id).encode()
    return blake2b(kind + b":" + raw, digest_size=_ID_DIGEST_BYTES).digest()
