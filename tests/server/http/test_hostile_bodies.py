"""Malicious and malformed request bodies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.server.http.http_service import ENTRY, TOKEN, read_to_end

if TYPE_CHECKING:
    from tests.server.http.http_service import HttpService

BOMB = (
    '<!DOCTYPE bomb [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;"><!ENTITY c "&b;&b;&b;&b;">]>'
    + ENTRY.format("<UserMetadata>&c;</UserMetadata>")
)  # fmt: skip
THIEF = '<!DOCTYPE thief [<!ENTITY x SYSTEM "file:///etc/passwd">]>' + ENTRY.format("<UserMetadata>&x;</UserMetadata>")


@pytest.mark.parametrize(
    "body", [BOMB, THIEF, "<!DOCTYPE entry>" + ENTRY, '<!DOCTYPE entry SYSTEM "http://127.0.0.1:1/x.dtd">' + ENTRY]
)
def test_document_types_and_entities_are_refused(service: HttpService, body: str) -> None:
    reply = service.request("PUT", "/orders", body)
    assert reply.status == 400
    assert reply.detail.startswith("the body has a document type or entities")
    assert service.administration.queues == {}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"<entry",
        b"\x00\xff",
        b'<?xml version="1.0" encoding="klingon"?><entry/>',
        b'<?xml version="1.0" encoding="utf-7"?><entry/>',
        b"<entry>&undefined;</entry>",
        ENTRY.format("<UserMetadata>\x01</UserMetadata>").encode(),
    ],
)
def test_a_body_that_is_not_xml_is_refused(service: HttpService, body: bytes) -> None:
    reply = service.request("PUT", "/orders", body)
    assert reply.status == 400
    assert reply.detail.startswith("the body is not valid XML")


@pytest.mark.parametrize(
    "body",
    [
        "<entry/>",
        '<feed xmlns="http://www.w3.org/2005/Atom"/>',
        '<entry xmlns="http://www.w3.org/2005/Atom"/>',
        '<entry xmlns="http://www.w3.org/2005/Atom"><content/></entry>',
        '<entry xmlns="http://www.w3.org/2005/Atom"><content>text</content></entry>',
        ENTRY.format("").replace("</entry>", "<content><x/></content></entry>"),
        ENTRY.format("").replace("</content>", "<x/></content>"),
        ENTRY.format("").replace("www.w3.org/2005/Atom", "www.w3.org/2005/Molecule"),
        ENTRY.format("").replace("entry", "feed"),
    ],
)
def test_an_entry_without_a_description_is_refused(service: HttpService, body: str) -> None:
    reply = service.request("PUT", "/orders", body)
    assert reply.status == 400
    assert "entry" in reply.detail


@pytest.mark.parametrize("depth", [30, 9_000])
def test_too_deeply_nested_elements_are_refused(service: HttpService, depth: int) -> None:
    reply = service.put("/orders", "<a>" * depth + "</a>" * depth)
    assert reply.status == 400
    assert reply.detail.startswith("the body has elements more than 32 deep")
    assert service.put("/orders", "<a>" * 29 + "</a>" * 29).status == 201


def test_a_description_may_be_as_large_as_the_limit_and_no_larger(service: HttpService) -> None:
    padding = 65_536 - len(ENTRY.format("<!---->"))
    assert service.put("/fits", f"<!--{'x' * padding}-->").status == 201
    reply = service.put("/large", f"<!--{'x' * (padding + 1)}-->")
    assert reply.status == 413
    assert reply.detail.startswith("the body has 65537 bytes or more; it can have 65536")


def test_a_large_body_is_refused_without_reading_it(service: HttpService) -> None:
    assert service.request("PUT", "/large", b"x" * 10_000_000).status == 413


def test_a_chunked_body_is_limited_too(service: HttpService) -> None:
    with service.raw() as connection:
        head = f"PUT /large HTTP/1.1\r\nHost: x\r\nAuthorization: {TOKEN['Authorization']}\r\n"
        connection.sendall(head.encode() + b"Transfer-Encoding: chunked\r\n\r\n")
        for _ in range(5):
            connection.sendall(b"10000\r\n" + b"x" * 65_536 + b"\r\n")
        assert b"HTTP/1.1 413 " in connection.recv(65_536)


def test_a_large_body_is_refused_without_100_continue(service: HttpService) -> None:
    with service.raw() as connection:
        head = (
            f"PUT /large HTTP/1.1\r\nHost: x\r\nAuthorization: {TOKEN['Authorization']}\r\nContent-Length: 9999999\r\n"
        )
        connection.sendall(head.encode() + b"Expect: 100-continue\r\nConnection: close\r\n\r\n")
        assert read_to_end(connection).startswith(b"HTTP/1.1 413 ")


def test_without_a_token_the_body_is_not_read(service: HttpService) -> None:
    with service.raw() as connection:
        connection.sendall(b"PUT /orders HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n")
        assert connection.recv(65_536).startswith(b"HTTP/1.1 401 ")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (ENTRY.format("").replace("servicebus/connect", "other"), "the entry holds"),
        (ENTRY.format("").replace("QueueDescription", "Queue"), "the entry holds"),
        (ENTRY.format("words"), "QueueDescription has text in it; it has to be elements"),
        (ENTRY.format("<Status>Active</Status>words"), "QueueDescription has text in it; it has to be elements"),
        (ENTRY.format("<Status><Active/></Status>"), "Status is '': Status has elements in it; it has to be text"),
        (ENTRY.format("<Status/>"), "Status is '': it has to be Active"),
        (ENTRY.format("<Status>Active</Status>" * 2), "QueueDescription has 'Status' twice"),
        (ENTRY.format("<AuthorizationRules>top secret</AuthorizationRules>"), "AuthorizationRules has text in it"),
        (
            ENTRY.format("<AuthorizationRules><AuthorizationRule>top secret</AuthorizationRule></AuthorizationRules>"),
            "AuthorizationRule has text in it",
        ),
        (
            ENTRY.format(
                "<AuthorizationRules><AuthorizationRule><KeyName>k</KeyName><Rights>Send</Rights></AuthorizationRule>"
                "</AuthorizationRules>"
            ),
            "Rights has text in it",
        ),
    ],
)
@pytest.mark.parametrize("condition", [{}, {"If_Match": "*"}])
def test_a_malformed_description_is_refused(
    service: HttpService, body: str, reason: str, condition: dict[str, str]
) -> None:
    if condition:
        service.put("/orders")
    before = dict(service.administration.queues)
    reply = service.request("PUT", "/orders", body, **condition)
    assert reply.status == 400
    assert reason in reply.detail
    assert "top secret" not in reply.detail
    assert service.administration.queues == before


def test_the_number_of_elements_is_limited_by_the_size_of_the_body_only(service: HttpService) -> None:
    assert service.put("/orders", "<a/>" * 16_000).status == 400, "one element is not there twice"
    assert service.put("/orders", "".join(f"<a{number}/>" for number in range(7_000))).status == 201
