"""docs/compatibility.md: every claim has a test that uses the operation; no method of the SDK for Python is missing.

That a test exists is not enough: it, or a helper that it uses, has to call the method of the row on an object of the
row's class (checked by `python_calls` and `javascript_calls`). For rows that are not methods of a class, the test has
to contain certain texts: the code in the row, or those in `CONTAINED` and `REQUESTS`.
"""

from __future__ import annotations

import inspect
import re
from collections import Counter
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from azure.servicebus import (
    AutoLockRenewer,
    ServiceBusClient,
    ServiceBusMessageBatch,
    ServiceBusReceiver,
    ServiceBusSender,
    ServiceBusSession,
)
from azure.servicebus import aio as messaging_aio
from azure.servicebus.aio import management as management_aio
from azure.servicebus.management import ServiceBusAdministrationClient

from tests.repository import javascript_calls, python_calls
from twinbus.client import MessagingFactory
from twinbus.client import sync as blocking
from twinbus.client.pairing import Pairing

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "compatibility.md"
ANSWERS = {"yes", "no", "not tried"}
CLASSES: dict[type, type | None] = {
    ServiceBusClient: messaging_aio.ServiceBusClient,
    ServiceBusSender: messaging_aio.ServiceBusSender,
    ServiceBusReceiver: messaging_aio.ServiceBusReceiver,
    ServiceBusSession: messaging_aio.ServiceBusSession,
    AutoLockRenewer: messaging_aio.AutoLockRenewer,
    ServiceBusMessageBatch: None,
    ServiceBusAdministrationClient: management_aio.ServiceBusAdministrationClient,
}
"""Classes of the SDK for Python that use the service, each with its counterpart in aio."""
OURS: dict[str, type] = {
    "`MessagingFactory` of twinbus.client": MessagingFactory,
    "`MessagingFactory` of twinbus.client.sync": blocking.MessagingFactory,
    "`Pairing` of twinbus.client.pairing": Pairing,
}
"""Classes of our own client that create and show pairs, by section."""
KINDS: dict[str, list[type]] = {
    **{f"`{kind.__name__}`": [one for one in (kind, sibling) if one is not None] for kind, sibling in CLASSES.items()},
    **{section: [kind] for section, kind in OURS.items()},
}
"""Classes whose methods are the rows of each section."""

CONTAINED: Final[dict[str, tuple[str, ...]]] = {
    "a connection string with a key": ("from_connection_string", "SharedAccessKey="),
    "a connection string with a shared access signature": ("from_connection_string", "SharedAccessSignature="),
    "AMQP without TLS": ("amqp://",),
    "AMQP over TLS": ("tls_connection_string", "from_connection_string"),
    "SASL ANONYMOUS": ('"ANONYMOUS"',),
    "SASL MSSBCBS": ("MSSBCBS",),
    "SASL PLAIN, the name of a key and the key": ("Credentials.plain(",),
    "no SASL at all": ("sasl=False",),
    "no token within 20 s ends the connection": ("Credentials.anonymous()", "close_condition()"),
    "case-insensitive addresses": ("queue.upper()",),
    "addresses, relative or as URI": ('"/{}"', '"amqps://contoso.example/{}"'),
    "peek-lock (unsettled, settled second)": (".accept()",),
    "receive and delete (settled)": ("create_receiver(", "AtMostOnce()"),
    "sending pre-settled messages": ("create_sender(", "AtMostOnce()"),
    "batches (message format 0x80013700)": ("send_messages([",),
    "`accepted` completes": (".accept()",),
    "`rejected` dead-letters": (".reject()",),
    "`released` and `modified` return the message to the queue": (".release(",),
    "`modified` with `undeliverable-here` defers": ("Modified(undeliverable_here=True)",),
    "drain": (".drain(",),
    "session filter with an id": ('accept_session(holder, queue, "a")', "com.microsoft:session-filter"),
    "session filter with null: the next free session": ("accept_session(client, queue, None",),
    "session filter as a described value": ("Described(", "com.microsoft:session-filter"),
    "dead-letter queue": ("DEAD_LETTER", "receive_messages("),
    "transfer dead-letter queue": ("TRANSFER_DEAD_LETTER", "receive_messages("),
    "browse links (ours; distribution-mode `copy`)": ("options=Copy()",),
    "declare": (".declare()",),
    "discharge": (".discharge(",),
    "discharge with `fail`": (".discharge(", "fail=True"),
    "transactions of qpid-proton": ("Container(program).run()", "commits"),
    "sending": ("TransactionalState(txn_id=", "send_for_state("),
    "complete": ("TransactionalState(", "ACCEPTED"),
    "dead-letter": ("TransactionalState(", "Rejected()"),
    "abandon": ("TransactionalState(", "Released()", "Modified(delivery_failed=True)"),
    "defer": ("TransactionalState(", "Modified(undeliverable_here=True)"),
    "a settlement that is rolled back": ("TransactionalState(", "fail=True"),
    "receive from one queue, send via it to another": ("TransactionalState(", "transfer-destination-address"),
    "qpid-proton": ("BlockingConnection(",),
    "a primary and a secondary of twinbus, in processes of their own": (
        "pair_namespace(",
        "run_server_pair(",
        ".kill()",
    ),
    "Microsoft's emulator: its `Config.json` and key": ("--config=", "--emulator-key", "UseDevelopmentEmulator=true"),
}
"""Texts that the test of an operation, or its helpers, must contain, if the row has no code for that."""
REQUESTS: Final[dict[str, tuple[str, ...]]] = {
    "create {}": ('"PUT"', "201", "{Kind}Description"),
    "update {}": ('"PUT"', "If_Match", "{Kind}Description"),
    "get {}": ('"GET"', "{Kind}Description"),
    "list {}s": ('"GET"', "{list}"),
    "delete {}": ('"DELETE"', "{Kind}Description"),
}
"""REST requests that manage an entity of each kind."""
LISTS: Final = {
    "queue": "$Resources/queues",
    "topic": "$Resources/Topics",
    "subscription": "/Subscriptions/",
    "rule": "/Rules/",
}
for _kind, _list in LISTS.items():
    for _request, _texts in REQUESTS.items():
        CONTAINED[_request.format(_kind)] = tuple(text.format(Kind=_kind.capitalize(), list=_list) for text in _texts)
MESSAGES: Final[dict[str, tuple[str, ...]]] = {
    "send message": ('"POST"', "/messages"),
    "send message to a topic": ('"POST"', "/messages", "TopicDescription"),
    "send message batch": ('"POST"', "/messages", "application/vnd.microsoft.servicebus.json"),
    "peek-lock message": ('"POST"', "/messages/head"),
    "peek-lock message of a subscription": ('"POST"', "/messages/head", "/Subscriptions/"),
    "receive and delete message": ('"DELETE"', "/messages/head"),
    "receive and delete message of a subscription": ('"DELETE"', "/messages/head", "/subscriptions/"),
    "unlock message": ('request("PUT", http_client.peek_lock(queue).location)',),
    "renew lock of message": ('request("POST", received.location)',),
    "delete (complete) message": ('request("DELETE", target)',),
    "custom properties": ("application_properties",),
    "dead-letter queue": ("/$DeadLetterQueue", "/messages/head"),
    "create subscription with its first rule": ("SubscriptionDescription", "DefaultRuleDescription"),
    "shared access rules of an entity": ("AuthorizationRules", "SharedAccessAuthorizationRule"),
    "tokens for the targets of forwarding": ("ServiceBusSupplementaryAuthorization", "ForwardTo"),
    "`Authorization: SharedAccessSignature`": ('"Authorization": token', "SharedAccessSignature sr="),
}
"""Texts for the rows of REST; some of their names also occur for AMQP."""


class Row(NamedTuple):
    """Row of the page: one operation."""

    section: str
    operation: str
    works: str
    said: str

    @property
    def test(self) -> str:
        """Test in the last cell, which contains nothing else."""
        match = re.fullmatch(r"`(tests/[^`]+)`", self.said)
        assert match, f"'{self.operation}' works, so its last cell is a test: {self.said!r}"
        return match[1]

    @property
    def javascript(self) -> str | None:
        """Class of the JavaScript SDK, if the row has one."""
        match = re.fullmatch(r"`(\w+)` of JavaScript", self.section)
        return match[1] if match else None

    @property
    def code(self) -> list[str]:
        """Code in the first cell."""
        return re.findall(r"`([^`]+)`", self.operation)

    @property
    def contained(self) -> tuple[str, ...]:
        """Texts that the test of a row must contain, if the row is not a method of a class."""
        is_rest = self.section in {"Management", "Messages"}
        given = (MESSAGES.get(self.operation) if is_rest else None) or CONTAINED.get(self.operation)
        return given or tuple(self.code)


def read() -> list[Row]:
    rows: list[Row] = []
    section = ""
    for line in PAGE.read_text().splitlines():
        if line.startswith("#"):
            section = line.lstrip("# ")
        elif line.startswith("|") and not line.startswith(("|---", "| operation |")):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            assert len(cells) == 3, line
            rows.append(Row(section, *cells))
    return rows


ROWS = read()
NAMED = [pytest.param(row, id=f"{number} {row.section}: {row.operation}") for number, row in enumerate(ROWS, start=1)]
WORKING = [one for one, row in zip(NAMED, ROWS, strict=True) if row.works == "yes"]
OTHERS = [one for one, row in zip(NAMED, ROWS, strict=True) if row.works != "yes"]


def methods_of(kind: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(kind, inspect.isroutine) if not name.startswith("_")}


def test_the_page_has_rows_of_every_kind() -> None:
    assert {row.works for row in ROWS} == ANSWERS


@pytest.mark.parametrize("row", WORKING)
def test_a_working_operation_has_a_test_that_uses_it(row: Row) -> None:
    if row.javascript is not None:
        check_javascript(row, row.javascript)
        return
    file, _, name = row.test.partition("::")
    assert name.rpartition("::")[2].startswith("test_")
    found = python_calls.calls_of(ROOT / file, name)
    if row.section in KINDS:
        [method] = row.code
        assert any(found.has(kind, method) for kind in KINDS[row.section]), f"{row.test} calls no {method}"
        return
    assert row.contained, f"nothing says what a test of {row.operation!r} contains: see CONTAINED"
    assert [text for text in row.contained if not found.mentions(text)] == []


def check_javascript(row: Row, kind: str) -> None:
    file, _, title = row.test.partition(": ")
    found = javascript_calls.calls_of(ROOT / file, title)
    method = row.code[0]
    if method == "constructor":
        assert kind in {owner for owner, _ in found}, f"{row.test} uses no {kind}"
    else:
        assert (kind, method) in found, f"{row.test} calls no {method} of {kind}"


def test_a_method_counts_for_the_class_of_its_object_only() -> None:
    file, name = ROOT / "tests" / "sdk" / "messages" / "test_locks.py", "test_renewing_a_message_lock_extends_it"
    found = python_calls.calls_of(file, name)
    assert found.has(ServiceBusReceiver, "renew_message_lock")
    assert found.has(ServiceBusSender, "send_messages")
    assert not found.has(ServiceBusReceiver, "send_messages")
    assert not found.has(ServiceBusSender, "close"), "other tests and helpers of the file do not count"
    file, title = ROOT / "tests" / "sdk_js" / "connecting.test.js", "sends and receives ${kind}"
    javascript_found = javascript_calls.calls_of(file, title)
    assert ("ServiceBusReceiver", "completeMessage") in javascript_found
    assert ("ServiceBusReceiver", "peekMessages") in javascript_found, "called by a helper"
    assert (
        not {("ServiceBusSender", "close"), ("ServiceBusReceiver", "close"), ("ServiceBusSender", "completeMessage")}
        & javascript_found
    )


def test_the_page_has_tests_of_pairs_and_does_not_claim_azure() -> None:
    assert {row.section for row in ROWS if row.works == "yes"} >= set(OURS)
    assert {row.works for row in ROWS if "Azure Service Bus as" in row.operation} == {"not tried"}
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        text = " ".join(page.read_text().split())
        assert not re.search(r"works (with|against|on) (twinbus and with )?Azure\b|be it twinbus or Azure", text), (
            page.name
        )


@pytest.mark.parametrize("section", [pytest.param(section, id=section) for section in OURS])
def test_rows_of_our_client_are_methods_that_it_has(section: str) -> None:
    methods = [row.code[0] for row in ROWS if row.section == section]
    assert methods
    assert set(methods) <= methods_of(OURS[section])


@pytest.mark.parametrize("row", OTHERS)
def test_an_operation_that_does_not_work_has_a_reason(row: Row) -> None:
    assert row.works == "not tried" or len(row.said) > 10
    assert "tests/" not in row.said


@pytest.mark.parametrize("kind", [pytest.param(kind, id=kind.__name__) for kind in CLASSES])
def test_every_method_of_the_sdk_for_python_has_a_row(kind: type) -> None:
    sibling = CLASSES[kind]
    methods = methods_of(kind) | (methods_of(sibling) if sibling is not None else set())
    operations = [row.operation for row in ROWS if row.section == f"`{kind.__name__}`"]
    assert methods
    assert sorted(operations) == sorted(f"`{method}`" for method in methods)


def test_no_row_occurs_twice() -> None:
    counts = Counter((row.section, row.operation) for row in ROWS)
    assert [key for key, count in counts.items() if count > 1] == []
