"""What one side writes is what the other reads, whatever it is."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hypothesis import given, settings
from hypothesis import strategies as some

from twinbus.model import path
from twinbus.model.atom import envelope
from twinbus.model.atom import rule as rule_form
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
"""The last day before forever is taken for forever."""
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
UNHURRIED = settings(deadline=None)
"""A machine that is busy with other tests needs its time."""


def described(kind: type[Any], **more: some.SearchStrategy[Any]) -> some.SearchStrategy[Any]:
    """Any description; those that are not named here are booleans."""
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


def sent(root: Element) -> Element:
    """As it arrives."""
    return envelope.read_description(envelope.make_request(root), root.tag)


@UNHURRIED
@given(description=described(QueueDescription, authorization_rules=some.just(())), is_update=some.booleans())
def test_a_queue_that_is_asked_for(description: QueueDescription, *, is_update: bool) -> None:
    assert QUEUE_CODEC.read(sent(QUEUE_CODEC.write_request(description, VIEW, is_update=is_update))) == description


@UNHURRIED
@given(described(TopicDescription, authorization_rules=some.just(())))
def test_a_topic_that_is_asked_for(description: TopicDescription) -> None:
    assert TOPIC_CODEC.read(sent(TOPIC_CODEC.write_request(description, VIEW, is_update=False))) == description


@UNHURRIED
@given(described(SubscriptionDescription))
def test_a_subscription_that_is_asked_for(description: SubscriptionDescription) -> None:
    assert (
        SUBSCRIPTION_CODEC.read(sent(SUBSCRIPTION_CODEC.write_request(description, VIEW, is_update=False)))
        == description
    )


@UNHURRIED
@given(described(QueueDescription, authorization_rules=some.just(())), RUNTIMES)
def test_a_queue_that_is_shown(description: QueueDescription, runtime: QueueRuntime) -> None:
    root = sent(QUEUE_CODEC.write(QueueInfo(path="orders", description=description, runtime=runtime), VIEW))
    assert (QUEUE_CODEC.read_response(root), QUEUE_CODEC.read_runtime(root)) == (description, runtime)


@UNHURRIED
@given(described(SubscriptionDescription), RUNTIMES)
def test_a_subscription_that_is_shown(description: SubscriptionDescription, runtime: QueueRuntime) -> None:
    info = SubscriptionInfo(
        path=path.subscription_path("news", "all"), topic="news", name="all", description=description, runtime=runtime
    )
    root = sent(SUBSCRIPTION_CODEC.write(info, VIEW))
    assert SUBSCRIPTION_CODEC.read_response(root) == description
    assert SUBSCRIPTION_CODEC.read_runtime(root) == replace(runtime, size_bytes=0), "a subscription shows no size"


def test_a_topic_that_is_shown() -> None:
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
    root = sent(TOPIC_CODEC.write(TopicInfo(path="news", description=description, runtime=runtime), VIEW))
    assert (TOPIC_CODEC.read_response(root), TOPIC_CODEC.read_runtime(root)) == (description, runtime)


@UNHURRIED
@given(TEXTS, TEXTS, some.none() | TEXTS)
def test_a_rule(expression: str, value: str, label: str | None) -> None:
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
        assert rule_form.read(sent(rule_form.write_request(rule))) == rule
        assert rule_form.read_response(sent(rule_form.write(rule))) == rule
