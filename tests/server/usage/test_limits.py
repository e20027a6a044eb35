"""The limits of rows per minute and of counters per process: usage beyond them is summed in one row."""

from __future__ import annotations

from twinbus.model.usage import COUNTS, OTHER_ENTITY, ROWS_MAX, UsageRow
from twinbus.server.usage.meter import UsageMeter, take_rows


def test_each_count_is_written_to_the_column_of_its_name() -> None:
    assert UsageRow.__struct_fields__ == ("minute", "entity", "client", "mark", *COUNTS)
    meter = UsageMeter()
    counter = meter.counter("orders", "shop")
    numbers = {name: number for number, name in enumerate(COUNTS[:-1], 1)}
    for name, number in numbers.items():
        setattr(counter, name, number)
    (row,), _ = take_rows(meter.counters(), 60)
    assert (row.minute, row.entity, row.client, row.mark, row.connections) == (60, "orders", "shop", "", 0)
    assert {name: getattr(row, name) for name in numbers} == numbers


def test_beyond_ten_thousand_rows_the_busiest_are_kept_and_the_rest_are_summed() -> None:
    meter = UsageMeter()
    for number in range(12_000):
        meter.counter(f"queue-{number}", "shop").send_units += 1 + (number % 2)
        meter.counter(f"queue-{number}", "shop").sends += 1
    rows, _ = take_rows(meter.counters(), 60)
    assert len(rows) == ROWS_MAX == 10_000
    (other,) = [row for row in rows if row.entity == OTHER_ENTITY]
    assert other.client == OTHER_ENTITY
    assert other.sends == 12_000 - 9_999
    assert sum(row.sends for row in rows) == 12_000
    assert sum(row.send_units for row in rows) == 18_000
    assert sum(row.send_units == 2 for row in rows) == 6_000, "none of the busier ones is among the others"


def test_exactly_ten_thousand_rows_are_all_kept() -> None:
    meter = UsageMeter()
    for number in range(10_000):
        meter.counter(f"queue-{number}", "shop").sends += 1
    rows, quiet = take_rows(meter.counters(), 60)
    assert len({row.entity for row in rows}) == 10_000
    assert [counter.entity for counter in quiet] == [OTHER_ENTITY]
    assert take_rows(meter.counters(), 120)[0] == []


def test_usage_beyond_the_limit_of_counters_is_counted_as_other() -> None:
    meter = UsageMeter(max_counters=3)
    for number in range(5):
        meter.counter(f"queue-{number}", "shop").sends += 1
    rows, _ = take_rows(meter.counters(), 60)
    assert [(row.entity, row.sends) for row in rows] == [
        ("queue-0", 1),
        ("queue-1", 1),
        ("queue-2", 1),
        (OTHER_ENTITY, 2),
    ]


def test_a_long_client_name_is_truncated() -> None:
    meter = UsageMeter()
    meter.counter("orders", "x" * 1_000).sends += 1
    meter.counter("orders", "x" * 2_000).sends += 1
    (row,) = meter.totals()
    assert (row.client, row.sends) == ("x" * 128, 2)
