"""Rules as XML, read and written: every filter, action and type of value."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.server.http.atom_entries import atom_entry, element_names, rule_entry
from twinbus.model.rule import (
    VALUE_KINDS,
    CorrelationFilter,
    FalseFilter,
    SqlAction,
    SqlFilter,
    TrueFilter,
    Value,
)

if TYPE_CHECKING:
    from tests.server.http.http_service import HttpResponse, HttpService
    from twinbus.model.rule import Filter

SCHEMA = "http://www.w3.org/2001/XMLSchema"
TEXTS = {
    "string": " a <b> ",
    "int": "-1",
    "long": "2147483650",
    "double": "1.5",
    "boolean": "true",
    "dateTime": "2026-07-05T11:12:13Z",
    "duration": "P1DT2H",
    "guid": "6f3c1a52-5d4e-4c52-9f57-5f9a8f1f1a11",
    "binary": "AAEC",
}
IN_XML = {kind: "base64Binary" if kind == "binary" else kind for kind in VALUE_KINDS}


def pair(key: str, kind: str, text: str, prefix: str = "l28") -> str:
    text = text.replace("<", "&lt;")
    return (
        f"<KeyValueOfstringanyType><Key>{key}</Key>"
        f'<Value i:type="{prefix}:{kind}" xmlns:{prefix}="{SCHEMA}">{text}</Value></KeyValueOfstringanyType>'
    )


PAIRS = "".join(pair(f"@{kind}", IN_XML[kind], text) for kind, text in TEXTS.items())
VALUES = {f"@{kind}": Value(kind, text) for kind, text in TEXTS.items()}


@pytest.fixture
def service(service: HttpService) -> HttpService:
    service.request("PUT", "/news", atom_entry("TopicDescription"))
    service.request("PUT", "/news/subscriptions/all", atom_entry("SubscriptionDescription"))
    return service


def put(service: HttpService, elements: str, name: str = "one", **headers: str) -> HttpResponse:
    return service.request("PUT", f"/news/Subscriptions/all/Rules/{name}", rule_entry(elements), **headers)


@pytest.mark.parametrize(
    ("elements", "expected"),
    [
        ("", TrueFilter()),
        ('<Filter i:nil="true"/>', TrueFilter()),
        ('<Filter i:type="TrueFilter"><SqlExpression>1=1</SqlExpression></Filter>', TrueFilter()),
        ('<Filter i:type="FalseFilter"/>', FalseFilter()),
        ('<Filter i:type=" p4:SqlFilter"><SqlExpression>a=1</SqlExpression></Filter>', SqlFilter(expression="a=1")),
        (
            (
                f'<Filter i:type="SqlFilter"><SqlExpression>a=@int</SqlExpression><CompatibilityLevel>20'
                f"</CompatibilityLevel><Parameters>{PAIRS}</Parameters></Filter>"
            ),
            SqlFilter(expression="a=@int", parameters=VALUES),
        ),
        (
            (
                '<Filter i:type="CorrelationFilter"><CorrelationId>1</CorrelationId><MessageId>2</MessageId><To>3</To>'
                "<ReplyTo>4</ReplyTo><Label>5</Label><SessionId>6</SessionId><ReplyToSessionId>7</ReplyToSessionId>"
                f'<ContentType i:nil="true"/><Properties>{PAIRS}</Properties></Filter>'
            ),
            CorrelationFilter(
                correlation_id="1",
                message_id="2",
                to="3",
                reply_to="4",
                label="5",
                session_id="6",
                reply_to_session_id="7",
                properties=VALUES,
            ),
        ),
    ],
)
def test_filters_are_read_and_written(service: HttpService, elements: str, expected: Filter) -> None:
    reply = put(service, elements)
    assert reply.status == 201
    rules = service.administration.rules["news/subscriptions/all"]
    assert rules["one"].filter == expected
    match = re.search("<Filter.*?(/>|</Filter>)", reply.text)
    assert match is not None
    assert put(service, match[0], "two").status == 201
    assert rules["two"].filter == expected


@pytest.mark.parametrize(
    ("elements", "expected"),
    [
        ("", None),
        ('<Action i:type="EmptyRuleAction"/>', None),
        (
            (
                '<Action i:type="SqlRuleAction"><SqlExpression>SET a=@int</SqlExpression>'
                f"<Parameters>{PAIRS}</Parameters></Action>"
            ),
            SqlAction(expression="SET a=@int", parameters=VALUES),
        ),
    ],
)
def test_actions_are_read(service: HttpService, elements: str, expected: SqlAction | None) -> None:
    assert put(service, elements).status == 201
    assert service.administration.rules["news/subscriptions/all"]["one"].action == expected


def test_a_rule_is_written_as_the_javascript_sdk_reads_it(service: HttpService) -> None:
    elements = f'<Filter i:type="SqlFilter"><SqlExpression>a=1</SqlExpression><Parameters>{PAIRS}</Parameters></Filter>'
    text = put(service, elements).text
    assert element_names(text, "RuleDescription") == ["Filter", "Action", "CreatedAt", "Name"]
    assert re.findall("<id>[^<]*(/news[^<]*)</id>", text) == ["/news/Subscriptions/all/Rules/one"]
    assert '<Filter i:type="SqlFilter"><SqlExpression>a=1</SqlExpression><CompatibilityLevel>20<' in text
    assert '<Action i:type="EmptyRuleAction" /><CreatedAt>2023-11-14T22:13:20.123Z</CreatedAt><Name>one</Name>' in text
    assert re.findall('<Value i:type="d6p1:(\\w+)" xmlns:d6p1="([^"]*)">', text) == [
        (IN_XML[kind], SCHEMA if kind != "guid" else "http://schemas.microsoft.com/2003/10/Serialization/")
        for kind in TEXTS
    ]


def test_true_and_false_filters_have_an_expression_too(service: HttpService) -> None:
    assert "<SqlExpression>1=1</SqlExpression>" in put(service, "", "yes").text
    assert "<SqlExpression>1=0</SqlExpression>" in put(service, '<Filter i:type="FalseFilter"/>', "no").text


def test_rules_are_listed_in_pages(service: HttpService) -> None:
    put(service, "")
    text = service.request("GET", "/news/subscriptions/all/rules/?$top=1").text
    assert re.findall("<id>[^<]*(/news[^<]*)</id>", text) == [
        "/news/Subscriptions/all/Rules",
        "/news/Subscriptions/all/Rules/$Default",
    ]
    assert re.findall('<link rel="next" href="[^"?]*([^"]*)"', text) == ["?$top=1&amp;$skip=1"]


@pytest.mark.parametrize(
    ("elements", "reason"),
    [
        ("<Filter/>", "the type of Filter is ''; it can be SqlFilter, TrueFilter"),
        ('<Filter i:type="Magic"/>', "the type of Filter is 'Magic'"),
        ('<Action i:type="SqlFilter"/>', "the type of Action is 'SqlFilter'; it can be SqlRuleAction"),
        ('<Filter i:type="TrueFilter">yes</Filter>', "Filter has text in it"),
        ('<Filter i:type="TrueFilter"/><Filter i:type="TrueFilter"/>', "RuleDescription has 'Filter' twice"),
        ("<Name>two</Name>", "Name is 'two', but the address names the rule 'one'"),
        ("<Name><b/></Name>", "Name has elements in it"),
        ("some text", "RuleDescription has text in it"),
        (
            f'<Filter i:type="SqlFilter"><Parameters>{pair("@a", "int", "1") * 2}</Parameters></Filter>',
            "Parameters has '@a' twice",
        ),
        (
            f'<Filter i:type="CorrelationFilter"><Properties>{pair("a", "float", "1")}</Properties></Filter>',
            "cannot be of type 'float'",
        ),
        (
            (
                '<Filter i:type="CorrelationFilter"><Properties><KeyValueOfstringanyType><Key>a</Key>'
                '<Value i:nil="true"/></KeyValueOfstringanyType></Properties></Filter>'
            ),
            "Properties has a pair without a Key or a Value",
        ),
        ('<Filter i:type="SqlFilter"><Parameters>1</Parameters></Filter>', "Parameters has text in it"),
        (f'<Filter i:type="SqlFilter"><SqlExpression>{"x" * 1025}</SqlExpression></Filter>', "1025 characters"),
    ],
)
def test_an_invalid_rule_is_refused_with_the_reason(service: HttpService, elements: str, reason: str) -> None:
    for condition in ({}, {"If_Match": "*"}):
        reply = put(service, elements, **condition)
        assert reply.status == 400
        assert reason in reply.detail
    assert list(service.administration.rules["news/subscriptions/all"]) == ["$default"]


def test_names_of_rules_ignore_case(service: HttpService) -> None:
    assert put(service, "<Name>ONE</Name>").status == 201
    assert put(service, "", "one").status == 409
    assert put(service, '<Filter i:type="FalseFilter"/>', "ONE", If_Match="*").status == 200
    assert "<Name>one</Name>" in service.request("GET", "/news/subscriptions/all/rules/oNe").text
    assert service.request("DELETE", "/news/subscriptions/all/rules/One").status == 200
    assert service.request("GET", "/news/subscriptions/all/rules/one").status == 404
