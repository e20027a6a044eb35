"""No message overtakes a spooled message of its session; other messages do not wait for spooled messages."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.client.pairing.spool.fake_namespaces import (
    PRIMARY,
    SECONDARY,
    FakeNamespaces,
    make_fake_namespaces,
    pair_namespaces,
)
from twinbus.client.pairing import EventKind, FailedOver
from twinbus.model.errors import QuotaExceeded
from twinbus.model.message import BrokeredMessage

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def namespaces(monkeypatch: pytest.MonkeyPatch) -> FakeNamespaces:
    return make_fake_namespaces(monkeypatch)


def message(name: str, session_id: str | None = None) -> BrokeredMessage:
    return BrokeredMessage(name, message_id=name, session_id=session_id)


async def test_messages_of_a_spooled_session_are_spooled_and_others_are_sent_directly(
    namespaces: FakeNamespaces, tmp_path: Path
) -> None:
    async with pair_namespaces(namespaces, tmp_path) as pairing:
        sender = pairing.primary.create_message_sender("orders")
        other = pairing.primary.create_message_sender("Orders")
        namespaces.down_namespaces = {PRIMARY, SECONDARY}
        await sender.send(message("a1", "a"))
        response = namespaces.delayed_responses["a1"] = asyncio.Event()
        namespaces.end_outage(pairing)
        await other.send(message("a2", "a"))
        await sender.send(message("b1", "b"))
        await sender.send(message("1"))
        assert namespaces.stored_ids() == ["b1", "1"]
        assert namespaces.event_message_ids(EventKind.SPOOLED) == ["a1", "a2"]
        with pytest.raises(FailedOver, match="has messages in the spool"):
            async with pairing.primary.transaction() as transaction:
                await sender.send(message("a3", "a"), transaction=transaction)
        response.set()
        await namespaces.wait_until(lambda: namespaces.event_message_ids(EventKind.UNSPOOLED) == ["a1", "a2"])
        assert namespaces.stored_ids(PRIMARY) == ["b1", "1", "a1", "a2"]
        await sender.send(message("a4", "a"))
        assert namespaces.event_message_ids(EventKind.SPOOLED) == ["a1", "a2"], (
            "no message of its session is in the spool any more"
        )


async def test_each_of_many_sessions_leaves_the_spool_in_order(namespaces: FakeNamespaces, tmp_path: Path) -> None:
    async with pair_namespaces(namespaces, tmp_path) as pairing:
        sender = pairing.primary.create_message_sender("orders")
        namespaces.down_namespaces = {PRIMARY, SECONDARY}
        for number in range(20):
            for session in "abc":
                await sender.send(message(f"{session}{number:02d}", session))
            await sender.send(message(f"-{number:02d}"))
        namespaces.end_outage(pairing)
        await namespaces.wait_until(lambda: len(namespaces.event_message_ids(EventKind.UNSPOOLED)) == 80)
        arrived = list(map(str, namespaces.stored_ids(PRIMARY)))
        assert len(arrived) == 80
        for session in "abc-":
            of_session = [name for name in arrived if name.startswith(session)]
            assert of_session == [f"{session}{number:02d}" for number in range(20)]


async def test_an_entity_that_accepts_nothing_does_not_hold_up_another(
    namespaces: FakeNamespaces, tmp_path: Path
) -> None:
    async with pair_namespaces(namespaces, tmp_path) as pairing:
        orders = pairing.primary.create_message_sender("orders")
        invoices = pairing.primary.create_message_sender("invoices")
        namespaces.down_namespaces = {PRIMARY, SECONDARY}
        await orders.send(message("order"))
        await invoices.send(message("invoice"))
        namespaces.errors[PRIMARY, "orders"] = QuotaExceeded("it is full")
        namespaces.end_outage(pairing, "orders", "invoices")
        await namespaces.wait_until(lambda: namespaces.event_message_ids(EventKind.UNSPOOLED) == ["invoice"])
        requests_before = namespaces.request_count
        await namespaces.wait_until(lambda: namespaces.request_count > requests_before + 3)  # the spool keeps trying
        assert pairing.spool_status is not None
        assert pairing.spool_status.count == 1
        del namespaces.errors[PRIMARY, "orders"]
        await namespaces.wait_until(lambda: namespaces.event_message_ids(EventKind.UNSPOOLED) == ["invoice", "order"])
