"""Options for reading: their defaults and values, and the error messages for invalid ones."""

from __future__ import annotations

import pickle

import pytest

from twinbus.pipeline.errors import PipelineError
from twinbus.pipeline.source.options import read_options

KEY = "c2VjcmV0IGtleQ=="
TEXT = f"Endpoint=sb://localhost:5672;SharedAccessKeyName=Root;SharedAccessKey={KEY};UseDevelopmentEmulator=true"


def options_with(**others: str) -> dict[str, str]:
    return {"connectionString": TEXT, "entity": "orders", **others}


def test_by_default_all_messages_are_read_and_none_is_completed() -> None:
    options = read_options(options_with())
    assert (options.entity, options.starting_offsets, options.ending_offsets) == ("orders", "earliest", "latest")
    assert (options.fails_on_data_loss, options.completes_processed, options.is_exclusive) == (True, False, True)
    assert (options.max_per_trigger, options.max_per_partition, options.min_partitions) == (None, None, 1)


def test_option_names_ignore_case_and_options_of_spark_are_accepted() -> None:
    options = read_options(options_with(STARTINGOFFSETS="Latest", checkpointLocation="/somewhere", Complete="NONE"))
    assert options.starting_offsets == "latest"
    assert read_options({"connectionString": TEXT, "path": "orders"}).entity == "orders"
    assert read_options(options_with(path="Orders")).entity == "orders"


def test_offsets_map_fragments_to_sequence_numbers() -> None:
    assert read_options(options_with(startingOffsets='{"0": 17, "3": -2}')).starting_offsets == {0: 17, 3: -2}


def test_both_names_of_the_batch_limit_are_accepted() -> None:
    assert read_options(options_with(maxOffsetsPerTrigger="5")).max_per_trigger == 5
    assert read_options(options_with(maxEventsPerTrigger="6")).max_per_trigger == 6
    assert read_options(options_with(maxEventsPerTrigger="6", maxOffsetsPerTrigger="6")).max_per_trigger == 6


def test_subscriptions_and_dead_letter_queues_are_entities() -> None:
    assert read_options(options_with(entity="news/Subscriptions/all")).entity == "news/Subscriptions/all"
    assert read_options(options_with(entity="orders/$deadletterqueue")).entity == "orders/$DeadLetterQueue"


@pytest.mark.parametrize(
    ("invalid", "message"),
    [
        ({"startingOfsets": "earliest"}, r"no option 'startingOfsets' for reading \(did you mean startingOffsets\?\)"),
        ({"colour": "red"}, "it has connectionString, entity"),
        ({"connectionString": ""}, "needs the option connectionString"),
        ({"connectionString": f"Endpoint=sb://x;SharedAccessKey={KEY}"}, "connectionString cannot be read"),
        ({"entity": ""}, "needs the option entity"),
        ({"path": "news"}, r"entity is 'orders', but load\(...\) names 'news': give one of them"),
        ({"entity": "orders/$management"}, "use the path of a queue"),
        ({"startingOffsets": "yesterday"}, "use earliest, latest"),
        ({"startingOffsets": '{"0": "x"}'}, "use earliest, latest"),
        ({"startingOffsets": '{"0": -3}'}, "use earliest, latest"),
        ({"startingOffsets": "[1]"}, "use earliest, latest"),
        ({"failOnDataLoss": "maybe"}, "true or false"),
        ({"maxOffsetsPerTrigger": "0"}, "a whole number from 1"),
        ({"maxOffsetsPerTrigger": "5", "maxEventsPerTrigger": "6"}, "two names of the same option"),
        ({"minPartitions": "many"}, "a whole number from 1"),
        ({"prefetchCount": "5001"}, "to 5,000"),
        ({"operationTimeout": "-1"}, "a number of seconds"),
        ({"complete": "all"}, "none or processed"),
        ({"complete": "processed", "startingOffsets": "latest"}, "startingOffsets=earliest"),
    ],
)
def test_invalid_options_are_refused_without_showing_secrets(invalid: dict[str, str], message: str) -> None:
    with pytest.raises(PipelineError, match=message) as raised:
        read_options({**options_with(), **invalid})
    assert KEY not in str(raised.value)


def test_options_are_pickled_completely_and_printed_without_secrets() -> None:
    options = read_options(options_with())
    assert pickle.loads(pickle.dumps(options)) == options  # noqa: S301  # pickled here
    assert KEY not in repr(options)
