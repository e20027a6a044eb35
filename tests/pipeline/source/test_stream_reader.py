"""The stream reader between batches: how far to read, what to complete, and what fails the query."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, cast

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

from twinbus.pipeline.columns import COLUMNS
from twinbus.pipeline.errors import PipelineError
from twinbus.pipeline.source.offsets import Offsets, read_offsets
from twinbus.pipeline.source.options import read_options
from twinbus.pipeline.source.positions import FragmentPosition, Positions
from twinbus.pipeline.source.range_planner import FragmentRange
from twinbus.pipeline.source.stream_reader import StreamReader

if TYPE_CHECKING:
    from twinbus.pipeline.source.entity import SourceEntity

TEXT = "Endpoint=sb://localhost:5672;SharedAccessKeyName=Root;SharedAccessKey=a2V5;UseDevelopmentEmulator=true"


class FakeEntity:
    """Reports the positions that a test sets, and records completed offsets."""

    def __init__(self, *ends: int, low: int = 1, entity_id: int = 7) -> None:
        self.completed: list[dict[int, int]] = []
        self.purged = 0
        self.down: set[int] = set()
        self.entity_id = entity_id
        self.low = low
        self.ends = list(ends)

    def acquire(self) -> None:
        pass

    def positions(self) -> Positions:
        fragment_positions = [
            FragmentPosition(number, self.low, end, end - self.low, number not in self.down, self.purged)
            for number, end in enumerate(self.ends)
        ]
        return Positions(self.entity_id, tuple(fragment_positions))

    def complete(self, offsets: Offsets) -> None:
        self.completed.append(offsets.fragments)


def make(entity: FakeEntity, **options: str) -> StreamReader:
    all_options = {"connectionString": TEXT, "entity": "orders", **options}
    reader = StreamReader(read_options(all_options), COLUMNS)
    reader._entity = cast("SourceEntity", entity)  # noqa: SLF001  # nothing is connected here
    return reader


def offsets(*numbers: int, entity_id: int = 7) -> dict[str, object]:
    return Offsets("orders", entity_id, dict(enumerate(numbers))).to_json()


def ends(offsets: dict[str, object]) -> list[int]:
    return list(read_offsets(offsets, "orders").fragments.values())


def test_a_new_query_starts_at_its_starting_offsets() -> None:
    assert make(FakeEntity(11, 21, low=5)).initialOffset() == offsets(5, 5)
    assert make(FakeEntity(11, 21), startingOffsets="latest").initialOffset() == offsets(11, 21)


def test_the_limit_of_a_batch_is_shared_in_proportion_to_the_backlog_of_each_fragment() -> None:
    reader = make(FakeEntity(101, 301), maxOffsetsPerTrigger="40")
    assert reader.getDefaultReadLimit() == ReadMaxRows(40)
    assert reader.latestOffset(offsets(1, 1), ReadMaxRows(40)) == offsets(11, 31)
    assert reader.latestOffset(offsets(1, 1), ReadAllAvailable()) == offsets(101, 301)
    assert make(FakeEntity(1)).getDefaultReadLimit() == ReadAllAvailable()


def test_missing_sequence_numbers_do_not_count_towards_a_limit() -> None:
    assert make(FakeEntity(1_001, low=901)).latestOffset(offsets(1), ReadMaxRows(50)) == offsets(951)


def test_a_batch_waits_until_it_has_the_minimum_number_of_rows() -> None:
    reader = make(FakeEntity(11))
    assert reader.latestOffset(offsets(1), ReadMinRows(11)) == offsets(1)
    assert reader.latestOffset(offsets(1), ReadMinRows(10)) == offsets(11)


def test_messages_sent_after_the_start_are_not_available_now() -> None:
    entity = FakeEntity(11)
    reader = make(entity)
    reader.prepareForTriggerAvailableNow()
    entity.ends = [99]
    assert reader.latestOffset(offsets(1), ReadAllAvailable()) == offsets(11)
    assert reader.latestOffset(offsets(11), ReadAllAvailable()) == offsets(11)
    assert reader.latestOffset(offsets(20), ReadAllAvailable()) == offsets(20)
    assert reader.reportLatestOffset() == offsets(99)


def test_a_restored_log_is_available_now() -> None:
    entity = FakeEntity(11, 21)
    reader = make(entity, failOnDataLoss="false")
    reader.prepareForTriggerAvailableNow()
    entity.ends = [99, 99]
    assert reader.latestOffset(offsets(1_000, 5), ReadAllAvailable()) == offsets(11, 21)
    assert reader.latestOffset(offsets(11, 21), ReadAllAvailable()) == offsets(11, 21)


def test_an_unavailable_fragment_keeps_its_offset_and_the_others_continue() -> None:
    entity = FakeEntity(11, 21)
    reader = make(entity)
    entity.down = {0}
    assert reader.latestOffset(offsets(4, 4), ReadAllAvailable()) == offsets(4, 21)
    assert reader.reportLatestOffset() is None
    for begin in (reader.initialOffset, reader.prepareForTriggerAvailableNow):
        with pytest.raises(PipelineError, match="fragment 0 of 'orders' is not available"):
            begin()
    entity.down = set()
    assert reader.latestOffset(offsets(4, 21), ReadAllAvailable()) == offsets(11, 21)


def test_messages_before_the_next_batch_are_completed_if_requested() -> None:
    entity = FakeEntity(11)
    make(entity).latestOffset(offsets(5), ReadAllAvailable())
    assert entity.completed == []
    reader = make(entity, complete="processed")
    reader.latestOffset(offsets(5), ReadAllAvailable())
    reader.latestOffset(offsets(11), ReadAllAvailable())
    assert entity.completed == [{0: 5}, {0: 11}]


def test_nothing_is_completed_in_a_recreated_entity() -> None:
    entity = FakeEntity(11, entity_id=8)
    reader = make(entity, complete="processed", failOnDataLoss="false")
    assert reader.latestOffset(offsets(500), ReadAllAvailable()) == offsets(11, entity_id=8)
    reader.commit(offsets(500))
    assert entity.completed == [{}]


def test_a_restored_log_is_read_again_before_it_is_completed() -> None:
    entity = FakeEntity(11, 21)
    reader = make(entity, complete="processed", failOnDataLoss="false")
    assert reader.latestOffset(offsets(1_000, 5), ReadAllAvailable()) == offsets(11, 21)
    assert entity.completed == [{1: 5}]
    assert [partition.value for partition in reader.partitions(offsets(1_000, 5), offsets(11, 21))] == [
        FragmentRange(0, 1, 10, 7),
        FragmentRange(1, 5, 20, 7),
    ]
    entity.ends = [2_000, 21]
    reader.commit(offsets(1_000, 5))
    reader.latestOffset(offsets(11, 21), ReadAllAvailable())
    assert entity.completed[1:] == [{0: 11, 1: 21}]


def test_lost_data_fails_the_query_unless_it_is_tolerated() -> None:
    entity = FakeEntity(11, low=9)
    entity.purged = 8
    with pytest.raises(PipelineError, match=r"purged up to 8.*failOnDataLoss=false"):
        make(entity).latestOffset(offsets(5), ReadAllAvailable())
    reader = make(entity, failOnDataLoss="false")
    assert reader.latestOffset(offsets(5), ReadAllAvailable()) == offsets(11)
    assert [partition.value for partition in reader.partitions(offsets(5), offsets(11))] == [FragmentRange(0, 9, 10, 7)]
    assert [partition.value for partition in reader.partitions(offsets(500), offsets(11))] == [
        FragmentRange(0, 9, 10, 7)
    ]


def test_lost_data_is_detected_before_a_batch_is_rerun() -> None:
    entity = FakeEntity(21, low=9)
    entity.purged = 8
    with pytest.raises(PipelineError, match=r"purged up to 8.*failOnDataLoss=false"):
        make(entity).partitions(offsets(5), offsets(11))
    assert [partition.value for partition in make(entity).partitions(offsets(9), offsets(11))] == [
        FragmentRange(0, 9, 10, 7)
    ]


def test_a_batch_is_divided_and_an_empty_batch_has_no_tasks() -> None:
    reader = make(FakeEntity(101, 101), maxOffsetsPerPartition="60")
    assert list(reader.partitions(offsets(1, 1), offsets(1, 1))) == []
    ranges = [partition.value for partition in reader.partitions(offsets(1, 81), offsets(101, 101))]
    assert ranges == [FragmentRange(0, 1, 50, 7), FragmentRange(0, 51, 100, 7), FragmentRange(1, 81, 100, 7)]


def test_a_checkpoint_of_another_entity_or_version_is_refused() -> None:
    other = Offsets("news", 7, {0: 1}).to_json()
    with pytest.raises(PipelineError, match="is of 'news'"):
        make(FakeEntity(11)).latestOffset(other, ReadAllAvailable())
    with pytest.raises(PipelineError, match="version 2"):
        make(FakeEntity(11)).latestOffset(offsets(1) | {"version": 2}, ReadAllAvailable())


def test_a_reader_is_pickled_without_its_connection() -> None:
    unpickled = pickle.loads(pickle.dumps(make(FakeEntity(11))))  # noqa: S301  # pickled here
    assert unpickled._entity is None  # noqa: SLF001


def test_ending_offsets_and_unknown_columns_are_refused() -> None:
    with pytest.raises(PipelineError, match="for batches"):
        make(FakeEntity(1), endingOffsets='{"0": 3}')
    with pytest.raises(PipelineError, match="no column 'colour'"):
        StreamReader(read_options({"connectionString": TEXT, "entity": "orders"}), ["colour"])


@pytest.mark.parametrize("starting", ["latest", '{"0": -1}'])
def test_the_latest_starting_offset_is_determined_once(starting: str) -> None:
    entity = FakeEntity(11)
    reader = make(entity, startingOffsets=starting)
    begin = reader.initialOffset()
    entity.ends = [15]
    assert reader.initialOffset() == begin == offsets(11), "Spark asks when it plans a batch, and when it runs it"
    assert reader.latestOffset(begin, ReadAllAvailable()) == begin, "the first batch says where the query begins"
    assert reader.partitions(begin, begin) == []
    assert reader.latestOffset(begin, ReadAllAvailable()) == offsets(15)
    assert [partition.value for partition in reader.partitions(begin, offsets(15))] == [FragmentRange(0, 11, 14, 7)]


def test_the_first_batch_of_a_query_from_latest_is_empty_when_it_is_rerun() -> None:
    entity = FakeEntity(15)
    reader = make(entity, startingOffsets="latest")
    begin = reader.initialOffset()
    assert begin == offsets(15)
    assert reader.partitions(begin, offsets(11)) == []
    assert reader.latestOffset(offsets(11), ReadAllAvailable()) == offsets(15), "no later message is skipped"
    assert [partition.value for partition in reader.partitions(offsets(11), offsets(15))] == [
        FragmentRange(0, 11, 14, 7)
    ]
