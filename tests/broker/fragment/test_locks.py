"""Locks: tokens, delivery tags and deadlines, also after the lock duration changes."""

from __future__ import annotations

from itertools import pairwise
from random import Random, SystemRandom
from uuid import UUID

from twinbus.broker.fragment.locks import Locks, TokenSource, pack_lock_number
from twinbus.broker.message_record import MessageHeader, make_plain_record
from twinbus.broker.ports.fragment import delivery_tag_of, lock_token_of

RECORD = make_plain_record(MessageHeader(), b"", 0)


def test_a_delivery_tag_is_the_token_in_dot_net_byte_order() -> None:
    token = bytes(range(16))
    assert delivery_tag_of(token) == UUID(bytes=token).bytes_le
    assert lock_token_of(delivery_tag_of(token)) == token


def test_a_lock_is_found_by_tag_and_by_token() -> None:
    locks = Locks(TokenSource(Random(1)))
    number = locks.add([(5, RECORD), (6, RECORD)], 10.0)[1].number
    suffix = pack_lock_number(number)
    token, tag = locks.token_prefix + suffix, locks.tag_prefix + suffix
    assert tag == delivery_tag_of(token)
    assert locks.lock_numbers_of([token, tag]) == [number, number]


def test_a_token_of_another_process_or_length_is_unknown() -> None:
    locks = Locks(TokenSource(Random(1)))
    locks.add([(5, RECORD)], 10.0)
    prefix = locks.token_prefix
    assert locks.lock_numbers_of([bytes(16), b"", prefix, prefix + bytes(7), prefix + bytes(9)]) == [0, 0, 0, 0, 0]
    assert locks.take(0, 0.0) is None


def test_a_lock_is_taken_once_and_before_its_deadline() -> None:
    locks = Locks(TokenSource(Random(1)))
    first, second = [lock.number for lock in locks.add([(5, RECORD), (6, RECORD)], 10.0)]
    lock = locks.take(first, 9.9)
    assert lock is not None
    assert (lock.sequence, lock.size) == (5, len(RECORD))
    assert locks.take(first, 9.9) is None
    assert locks.take(second, 10.0) is None


def test_locks_expire_in_the_order_of_their_deadlines() -> None:
    locks = Locks(TokenSource(Random(1)))
    locks.add([(1, RECORD), (2, RECORD)], 10.0)
    locks.add([(3, RECORD)], 11.0)
    assert locks.next_deadline_s() == 10.0
    assert [lock.sequence for lock in locks.take_expired(10.5, 1)] == [1]
    assert [lock.sequence for lock in locks.take_expired(10.5, 9)] == [2]
    assert [lock.sequence for lock in locks.take_expired(11.0, 9)] == [3]
    assert locks.next_deadline_s() is None


def test_a_later_lock_of_a_shorter_duration_expires_first() -> None:
    locks = Locks(TokenSource(Random(1)))
    locks.add([(1, RECORD)], 300.0)
    locks.add([(2, RECORD)], 5.0)
    assert locks.next_deadline_s() == 5.0
    assert [lock.sequence for lock in locks.take_expired(6.0, 9)] == [2]
    assert locks.next_deadline_s() == 300.0


def test_a_renewed_lock_lasts_longer_than_those_after_it() -> None:
    locks = Locks(TokenSource(Random(1)))
    first = locks.add([(1, RECORD)], 10.0)[0].number
    locks.add([(2, RECORD)], 11.0)
    assert locks.renew(first, 9.0, 19.0)
    assert locks.next_deadline_s() == 11.0
    assert [lock.sequence for lock in locks.take_expired(15.0, 9)] == [2]
    assert not locks.renew(first, 19.0, 29.0)
    assert not locks.renew(99, 0.0, 1.0)


# --- tokens cannot be guessed -----------------------------------------------------------------------------------------


def test_lock_numbers_are_unpredictable() -> None:
    locks = Locks(TokenSource(SystemRandom()), fragment_number=7)
    numbers = [lock.number for _ in range(3) for lock in locks.add([(at, RECORD) for at in range(1_000)], 10.0)]
    assert {number >> 56 for number in numbers} == {7}
    random = [number & (1 << 56) - 1 for number in numbers]
    for bit in range(56):
        assert 1_200 < sum(number >> bit & 1 for number in random) < 1_800, f"bit {bit} is not random"
    steps = {after - before for before, after in pairwise(random)}
    assert len(steps) == len(random) - 1
    assert min(abs(step) for step in steps) > 1 << 20


def test_tokens_come_from_the_injected_random_source() -> None:
    def numbers(seed: int) -> list[int]:
        locks = Locks(TokenSource(Random(seed)))
        return [lock.number for count in (1, 1_500, 2) for lock in locks.add([(1, RECORD)] * count, 10.0)]

    assert numbers(1) == numbers(1)
    assert not set(numbers(1)) & set(numbers(2))


def test_two_locks_never_have_the_same_number() -> None:
    """Provoke a collision of the 56 random bits; without a check, the first message would stay locked for ever."""
    locks = Locks(TokenSource(_RepeatingRandom()))
    first, second, third = locks.add([(1, RECORD), (2, RECORD)], 10.0) + locks.add([(3, RECORD)], 10.0)
    assert len({first.number, second.number, third.number}) == len(locks) == 3
    assert [lock.sequence for lock in locks.take_expired(10.0, 9)] == [1, 2, 3]


class _RepeatingRandom(Random):
    """Return each value three times."""

    def randbytes(self, n: int) -> bytes:
        return b"".join([((at // 3 + 1) << 8).to_bytes(8, "big") for at in range(n // 8)])
