"""Fragments after a restart: sequence numbers, low watermarks, schedules, expiry and purges."""

from __future__ import annotations

from tests.broker.consumers import Results
from tests.broker.harness import PARTITIONED, STORES, BrokerHarness
from tests.broker.messages import key_for_fragment, message
from twinbus.broker.ports.fragment import SEQUENCE_FRAGMENT_SHIFT, RemovalCriteria
from twinbus.model.description import FRAGMENT_COUNT
from twinbus.model.queue import QueueDescription


def first_sequence(number: int) -> int:
    return (number << SEQUENCE_FRAGMENT_SHIFT) + 1


def test_an_empty_fragment_starts_at_its_first_number_before_and_after_a_restart() -> None:
    harness = BrokerHarness(PARTITIONED)
    for _ in range(2):
        for number, main in enumerate(harness.main_fragments):
            table = main.message_table
            assert (
                table.next_sequence,
                table.low_watermark,
                table.committed.next_sequence,
                table.committed.low_watermark,
            ) == (first_sequence(number),) * 4
            assert main.dispatcher.lowest_available == first_sequence(number)
        harness.crash()


def test_q28_sequence_numbers_continue_after_a_restart() -> None:
    harness = BrokerHarness(PARTITIONED)
    harness.store_messages(*[message() for _ in range(3 * FRAGMENT_COUNT)])
    committed = [main.message_table.committed for main in harness.main_fragments]
    harness.crash()
    assert [main.message_table.committed for main in harness.main_fragments] == committed
    harness.store_messages(*[message() for _ in range(FRAGMENT_COUNT)])
    assert [main.message_table.next_sequence for main in harness.main_fragments] == [
        first_sequence(number) + 4 for number in range(FRAGMENT_COUNT)
    ]


def test_the_low_watermark_of_each_fragment_moves_with_completed_messages() -> None:
    harness = BrokerHarness(PARTITIONED)
    harness.store_messages(*[message() for _ in range(5 * FRAGMENT_COUNT)])
    consumer = harness.consumer(3 * FRAGMENT_COUNT)
    consumer.complete(Results())
    harness.run_until_idle()
    harness.store_messages(*[message() for _ in range(FRAGMENT_COUNT)])  # writes the counters of each fragment again
    completed = [5 + 1 - count for count in harness.counts_by_fragment()]
    assert sum(completed) == 3 * FRAGMENT_COUNT
    harness.crash()
    for number, main in enumerate(harness.main_fragments):
        assert main.message_table.low_watermark == first_sequence(number) + completed[number]
    assert len(harness.consumer(1_000).deliveries) == 3 * FRAGMENT_COUNT


def test_scheduled_messages_become_active_after_a_restart() -> None:
    harness = BrokerHarness(PARTITIONED)
    due_ms = harness.clock.wall_ms() + 60_000
    harness.store_messages(*[message(key=key_for_fragment(number), due_ms=due_ms) for number in range(FRAGMENT_COUNT)])
    assert sum(harness.counts_by_fragment()) == 0
    harness.crash()
    harness.advance(59.0)
    assert sum(harness.counts_by_fragment()) == 0
    harness.advance(2.0)
    assert harness.counts_by_fragment() == [1] * FRAGMENT_COUNT


def test_messages_expire_in_every_fragment_after_a_restart() -> None:
    description = QueueDescription(enable_partitioning=True, default_time_to_live_ms=30_000)
    harness = BrokerHarness(description)
    harness.store_messages(*[message() for _ in range(2 * FRAGMENT_COUNT)])
    harness.crash()
    harness.advance(31.0)
    harness.advance(1.0)
    assert sum(harness.counts_by_fragment()) == 0


def test_a_purge_deletes_all_messages_of_one_fragment_only() -> None:
    harness = BrokerHarness(PARTITIONED)
    harness.store_messages(*[message() for _ in range(2 * FRAGMENT_COUNT)])
    harness.crash()
    replies: list[object] = []
    main = harness.main_fragments[6]
    main.removal.remove_active(RemovalCriteria(max_count=1_000), replies.append)
    harness.run_until_idle()
    assert len(replies) == 1
    assert harness.counts_by_fragment() == [2 * int(number != 6) for number in range(FRAGMENT_COUNT)]


def test_only_the_fragments_of_a_reopened_store_are_loaded_again() -> None:
    harness = BrokerHarness(PARTITIONED)
    harness.store_messages(*[message() for _ in range(FRAGMENT_COUNT)])
    incarnations = [main.incarnation for main in harness.main_fragments]
    harness.fail_stores(2)
    harness.recover()
    changed = [number for number, main in enumerate(harness.main_fragments) if main.incarnation != incarnations[number]]
    assert changed == [number for number in range(FRAGMENT_COUNT) if number % STORES == 2]
    assert harness.counts_by_fragment() == [1] * FRAGMENT_COUNT
