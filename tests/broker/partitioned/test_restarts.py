"""What a fragment knows of its messages after a restart: its numbers start with those of the fragment."""

from __future__ import annotations

from tests.broker.consumers import Answers
from tests.broker.messages import key_for, message
from tests.broker.rig import PARTITIONED, STORES, Rig
from twinbus.broker.ports.numbers import FRAGMENT_SHIFT
from twinbus.broker.ports.removal import Wanted
from twinbus.model.description import FRAGMENTS
from twinbus.model.queue import QueueDescription


def first(number: int) -> int:
    return (number << FRAGMENT_SHIFT) + 1


def test_a_fragment_without_messages_begins_at_its_first_number_before_and_after_a_restart() -> None:
    rig = Rig(PARTITIONED)
    for _ in range(2):
        for number, main in enumerate(rig.mains):
            holdings = main.holdings
            assert (holdings.next, holdings.low, holdings.shown.next, holdings.shown.low) == (first(number),) * 4
            assert main.line.lowest == first(number)
        rig.crash()


def test_q28_numbers_go_on_where_they_were() -> None:
    rig = Rig(PARTITIONED)
    rig.store_messages(*[message() for _ in range(3 * FRAGMENTS)])
    marks = [main.holdings.shown for main in rig.mains]
    rig.crash()
    assert [main.holdings.shown for main in rig.mains] == marks
    rig.store_messages(*[message() for _ in range(FRAGMENTS)])
    assert [main.holdings.next for main in rig.mains] == [first(number) + 4 for number in range(FRAGMENTS)]


def test_the_low_water_mark_of_each_fragment_goes_on_with_what_is_completed() -> None:
    rig = Rig(PARTITIONED)
    rig.store_messages(*[message() for _ in range(5 * FRAGMENTS)])
    consumer = rig.consumer(3 * FRAGMENTS)
    consumer.complete(Answers())
    rig.settle()
    rig.store_messages(*[message() for _ in range(FRAGMENTS)])  # the marks of each are written again
    gone = [5 + 1 - count for count in rig.counts_by_fragment()]
    assert sum(gone) == 3 * FRAGMENTS
    rig.crash()
    for number, main in enumerate(rig.mains):
        assert main.holdings.low == first(number) + gone[number]
    assert len(rig.consumer(1_000).deliveries) == 3 * FRAGMENTS


def test_scheduled_messages_are_there_when_they_are_due_though_the_process_is_another() -> None:
    rig = Rig(PARTITIONED)
    due_ms = rig.clock.wall_ms() + 60_000
    rig.store_messages(*[message(key=key_for(number), due_ms=due_ms) for number in range(FRAGMENTS)])
    assert sum(rig.counts_by_fragment()) == 0
    rig.crash()
    rig.wait(59.0)
    assert sum(rig.counts_by_fragment()) == 0
    rig.wait(2.0)
    assert rig.counts_by_fragment() == [1] * FRAGMENTS


def test_messages_expire_in_every_fragment_after_a_restart() -> None:
    description = QueueDescription(enable_partitioning=True, default_time_to_live_ms=30_000)
    rig = Rig(description)
    rig.store_messages(*[message() for _ in range(2 * FRAGMENTS)])
    rig.crash()
    rig.wait(31.0)
    rig.wait(1.0)
    assert sum(rig.counts_by_fragment()) == 0


def test_a_purge_takes_all_that_each_fragment_has_and_nothing_of_the_next() -> None:
    rig = Rig(PARTITIONED)
    rig.store_messages(*[message() for _ in range(2 * FRAGMENTS)])
    rig.crash()
    told: list[object] = []
    main = rig.mains[6]
    main.removal.remove_active(Wanted(most=1_000), told.append)
    rig.settle()
    assert len(told) == 1
    assert rig.counts_by_fragment() == [2 * int(number != 6) for number in range(FRAGMENTS)]


def test_after_one_store_was_lost_and_opened_anew_only_its_fragments_were_read_again() -> None:
    rig = Rig(PARTITIONED)
    rig.store_messages(*[message() for _ in range(FRAGMENTS)])
    lives = [main.life for main in rig.mains]
    rig.break_down(2)
    rig.recover()
    changed = [number for number, main in enumerate(rig.mains) if main.life != lives[number]]
    assert changed == [number for number in range(FRAGMENTS) if number % STORES == 2]
    assert rig.counts_by_fragment() == [1] * FRAGMENTS
