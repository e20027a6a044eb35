"""Partition keys: which fragment of a partitioned entity stores a message.

The key is the session id or, without a session id, the partition key. If a message has neither and the entity detects
duplicates, the key is the message id. A message without a key may go to any fragment. Server and clients both use this
module.

    fragment = BLAKE2b(key as UTF-8, 8 bytes), read as a big-endian number, modulo 16

The hash determines where the messages with a key are stored, so it must be the same on every machine and after a
restart.
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
            f"the message's partition key is {key!r:.80} and its session id {session!r:.80}: if both are set, they "
            "must be equal"
        )
    chosen = explicit_key(session, key)
    if chosen is not None:
        return chosen.encode()
    if message_id is None:
        return None
    return message_id.encode() if isinstance(message_id, str) else digest_of(message_id)


def explicit_key(session: str | None, key: str | None) -> str | None:
    """Return the session id or, if there is none, the partition key."""
    return session if session is not None else key


def fragment_of(key: bytes) -> int:
    """Return the number of the fragment that stores all messages with a key."""
    return int.from_bytes(blake2b(key, digest_size=_KEY_DIGEST_BYTES).digest(), "big") % FRAGMENT_COUNT


def identity_of(message_id: object, key: bytes | None) -> bytes:
    """Return the digest that duplicate detection compares: the message id's digest, combined with `key` if given.

    `key` is the key of the message in a partitioned entity.
    """
    digest = digest_of(message_id)
    return digest if key is None else blake2b(digest + key, digest_size=_ID_DIGEST_BYTES).digest()


def digest_of(message_id: object) -> bytes:
    """Return a digest of a message id; ids of different types have different digests."""
    kind = type(message_id).__name__.encode()
    raw = message_id if isinstance(message_id, bytes) else str(message_id).encode()
    return blake2b(kind + b":" + raw, digest_size=_ID_DIGEST_BYTES).digest()
