"""Locks on messages handed out for peek-lock.

Owns: who may settle which message until when. Knows nothing of queues, wires or disks: a Fragment asks it.
Locks are not persisted: after a restart what was out is free again. The delivery count is, when it changes (abandon,
lock expiry), not on delivery.

A token has 16 bytes: the life of a fragment (8), the fragment's number (1), and random bits (7). So a token of an
earlier life finds nothing, and any token finds its fragment. Every receiver of the entity sees the first nine bytes.
The random bits are drawn for each lock, because a token is all that a request or an HTTP caller has to show to settle
a message: whoever could guess it could settle the messages of others.
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
"""Numbers that are drawn at a time: one call of the operating system for each lock would be felt."""
_POOL_STRUCT: Final = Struct(f">{_POOL_SIZE}Q")
_ZERO_BYTES: Final = bytes(_POOL_SIZE)
"""In place of the first byte of each number that is drawn: it is that of the fragment."""


class TokenSource:
    """Random parts of lock tokens, for all fragments of a namespace."""

    def __init__(self, random: Random) -> None:
        """A server hands in `SystemRandom`; a simulation hands in a generator that can be replayed."""
        self._random = random
        self._pool: tuple[int, ...] = ()
        self._used = 0

    def make_incarnation(self) -> bytes:
        """Eight bytes that were not given before."""
        return self._random.getrandbits(_INCARNATION_BITS).to_bytes(_INCARNATION_BYTES, "big")

    def draw(self, count: int) -> tuple[int, ...]:
        """Numbers of 56 random bits."""
        end = self._used + count
        if end <= len(self._pool):
            drawn = self._pool[self._used : end]
            self._used = end
            return drawn
        drawn = self._pool[self._used :]
        while len(drawn) < count:
            random = bytearray(self._random.randbytes(_POOL_STRUCT.size))
            random[::8] = _ZERO_BYTES
            self._pool = _POOL_STRUCT.unpack(random)
            self._used = min(count - len(drawn), _POOL_SIZE)
            drawn += self._pool[: self._used]
        return drawn


class Lock:
    """One message, out under a lock."""

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
        """Made by `Locks.add`, or by whoever takes a message for another reason: with the number 0, which is none."""
        self.number = number
        self.serial = 0
        """Its place in the order in which the fragment gave its locks."""
        self.sequence = sequence
        self.size = size
        """Of the record."""
        self.deadline_s = deadline_s
        self.expiry_ms = 0
        """For when the agenda has it, if it expires."""
        self.session_id: bytes | None = None
        self.session_lock: LocalSessionLock | None = None
        """Of its session: when that is over, so is the lock."""
        self.is_deferred = False
        self.shared_body = 0
        """The number of its body, where that lies elsewhere."""
        self.has_extra_rows = False
        """More is on disk than an active message."""

    def load_from_record(self, record: bytes) -> None:
        """Of a record with which more is on disk, what that is."""
        self.has_extra_rows = True
        if record[1] & HAS_DUE_TIME:
            self.expiry_ms = due_time_of(record)
        self.session_id = session_id_of(record)
        self.shared_body = shared_body_of(record)


class Locks:
    """The locks of one fragment."""

    def __init__(self, token_source: TokenSource, fragment_number: int = 0) -> None:
        """Start a new life of the fragment of that number."""
        life = token_source.make_incarnation()
        self.token_prefix = life
        self.tag_prefix = delivery_tag_of(life + bytes(8))[:_INCARNATION_BYTES]
        self._token_source = token_source
        self._fragment_bits = fragment_number << _FRAGMENT_SHIFT
        self.by_number: dict[int, Lock] = {}
        """In the order of their deadlines, which is that of their making as long as the duration stays the same."""
        self.next_serial = 1
        """Of the next lock: those given later have higher ones."""
        self._last_deadline_s = 0.0
        self._is_unordered = False

    def __len__(self) -> int:
        return len(self.by_number)

    def add(self, messages: list[tuple[int, bytes]], deadline_s: float) -> list[Lock]:
        """Lock messages, given as sequence number and record."""
        base, first = self._fragment_bits, self.next_serial
        self._note_deadline(deadline_s)
        by_number, drawn = self.by_number, self._token_source.draw(len(messages))
        added = []
        for at, (sequence, record) in enumerate(messages):
            lock = Lock(base + drawn[at] or 1, sequence, len(record), deadline_s)
            lock.serial = first + at
            if record[1] & HAS_EXTRA_ROWS:
                lock.load_from_record(record)
            while by_number.setdefault(lock.number, lock) is not lock:  # another lock has the same number
                lock.number = base + self._token_source.draw(1)[0] or 1
            added.append(lock)
        self.next_serial = first + len(added)
        return added

    def lock_numbers_of(self, tags: Iterable[bytes]) -> list[int]:
        """The locks' numbers in tags (or tokens) of this life; 0, which is none, for each of another."""
        lives = (self.tag_prefix, self.token_prefix)
        unpack = _NUMBER.unpack_from
        return [
            unpack(tag, _INCARNATION_BYTES)[0]
            if len(tag) == LOCK_TOKEN_BYTES and tag[:_INCARNATION_BYTES] in lives
            else 0
            for tag in tags
        ]

    def take(self, lock_number: int, now_s: float) -> Lock | None:
        """End a lock; None where there is none, or none any more."""
        lock = self.by_number.get(lock_number)
        if lock is None or lock.deadline_s <= now_s:
            return None
        del self.by_number[lock_number]
        return lock

    def restore(self, lock: Lock) -> None:
        """A lock that was taken, and is to be there again until its time is over."""
        self.by_number[lock.number] = lock
        self._is_unordered = True  # it is no longer in its place

    def renew(self, lock_number: int, now_s: float, deadline_s: float) -> bool:
        """Let a lock last longer; False where it is lost."""
        lock = self.by_number.get(lock_number)
        if lock is None or lock.deadline_s <= now_s:
            return False
        del self.by_number[lock_number]
        lock.deadline_s = deadline_s
        self._note_deadline(deadline_s)
        self.by_number[lock_number] = lock
        return True

    def take_expired(self, now_s: float, limit: int) -> list[Lock]:
        """End locks whose time is over, not more than `limit`."""
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
        """When the next lock expires."""
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
            self._is_unordered = (
                True  # the lock duration was made shorter: until the old ones are gone, all are looked at
            )
        self._last_deadline_s = deadline_s


class LocalExclusiveLocks(ExclusiveLocks):
    """The locks that one fragment of this process gave while it had an exclusive receiver."""

    def __init__(self, fragment: Fragment) -> None:
        """Made by its fragment: the locks from now on."""
        self._fragment = fragment
        self._locks = fragment.locks
        self._first_serial = self._end_serial = fragment.locks.next_serial

    def close(self) -> None:
        """End it: later locks are not of it. If the fragment was loaded anew meanwhile, all locks since then are."""
        self._fragment.redelivery.set_tracking(is_on=False)
        self._fragment.dispatcher.withhold()
        locks = self._fragment.locks
        if locks is not self._locks:
            self._locks, self._first_serial = locks, 0
        self._end_serial = locks.next_serial

    def reclaim(self) -> None:
        """Return the messages of locks that are still there: their receiver is gone for good."""
        fragment = self._fragment
        left = self._remaining(fragment.locks) if not fragment.has_sessions else []
        if left:
            fragment.settlement.reclaim(left)

    def _remaining(self, locks: Locks) -> list[int]:
        """Those that are still there; none if the fragment was loaded anew meanwhile."""
        if locks is not self._locks:
            return []
        return [
            number for number, lock in locks.by_number.items() if self._first_serial <= lock.serial < self._end_serial
        ]
