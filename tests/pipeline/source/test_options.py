"""Options of reading: what they come to, and that a wrong one is refused with what to do."""

from __future__ import annotations

import pickle

import pytest

from twinbus.pipeline.errors import PipelineError
from twinbus.pipeline.source.options import read_options

KEY = "c2VjcmV0IGtleQ=="
TEXT = f"Endpoint=sb://localhost:5672;SharedAccessKeyName=Root;SharedAccessKey={KEY};UseDevelopmentEmulator=true"


def given(**others: str) -> dict[str, str]:
    return {"connectionString": TEXT, "entity": "orders", **others}


def test_without_wishes_everything_that_is_there_is_read_and_stays() -> None:
    options = read_options(given())
    assert (options.entity, options.starting_offsets, options.ending_offsets) == ("orders", "earliest", "latest")
    assert (options.fails_on_data_loss, options.completes_processed, options.is_exclusive) == (True, False, True)
    assert (options.max_per_trigger, options.max_per_partition, options.min_partitions) == (None, None, 1)


def test_names_are_read_without_regard_to_case_and_spark_may_add_its_own() -> None:
    options = read_options(given(STARTINGOFFSETS="Latest", checkpointLocation="/somewhere", Complete="NONE"))
    assert options.starting_offsets == "latest"
    assert read_options({"connectionString": TEXT, "path": "orders"}).entity == "orders"
    assert read_options(given(path="Orders")).entity == "orders"


def test_offsets_are_numbers_by_fragment() -> None:
    assert read_options(given(startingOffsets='{"0": 17, "3": -2}')).starting_offsets == {0: 17, 3: -2}


def test_both_names_of_the_limit_of_a_batch_are_known() -> None:
    assert read_options(given(maxOffsetsPerTrigger="5")).max_per_trigger == 5
    assert read_options(given(maxEventsPerTrigger="6")).max_per_trigger == 6
    assert read_options(given(maxEventsPerTrigger="6", maxOffsetsPerTrigger="6")).max_per_trigger == 6


def test_paths_of_subscriptions_and_dead_letters_are_entities() -> None:
    assert read_options(given(entity="news/Subscriptions/all")).entity == "news/Subscriptions/all"
    assert read_options(given(entity="orders/$deadletterqueue")).entity == "orders/$DeadLetterQueue"


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        ({"startingOfsets": "earliest"}, r"no option 'startingOfsets' for reading \(did you mean startingOffsets\?\)"),
        ({"colour": "red"}, "it has connectionString, entity"),
        ({"connectionString": ""}, "needs the option connectionString"),
        ({"connectionString": f"Endpoint=sb://x;SharedAccessKey={KEY}"}, "connectionString cannot be read"),
        ({"entity": ""}, "needs the option entity"),
        ({"path": "news"}, r"entity is 'orders', and load\(...\) says 'news': give one of them"),
        ({"entity": "orders/$management"}, "is the path of a queue"),
        ({"startingOffsets": "yesterday"}, "it is earliest, latest"),
        ({"startingOffsets": '{"0": "x"}'}, "it is earliest, latest"),
        ({"startingOffsets": '{"0": -3}'}, "it is earliest, latest"),
        ({"startingOffsets": "[1]"}, "it is earliest, latest"),
        ({"failOnDataLoss": "maybe"}, "true or false"),
        ({"maxOffsetsPerTrigger": "0"}, "a whole number from 1"),
        ({"maxOffsetsPerTrigger": "5", "maxEventsPerTrigger": "6"}, "two names of one option"),
        ({"minPartitions": "many"}, "a whole number from 1"),
        ({"prefetchCount": "5001"}, "to 5,000"),
        ({"operationTimeout": "-1"}, "a number of seconds"),
        ({"complete": "all"}, "none or processed"),
        ({"complete": "processed", "startingOffsets": "latest"}, "startingOffsets=earliest"),
    ],
)
def test_what_cannot_be_is_refused_and_no_secret_is_said(wrong: dict[str, str], what: str) -> None:
    with pytest.raises(PipelineError, match=what) as raised:
        read_options({**given(), **wrong})
    assert KEY not in str(raised.value)


def test_options_are_pickled_whole_and_printed_without_secrets() -> None:
    options = read_options(given())
    assert pickle.loads(pickle.dumps(options)) == options  # noqa: S301  # its own
    assert KEY not in repr(options)
