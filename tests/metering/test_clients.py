"""Under whose name things are counted: what a client calls itself, else the key that it uses."""

from __future__ import annotations

import pytest

from tests.metering.used import counted
from twinbus.amqp.types import Symbol
from twinbus.client import BrokeredMessage
from twinbus.client.conversation import CLIENT_ID as SAID
from twinbus.client.settings import FactorySettings
from twinbus.server.access import Access
from twinbus.server.keys import Key
from twinbus.server.metering.meter import Meter
from twinbus.server.metering.tab import CLIENT_ID, Tab
from twinbus.server.sas import Grant
from twinbus.testing import InMemoryNamespace, in_virtual_time

FOREVER = float("inf")


def access(**scopes: str) -> Access:
    """Keys by their names, each for one entity and what is below it; "" is all."""
    found = Access(lambda grant: grant)
    found.give_all([Grant(Key(name, "secret"), "secret", scope, FOREVER) for name, scope in scopes.items()])
    return found


@in_virtual_time
async def test_a_client_of_ours_is_counted_under_the_id_that_its_journal_has() -> None:
    async with InMemoryNamespace() as namespace:
        await namespace.create_queue("orders")
        for _ in range(2):
            factory = namespace.factory()
            await factory.create_message_sender("orders").send(BrokeredMessage("apples"))
            found = [row for row in namespace.usage() if row.client == factory.settings.client_id]
            assert [(row.entity, counted(row)) for row in found] == [("orders", {"sends": 1, "send_units": 1})]


@in_virtual_time
async def test_an_application_may_say_what_its_clients_are_counted_under() -> None:
    async with InMemoryNamespace() as namespace:
        await namespace.create_queue("orders")
        for _ in range(2):
            sender = namespace.factory(client_id="shop").create_message_sender("orders")
            await sender.send(BrokeredMessage("apples"))
        assert [(row.client, row.sends) for row in namespace.usage()] == [("shop", 2)]


def test_what_a_client_is_called_has_a_name_of_some_length() -> None:
    for name in ("", "x" * 129):
        with pytest.raises(ValueError, match="client_id"):
            FactorySettings(client_id=name)


def test_both_ends_mean_the_same_property() -> None:
    assert CLIENT_ID == SAID


def test_another_client_is_counted_under_the_key_by_which_it_may_use_an_entity() -> None:
    tab = Tab(Meter())
    tab.open({Symbol("product"): "some SDK"})
    keys = access(orders_key="orders", news_key="news")
    assert tab.counter(keys, "orders").client == "orders_key"
    assert tab.counter(keys, "Orders/$DeadLetterQueue").client == "orders_key"
    assert tab.counter(keys, "news/Subscriptions/all").client == "news_key"


def test_what_a_client_says_of_itself_goes_before_its_key_if_it_is_text() -> None:
    for said, name in (("shop", "shop"), ("", "root"), (17, "root")):
        tab = Tab(Meter())
        tab.open({Symbol(CLIENT_ID): said})
        assert tab.counter(access(root=""), "orders").client == name


def test_connections_are_counted_from_their_opening_to_their_end_once() -> None:
    meter = Meter()
    first, second, never_opened = Tab(meter), Tab(meter), Tab(meter)
    first.open(None)
    second.open(None)
    first.close()
    first.close()
    never_opened.close()
    assert (meter.connections, meter.take_connections(), meter.take_connections()) == (1, 2, 1)


def test_a_counter_is_in_use_as_long_as_a_connection_may_count_in_it() -> None:
    meter = Meter()
    tabs = [Tab(meter), Tab(meter)]
    for tab in tabs:
        tab.open({CLIENT_ID: "shop"})
        for _ in range(2):
            tab.counter(access(root=""), "orders")
    counter = meter.counter("orders", "shop")
    assert counter.users == 2
    meter.forget([counter])
    assert meter.counter("orders", "shop") is counter
    for tab in tabs:
        tab.close()
    meter.forget([counter])
    assert meter.counter("orders", "shop") is not counter
