"""XML of descriptions and rules: a value that one side writes is read unchanged by the other."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hypothesis import given, settings
from hypothesis import strategies as some

from twinbus.model import path
from twinbus.model.atom import envelope
from twinbus.model.atom import rule as rule_codec
from twinbus.model.atom.descriptions import QUEUE_CODEC, SUBSCRIPTION_CODEC, TOPIC_CODEC
from twinbus.model.atom.value_formats import NEWEST_API_VERSION, WriteContext
from twinbus.model.description import SETTABLE_RANGES, SIZES_MB, STATUSES
from twinbus.model.info import QueueInfo, SubscriptionInfo, TopicInfo
from twinbus.model.queue import QueueDescription, QueueRuntime
from twinbus.model.rule import CorrelationFilter, RuleDescription, SqlAction, SqlFilter, Value
from twinbus.model.topic import SubscriptionDescription, TopicDescription, TopicRuntime

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

VIEW = WriteContext("localhost:5300", NEWEST_API_VERSION)
TEXTS = some.text(some.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufffe\uffff"), max_size=50)
COUNTS = some.integers(0, 10**12)
CENTURY_MS = 100 * 365 * 86_400_000
"""Upper bound of generated durations: longer ones may be read as forever."""
MOMENTS = some.integers(1, 4_000_000_000_000)
FIELDS: dict[str, some.SearchStrategy[Any]] = {
    **{
        name: some.integers(low, min(high, CENTURY_MS)) | some.just(high)
        for name, (low, high) in SETTABLE_RANGES.items()
    },
    "max_size_mb": some.sampled_from(SIZES_MB),
    "status": some.sampled_from(STATUSES),
    "user_metadata": some.none() | TEXTS.filter(bool),
    "forward_to": some.none() | some.from_regex(r"[a-z]{1,9}(/[a-z0-9]{1,9})?", fullmatch=True),
    "forward_dead_lettered_to": some.none() | some.from_regex(r"[a-z]{1,9}", fullmatch=True),
}
NO_DEADLINE = settings(deadline=None)
"""No deadline: the machine may be busy with other tests."""


def descriptions(kind: type[Any], **more: some.SearchStrategy[Any]) -> some.SearchStrategy[Any]:
    """Return a strategy for descriptions; fields not in FIELDS are booleans."""
    fields = {name: FIELDS.get(name, some.booleans()) for name in kind.__dataclass_fields__}
    return some.builds(kind, **{**fields, **more})


RUNTIMES = some.builds(
    QueueRuntime,
    **{
        name: MOMENTS if name.endswith("_ms") else COUNTS
        for name in QueueRuntime.__dataclass_fields__
        if name != "is_available"
    },
    is_available=some.booleans(),
)


def transmitted(root: Element) -> Element:
    """Return the element as the receiver parses it."""
    return envelope.read_description(envelope.make_request(root), root.tag)


@NO_DEADLINE
@given(description=descriptions(QueueDescription, authorization_rules=some.just(())), is_update=some.booleans())
def test_a_requested_queue_survives_the_round_trip(description: QueueDescription, *, is_update: bool) -> None:
    assert (
        QUEUE_CODEC.read(transmitted(QUEUE_CODEC.write_request(description, VIEW, is_update=is_update))) == description
    )


@NO_DEADLINE
@given(descriptions(TopicDescription, authorization_rules=some.just(())))
def test_a_requested_topic_survives_the_round_trip(description: TopicDescription) -> None:
    assert TOPIC_CODEC.read(transmitted(TOPIC_CODEC.write_request(description, VIEW, is_update=False))) == description


@NO_DEADLINE
@given(descriptions(SubscriptionDescription))
def test_a_requested_subscription_survives_the_round_trip(description: SubscriptionDescription) -> None:
    assert (
        SUBSCRIPTION_CODEC.read(transmitted(SUBSCRIPTION_CODEC.write_request(description, VIEW, is_update=False)))
        == description
    )


@NO_DEADLINE
@given(descriptions(QueueDescription, authorization_rules=some.just(())), RUNTIMES)
def test_a_queue_in_a_response_survives_the_round_trip(description: QueueDescription, runtime: QueueRuntime) -> None:
    root = transmitted(QUEUE_CODEC.write(QueueInfo(path="orders", description=description, runtime=runtime), VIEW))
    assert (QUEUE_CODEC.read_response(root), QUEUE_CODEC.read_runtime(root)) == (description, runtime)


@NO_DEADLINE
@given(descriptions(SubscriptionDescription), RUNTIMES)
def test_a_subscription_in_a_response_survives_the_round_trip(
    description: SubscriptionDescription, runtime: QueueRuntime
) -> None:
    info = SubscriptionInfo(
        path=path.subscription_path("news", "all"), topic="news", name="all", description=description, runtime=runtime
    )
    root = transmitted(SUBSCRIPTION_CODEC.write(info, VIEW))
    assert SUBSCRIPTION_CODEC.read_response(root) == description
    assert SUBSCRIPTION_CODEC.read_runtime(root) == replace(runtime, size_bytes=0), "a subscription has no size"


def test_a_topic_in_a_response_survives_the_round_trip() -> None:
    description = TopicDescription(max_size_mb=2048, auto_delete_on_idle_ms=300_000)
    runtime = TopicRuntime(
        scheduled_count=1,
        size_bytes=2,
        subscription_count=3,
        created_ms=4,
        updated_ms=5,
        accessed_ms=6,
        is_available=False,
        sql_filter_count=7,
        correlation_filter_count=8,
    )
    root = transmitted(TOPIC_CODEC.write(TopicInfo(path="news", description=description, runtime=runtime), VIEW))
    assert (TOPIC_CODEC.read_response(root), TOPIC_CODEC.read_runtime(root)) == (description, runtime)


@NO_DEADLINE
@given(TEXTS, TEXTS, some.none() | TEXTS)
def test_a_rule_survives_the_round_trip(expression: str, value: str, label: str | None) -> None:
    values = {"a key": Value("string", value), "when": Value("dateTime", "2024-05-06T07:08:09Z")}
    rules = [
        RuleDescription(
            name="one",
            filter=SqlFilter(expression=expression, parameters=values),
            action=SqlAction(expression=expression),
        ),
        RuleDescription(name="two", filter=CorrelationFilter(label=label, properties=values)),
    ]
    for rule in rules:
        assert rule_codec.read(transmitted(rule_codec.write_request(rule))) == rule
        assert rule_codec.read_response(transmitted(rule_codec.write(rule))) == rule
