"""The exact XML of topics and subscriptions that the JavaScript SDK expects."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.server.http.atom_entries import atom_entry, element_names
from twinbus.model.rule import RuleDescription, SqlAction, SqlFilter
from twinbus.model.topic import SubscriptionDescription, TopicDescription

if TYPE_CHECKING:
    from tests.server.http.http_service import HttpResponse, HttpService

TOPIC = [
    "DefaultMessageTimeToLive",
    "MaxSizeInMegabytes",
    "RequiresDuplicateDetection",
    "DuplicateDetectionHistoryTimeWindow",
    "EnableBatchedOperations",
    "SizeInBytes",
    "FilteringMessagesBeforePublishing",
    "IsAnonymousAccessible",
    "AuthorizationRules",
    "Status",
    "CreatedAt",
    "UpdatedAt",
    "AccessedAt",
    "SupportOrdering",
    "CountDetails",
    "SubscriptionCount",
    "SqlFilterCount",
    "CorrelationFilterCount",
    "AutoDeleteOnIdle",
    "EnablePartitioning",
    "EntityAvailabilityStatus",
    "EnableSubscriptionPartitioning",
    "EnableExpress",
    "UserMetadata",
    "MaxMessageSizeInKilobytes",
]
SUBSCRIPTION = [
    "LockDuration",
    "RequiresSession",
    "DefaultMessageTimeToLive",
    "DeadLetteringOnMessageExpiration",
    "DeadLetteringOnFilterEvaluationExceptions",
    "MessageCount",
    "MaxDeliveryCount",
    "EnableBatchedOperations",
    "Status",
    "ForwardTo",
    "CreatedAt",
    "UpdatedAt",
    "AccessedAt",
    "CountDetails",
    "ForwardDeadLetteredMessagesTo",
    "AutoDeleteOnIdle",
    "EntityAvailabilityStatus",
    "UserMetadata",
]


def make_topic(service: HttpService, path: str, elements: str = "", **headers: str) -> HttpResponse:
    return service.request("PUT", path, atom_entry("TopicDescription", elements), **headers)


def make_subscription(service: HttpService, path: str, elements: str = "", **headers: str) -> HttpResponse:
    return service.request("PUT", path, atom_entry("SubscriptionDescription", elements), **headers)


def ids(text: str) -> list[str]:
    return [re.sub("^https?://[^/]*", "", id_text) for id_text in re.findall("<id>([^<]*)</id>", text)]


def test_a_topic_has_the_elements_of_the_contract_in_their_order(service: HttpService) -> None:
    reply = make_topic(service, "/team/news", "<UserMetadata>x</UserMetadata>")
    assert reply.status == 201
    assert element_names(reply.text, "TopicDescription") == TOPIC
    assert ids(reply.text) == ["/team/news"]
    assert '<title type="text">team/news</title>' in reply.text


def test_a_subscription_has_the_elements_of_the_contract_in_their_order(service: HttpService) -> None:
    make_topic(service, "/team/news")
    elements = "<ForwardTo>a</ForwardTo><ForwardDeadLetteredMessagesTo>b</ForwardDeadLetteredMessagesTo>"
    reply = make_subscription(service, "/team%2Fnews/subscriptions/all", f"<UserMetadata>x</UserMetadata>{elements}")
    assert reply.status == 201
    assert element_names(reply.text, "SubscriptionDescription") == SUBSCRIPTION
    assert ids(reply.text) == ["/team/news/Subscriptions/all"]
    assert '<title type="text">all</title>' in reply.text


@pytest.mark.parametrize("address", ["/news/subscriptions", "/news/Subscriptions/", "/NEWS/SUBSCRIPTIONS"])
def test_subscriptions_are_listed_for_any_spelling_of_the_address(service: HttpService, address: str) -> None:
    make_topic(service, "/news")
    for name in ("b", "a"):
        make_subscription(service, f"/news/Subscriptions/{name}")
    reply = service.request("GET", f"{address}?$top=1")
    assert reply.headers["content-type"] == "application/atom+xml;type=feed;charset=utf-8"
    assert ids(reply.text)[1:] == ["/news/Subscriptions/a"]
    assert re.findall('<link rel="next" href="[^"?]*([^"]*)"', reply.text) == ["?$top=1&amp;$skip=1"]


def test_the_only_attribute_of_the_counts_declares_their_prefix(service: HttpService) -> None:
    make_topic(service, "/news")
    make_subscription(service, "/news/subscriptions/all")
    for path in ("/news", "/news/subscriptions/all"):
        text = service.request("GET", path).text
        assert re.findall("<CountDetails ([^>]*)>", text) == [
            'xmlns:d2p1="http://schemas.microsoft.com/netservices/2011/06/servicebus"'
        ]
        assert re.findall(r"<d2p1:(\w+)>0</d2p1:\1>", text) == [
            "ActiveMessageCount",
            "DeadLetterMessageCount",
            "ScheduledMessageCount",
            "TransferMessageCount",
            "TransferDeadLetterMessageCount",
        ]


def test_properties_of_topics_and_subscriptions_are_stored(service: HttpService) -> None:
    make_topic(service, "/news", "<FilteringMessagesBeforePublishing>true</FilteringMessagesBeforePublishing>")
    assert service.administration.topics["news"].description == TopicDescription(
        filtering_messages_before_publishing=True
    )
    make_subscription(service, "/news/subscriptions/all", "<MaxDeliveryCount>3</MaxDeliveryCount><Flux>9</Flux>")
    path = "news/subscriptions/all"
    assert service.administration.subscriptions[path].description == SubscriptionDescription(max_delivery_count=3)


def test_an_old_api_version_hides_newer_elements(service: HttpService) -> None:
    make_topic(service, "/news", "<EnablePartitioning>true</EnablePartitioning>")
    assert element_names(service.request("GET", "/news?api-version=2024-05").text, "TopicDescription") == [
        name for name in TOPIC if name != "UserMetadata"
    ]
    new = {"SqlFilterCount", "CorrelationFilterCount"}
    assert set(element_names(service.request("GET", "/news?api-version=2021-05").text, "TopicDescription")) == (
        {*TOPIC} - new - {"UserMetadata"}
    )
    assert set(element_names(service.request("GET", "/news?api-version=2012-03").text, "TopicDescription")) == (
        {*TOPIC} - new - {"UserMetadata", "EnablePartitioning"}
    )
    reply = make_topic(service, "/old?api-version=2013-08", "<EnablePartitioning>true</EnablePartitioning>")
    assert (reply.status, "2013-10" in reply.detail) == (400, True)


# --- the rule that comes with a subscription --------------------------------------------------------------------------


def test_a_subscription_may_be_created_with_its_rule(service: HttpService) -> None:
    make_topic(service, "/news")
    rule_description = (
        '<DefaultRuleDescription><Filter i:type="SqlFilter"><SqlExpression>a = 1</SqlExpression></Filter>'
        '<Action i:type="SqlRuleAction"><SqlExpression>SET b = 2</SqlExpression></Action><Name>mine</Name>'
        "</DefaultRuleDescription>"
    )
    assert make_subscription(service, "/news/subscriptions/all", rule_description).status == 201
    [rule] = service.administration.rules["news/subscriptions/all"].values()
    assert (rule.name, rule.filter, rule.action) == (
        "mine",
        SqlFilter(expression="a = 1"),
        SqlAction(expression="SET b = 2"),
    )


def test_a_rule_without_a_name_is_the_default_rule(service: HttpService) -> None:
    make_topic(service, "/news")
    rule_description = '<DefaultRuleDescription><Filter i:type="FalseFilter"/></DefaultRuleDescription>'
    make_subscription(service, "/news/subscriptions/all", rule_description)
    [rule] = service.administration.rules["news/subscriptions/all"].values()
    assert (rule.name, type(rule.filter).__name__) == ("$Default", "FalseFilter")


def test_a_subscription_with_an_invalid_rule_is_not_created(service: HttpService) -> None:
    make_topic(service, "/news")
    rule_description = '<DefaultRuleDescription><Filter i:type="MagicFilter"/></DefaultRuleDescription>'
    reply = make_subscription(service, "/news/subscriptions/all", rule_description)
    assert reply.status == 400
    assert "MagicFilter" in reply.detail
    assert service.administration.subscriptions == {}


def test_an_update_of_a_subscription_keeps_its_rules(service: HttpService) -> None:
    make_topic(service, "/news")
    make_subscription(service, "/news/subscriptions/all")
    before = dict(service.administration.rules["news/subscriptions/all"])
    rule_description = '<DefaultRuleDescription><Filter i:type="FalseFilter"/></DefaultRuleDescription>'
    assert make_subscription(service, "/news/subscriptions/all", rule_description, If_Match="*").status == 200
    assert service.administration.rules["news/subscriptions/all"] == before
    assert before["$default"] == RuleDescription(name="$Default", created_ms=before["$default"].created_ms)


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "description", "allowed"),
    [
        ("/news", "SubscriptionDescription", "a QueueDescription or a TopicDescription"),
        ("/news", "RelayDescription", "a QueueDescription or a TopicDescription"),
        ("/news/subscriptions/all", "TopicDescription", "a SubscriptionDescription"),
        ("/news/subscriptions/all/rules/one", "SubscriptionDescription", "a RuleDescription"),
    ],
)
@pytest.mark.parametrize("condition", [{}, {"If_Match": "*"}])
def test_a_description_must_match_its_address(
    service: HttpService, address: str, description: str, allowed: str, condition: dict[str, str]
) -> None:
    reply = service.request("PUT", address, atom_entry(description), **condition)
    assert reply.status == 400
    assert f"{description}'; at this address it can be {allowed}" in reply.detail


def test_subscriptions_have_no_keys(service: HttpService) -> None:
    make_topic(service, "/news")
    rules = "<AuthorizationRules><AuthorizationRule><KeyName>k</KeyName></AuthorizationRule></AuthorizationRules>"
    reply = make_subscription(service, "/news/subscriptions/all", rules)
    assert reply.status == 400
    assert "AuthorizationRules" in reply.detail
