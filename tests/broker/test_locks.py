"""Locks: tokens and tags, and deadlines also when the duration changed."""

from __future__ import annotations

from uuid import UUID

from twinbus.broker.locks import Locks, pack_number, tag_of, token_of
from twinbus.broker.record import Envelope, make_plain_record

LIFE = bytes(range(8))
RECORD = make_plain_record(Envelope(), b"", 0)


def test_a_tag_is_the_token_as_dot_net_writes_it() -> None:
    token = bytes(range(16))
    assert tag_of(token) == UUID(bytes=token).bytes_le
    assert token_of(tag_of(token)) == token


def test_a_lock_is_known_by_tag_and_by_token() -> None:
    locks = Locks(LIFE)
    first = locks.add([(5, RECORD), (6, RECORD)], 10.0)[0].number
    suffix = pack_number(first + 1)
    token, tag = locks.token_prefix + suffix, locks.tag_prefix + suffix
    assert tag == tag_of(token)
    assert locks.numbers_in([token, tag]) == [first + 1, first + 1]


def test_a_token_of_another_life_or_length_is_none() -> None:
    locks = Locks(LIFE)
    locks.add([(5, RECORD)], 10.0)
    assert locks.numbers_in([bytes(16), b"", LIFE, LIFE + bytes(7), LIFE + bytes(9)]) == [0, 0, 0, 0, 0]
    assert locks.take(0, 0.0) is None


def test_a_lock_is_taken_once_and_before_its_deadline() -> None:
    locks = Locks(LIFE)
    first = locks.add([(5, RECORD), (6, RECORD)], 10.0)[0].number
    lock = locks.take(first, 9.9)
    assert lock is not None
    assert (lock.sequence, lock.size) == (5, len(RECORD))
    assert locks.take(first, 9.9) is None
    assert locks.take(first + 1, 10.0) is None


def test_locks_expire_in_the_order_of_their_deadlines() -> None:
    locks = Locks(LIFE)
    locks.add([(1, RECORD), (2, RECORD)], 10.0)
    locks.add([(3, RECORD)], 11.0)
    assert locks.next_deadline_s() == 10.0
    assert [lock.sequence for lock in locks.take_expired(10.5, 1)] == [1]
    assert [lock.sequence for lock in locks.take_expired(10.5, 9)] == [2]
    assert [lock.sequence for lock in locks.take_expired(11.0, 9)] == [3]
    assert locks.next_deadline_s() is None


def test_a_shorter_duration_is_not_behind_a_longer_one() -> None:
    locks = Locks(LIFE)
    locks.add([(1, RECORD)], 300.0)
    locks.add([(2, RECORD)], 5.0)
    assert locks.next_deadline_s() == 5.0
    assert [lock.sequence for lock in locks.take_expired(6.0, 9)] == [2]
    assert locks.next_deadline_s() == 300.0


def test_a_renewed_lock_lasts_longer_than_those_after_it() -> None:
    locks = Locks(LIFE)
    first = locks.add([(1, RECORD)], 10.0)[0].number
    locks.add([(2, RECORD)], 11.0)
    assert locks.renew(first, 9.0, 19.0)
    assert locks.next_deadline_s() == 11.0
    assert [lock.sequence for lock in locks.take_expired(15.0, 9)] == [2]
    assert not locks.renew(first, 19.0, 29.0)
    assert not locks.renew(99, 0.0, 1.0)
