"""Locks held by peek-lock receivers.

Owns: the locks of a fragment with their tokens and deadlines. This module must not know connections or stores.
Locks are not stored: after a restart, locked messages are available again. The delivery count is stored when it changes
(abandon, lock expiry), not on delivery.

A token has 16 bytes: the incarnation of the fragment (8), the fragment number (1), and random bits (7). A token from an
earlier incarnation therefore matches no lock, and every token names its fragment. All receivers of the entity see the
first nine bytes. The random bits are drawn for each lock, because a management request or an HTTP call can settle a
message by its token alone. A client that could guess tokens could settle other clients' messages.
"""

from __future__ import annotations

from itertools import islice
from struct import Struct
from typing import TYPE_CHECKING, Final

from twinbus.broker.message_record import HAS_DUE_TIME, HAS_EXTRA_ROWS, due_time_of, session_id_of, shared_body_of
from twinbus.broker.ports.exclusive_receiver import ExclusiveLocks
from twinbus.broker.ports.fragment import LOCK_TOKEN_BYTES, delivery_tag_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from random import Random

    from twinbus.broker.fragment.fragment import Fragment
    from twinbus.broker.fragment.session_lock import LocalSessionLock

NEVER_EXPIRES_S: Final = float("inf")
"""The deadline of locks that do not expire."""
_NUMBER: Final = Struct(">Q")
pack_lock_number: Final = _NUMBER.pack
_INCARNATION_BYTES: Final = 8
_FRAGMENT_SHIFT: Final = 56
_INCARNATION_BITS: Final = 64
_POOL_SIZE: Final = 1_024
"""The number of random numbers drawn at once, because one system call per lock would be slow."""
_POOL_STRUCT: Final = Struct(f">{_POOL_SIZE}Q")
_ZERO_BYTES: Final = bytes(_POOL_SIZE)
"""Zeros for the first byte of each drawn number, which is reserved for the fragment number."""


class TokenSource:
    """The source of random bits in lock tokens, for all fragments of a namespace."""

    def __init__(self, random: Random) -> None:
        """Create a source; a server passes `SystemRandom`, a simulation passes a seeded generator."""
        self._random = random
        self._pool: tuple[int, ...] = ()
        self._used = 0

    def make_incarnation(self) -> bytes:
        """Return eight random bytes that identify an incarnation of a fragment."""
        return self._random.getrandbits(_INCARNATION_BITS).to_bytes(_INCARNATION_BYTES, "big")

    def draw(self, count: int) -> tuple[int, ...]:
        """Return `count` random 56-bit numbers."""
        end = self._used + count
        if end <= len(self._pool):
            drawn = self._pool[self._used : end]
            self._used = end
            return drawn
        drawn = self._pool[self._used :]
        while len(drawn) < count:
            random_bytes = bytearray(self._random.randbytes(_POOL_STRUCT.size))
            random_bytes[::8] = _ZERO_BYTES
            self._pool = _POOL_STRUCT.unpack(random_bytes)
            self._used = min(count - len(drawn), _POOL_SIZE)
            drawn += self._pool[: self._used]
        return drawn


class Lock:
    """The lock of one message."""

    __slots__ = (
        "deadline_s",
        "expiry_ms",
        "has_extra_rows",
        "is_deferred",
        "number",
        "sequence",
        "serial",
        "session_id",
        "session_lock",
        "shared_body",
        "size",
    )

    def __init__(self, number: int, sequence: int, size: int, deadline_s: float) -> None:
        """Create a lock; the number is 0 if an operation takes the message without a token. See `Locks.add`."""
        self.number = number
        self.serial = 0
        """The position of the lock in the order of locking within the fragment."""
        self.sequence = sequence
        self.size = size
        """The size of the record in bytes."""
        self.deadline_s = deadline_s
        self.expiry_ms = 0
        """The expiry time of the message in the time index; 0 if it does not expire."""
        self.session_id: bytes | None = None
        self.session_lock: LocalSessionLock | None = None
        """The lock of the message's session, or None. When the session's lock ends, the message lock ends too."""
        self.is_deferred = False
        self.shared_body = 0
        """The number of the message's shared body, or 0."""
        self.has_extra_rows = False
        """Whether the message has further rows on disk, or is deferred."""

    def load_from_record(self, record: bytes) -> None:
        """Take expiry time, session id and shared body from a record that has further rows on disk."""
        self.has_extra_rows = True
        if record[1] & HAS_DUE_TIME:
            self.expiry_ms = due_time_of(record)
        self.session_id = session_id_of(record)
        self.shared_body = shared_body_of(record)


class Locks:
    """The locks of one fragment."""

    def __init__(self, token_source: TokenSource, fragment_number: int = 0) -> None:
        """Create an empty table for a new incarnation of a fragment."""
        incarnation = token_source.make_incarnation()
        self.token_prefix = incarnation
        self.tag_prefix = delivery_tag_of(incarnation + bytes(8))[:_INCARNATION_BYTES]
        self._token_source = token_source
        self._fragment_bits = fragment_number << _FRAGMENT_SHIFT
        self.by_number: dict[int, Lock] = {}
        """The locks by number, in the order of their deadlines unless `_is_unordered`."""
        self.next_serial = 1
        """The serial of the next lock; serials increase in the order of locking."""
        self._last_deadline_s = 0.0
        self._is_unordered = False

    def __len__(self) -> int:
        return len(self.by_number)

    def add(self, messages: list[tuple[int, bytes]], deadline_s: float) -> list[Lock]:
        """Lock messages, given as sequence numbers and records."""
        base, first = self._fragment_bits, self.next_serial
        self._note_deadline(deadline_s)
        by_number, drawn = self.by_number, self._token_source.draw(len(messages))
        added = []
        for at, (sequence, record) in enumerate(messages):
            lock = Lock(base + drawn[at] or 1, sequence, len(record), deadline_s)
            lock.serial = first + at
            if record[1] & HAS_EXTRA_ROWS:
                lock.load_from_record(record)
            while by_number.setdefault(lock.number, lock) is not lock:  # the number is already in use
                lock.number = base + self._token_source.draw(1)[0] or 1
            added.append(lock)
        self.next_serial = first + len(added)
        return added

    def lock_numbers_of(self, tags: Iterable[bytes]) -> list[int]:
        """Return the lock numbers in delivery tags or tokens, with 0 for tags or tokens of another incarnation."""
        prefixes = (self.tag_prefix, self.token_prefix)
        unpack = _NUMBER.unpack_from
        return [
            unpack(tag, _INCARNATION_BYTES)[0]
            if len(tag) == LOCK_TOKEN_BYTES and tag[:_INCARNATION_BYTES] in prefixes
            else 0
            for tag in tags
        ]

    def take(self, lock_number: int, now_s: float) -> Lock | None:
        """Remove and return a lock, or None if it does not exist or has expired."""
        lock = self.by_number.get(lock_number)
        if lock is None or lock.deadline_s <= now_s:
            return None
        del self.by_number[lock_number]
        return lock

    def restore(self, lock: Lock) -> None:
        """Add back a lock that `take` removed, with its old deadline."""
        self.by_number[lock.number] = lock
        self._is_unordered = True  # the lock is now the last, whatever its deadline

    def renew(self, lock_number: int, now_s: float, deadline_s: float) -> bool:
        """Extend a lock to a new deadline; return False if the lock is lost."""
        lock = self.by_number.get(lock_number)
        if lock is None or lock.deadline_s <= now_s:
            return False
        del self.by_number[lock_number]
        lock.deadline_s = deadline_s
        self._note_deadline(deadline_s)
        self.by_number[lock_number] = lock
        return True

    def take_expired(self, now_s: float, limit: int) -> list[Lock]:
        """Remove and return up to `limit` expired locks."""
        locks = self.by_number
        if self._is_unordered:
            expired = [lock for lock in locks.values() if lock.deadline_s <= now_s][:limit]
        else:
            expired = []
            for lock in islice(locks.values(), limit):
                if lock.deadline_s > now_s:
                    break
                expired.append(lock)
        for lock in expired:
            del locks[lock.number]
        if not locks:
            self._is_unordered = False
        return expired

    def next_deadline_s(self) -> float | None:
        """Return the earliest deadline of all locks, or None."""
        locks = self.by_number
        if not locks:
            return None
        return (
            min(lock.deadline_s for lock in locks.values())
            if self._is_unordered
            else next(iter(locks.values())).deadline_s
        )

    def _note_deadline(self, deadline_s: float) -> None:
        if deadline_s < self._last_deadline_s and self.by_number:
            self._is_unordered = True  # the lock duration was reduced: check all locks until the table is empty
        self._last_deadline_s = deadline_s


class LocalExclusiveLocks(ExclusiveLocks):
    """The locks of one exclusive receiver on a fragment in this process."""

    def __init__(self, fragment: Fragment) -> None:
        """Create a set of locks that begins with the next lock of `fragment`."""
        self._fragment = fragment
        self._locks = fragment.locks
        self._first_serial = self._end_serial = fragment.locks.next_serial

    def close(self) -> None:
        """Stop tracking, and exclude all later locks from the set.

        If the fragment was reloaded meanwhile, the set consists of all locks since the reload.
        """
        self._fragment.redelivery.set_tracking(is_on=False)
        self._fragment.dispatcher.withhold()
        locks = self._fragment.locks
        if locks is not self._locks:
            self._locks, self._first_serial = locks, 0
        self._end_serial = locks.next_serial

    def reclaim(self) -> None:
        """Requeue the messages that are still locked, because their receiver will not return."""
        fragment = self._fragment
        remaining = self._remaining(fragment.locks) if not fragment.has_sessions else []
        if remaining:
            fragment.settlement.reclaim(remaining)

    def _remaining(self, locks: Locks) -> list[int]:
        """Return the numbers of locks that still exist; none if the fragment was reloaded meanwhile."""
        if locks is not self._locks:
            return []
        return [
            number for number, lock in locks.by_number.items() if self._first_serial <= lock.serial < self._end_serial
        ]
