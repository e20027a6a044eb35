"""What a fragment knows of its messages after a restart: its numbers start with those of the fragment."""

from __future__ import annotations

from tests.broker.consumers import Results
from tests.broker.harness import PARTITIONED, STORES, BrokerHarness
from tests.broker.messages import key_for_fragment, message
from twinbus.broker.ports.fragment import SEQUENCE_FRAGMENT_SHIFT, RemovalCriteria
from twinbus.model.description import FRAGMENT_COUNT
from twinbus.model.queue import QueueDescription


def first(number: int) -> int:
    return (number << SEQUENCE_FRAGMENT_SHIFT) + 1


def test_a_fragment_without_messages_begins_at_its_first_number_before_and_after_a_restart() -> None:
    rig = BrokerHarness(PARTITIONED)
    for _ in range(2):
        for number, main in enumerate(rig.main_fragments):
            holdings = main.message_table
            assert (
                holdings.next_sequence,
                holdings.low_watermark,
                holdings.committed.next_sequence,
                holdings.committed.low_watermark,
            ) == (first(number),) * 4
            assert main.dispatcher.lowest_available == first(number)
        rig.crash()


def test_q28_numbers_go_on_where_they_were() -> None:
    rig = BrokerHarness(PARTITIONED)
    rig.store_messages(*[message() for _ in range(3 * FRAGMENT_COUNT)])
    marks = [main.message_table.committed for main in rig.main_fragments]
    rig.crash()
    assert [main.message_table.committed for main in rig.main_fragments] == marks
    rig.store_messages(*[message() for _ in range(FRAGMENT_COUNT)])
    assert [main.message_table.next_sequence for main in rig.main_fragments] == [
        first(number) + 4 for number in range(FRAGMENT_COUNT)
    ]


def test_the_low_water_mark_of_each_fragment_goes_on_with_what_is_completed() -> None:
    rig = BrokerHarness(PARTITIONED)
    rig.store_messages(*[message() for _ in range(5 * FRAGMENT_COUNT)])
    consumer = rig.consumer(3 * FRAGMENT_COUNT)
    consumer.complete(Results())
    rig.run_until_idle()
    rig.store_messages(*[message() for _ in range(FRAGMENT_COUNT)])  # the marks of each are written again
    gone = [5 + 1 - count for count in rig.counts_by_fragment()]
    assert sum(gone) == 3 * FRAGMENT_COUNT
    rig.crash()
    for number, main in enumerate(rig.main_fragments):
        assert main.message_table.low_watermark == first(number) + gone[number]
    assert len(rig.consumer(1_000).deliveries) == 3 * FRAGMENT_COUNT


def test_scheduled_messages_are_there_when_they_are_due_though_the_process_is_another() -> None:
    rig = BrokerHarness(PARTITIONED)
    due_ms = rig.clock.wall_ms() + 60_000
    rig.store_messages(*[message(key=key_for_fragment(number), due_ms=due_ms) for number in range(FRAGMENT_COUNT)])
    assert sum(rig.counts_by_fragment()) == 0
    rig.crash()
    rig.advance(59.0)
    assert sum(rig.counts_by_fragment()) == 0
    rig.advance(2.0)
    assert rig.counts_by_fragment() == [1] * FRAGMENT_COUNT


def test_messages_expire_in_every_fragment_after_a_restart() -> None:
    description = QueueDescription(enable_partitioning=True, default_time_to_live_ms=30_000)
    rig = BrokerHarness(description)
    rig.store_messages(*[message() for _ in range(2 * FRAGMENT_COUNT)])
    rig.crash()
    rig.advance(31.0)
    rig.advance(1.0)
    assert sum(rig.counts_by_fragment()) == 0


def test_a_purge_takes_all_that_each_fragment_has_and_nothing_of_the_next() -> None:
    rig = BrokerHarness(PARTITIONED)
    rig.store_messages(*[message() for _ in range(2 * FRAGMENT_COUNT)])
    rig.crash()
    told: list[object] = []
    main = rig.main_fragments[6]
    main.removal.remove_active(RemovalCriteria(max_count=1_000), told.append)
    rig.run_until_idle()
    assert len(told) == 1
    assert rig.counts_by_fragment() == [2 * int(number != 6) for number in range(FRAGMENT_COUNT)]


def test_after_one_store_was_lost_and_opened_anew_only_its_fragments_were_read_again() -> None:
    rig = BrokerHarness(PARTITIONED)
    rig.store_messages(*[message() for _ in range(FRAGMENT_COUNT)])
    lives = [main.incarnation for main in rig.main_fragments]
    rig.fail_stores(2)
    rig.recover()
    changed = [number for number, main in enumerate(rig.main_fragments) if main.incarnation != lives[number]]
    assert changed == [number for number in range(FRAGMENT_COUNT) if number % STORES == 2]
    assert rig.counts_by_fragment() == [1] * FRAGMENT_COUNT
