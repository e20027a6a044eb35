"""Under whose name things are counted: what a client calls itself, else the key that it uses."""

from __future__ import annotations

import pytest

from tests.server.usage.usage_totals import nonzero_counts
from twinbus.amqp.types import Symbol
from twinbus.client import BrokeredMessage
from twinbus.client.amqp.connection import CLIENT_ID_PROPERTY as SAID
from twinbus.client.settings import FactorySettings
from twinbus.server.auth.grants import ConnectionGrants
from twinbus.server.auth.keys import Key
from twinbus.server.auth.sas import Grant
from twinbus.server.usage.meter import CLIENT_ID_PROPERTY, ConnectionUsage, UsageMeter
from twinbus.testing import InMemoryNamespace, in_virtual_time

FOREVER = float("inf")


def access(**scopes: str) -> ConnectionGrants:
    """Keys by their names, each for one entity and what is below it; "" is all."""
    found = ConnectionGrants(lambda grant: grant)
    found.add_all([Grant(Key(name, "secret"), "secret", scope, FOREVER) for name, scope in scopes.items()])
    return found


@in_virtual_time
async def test_a_client_of_ours_is_counted_under_the_id_that_its_journal_has() -> None:
    async with InMemoryNamespace() as namespace:
        await namespace.create_queue("orders")
        for _ in range(2):
            factory = namespace.factory()
            await factory.create_message_sender("orders").send(BrokeredMessage("apples"))
            found = [row for row in namespace.usage() if row.client == factory.settings.client_id]
            assert [(row.entity, nonzero_counts(row)) for row in found] == [("orders", {"sends": 1, "send_units": 1})]


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
    assert CLIENT_ID_PROPERTY == SAID


def test_another_client_is_counted_under_the_key_by_which_it_may_use_an_entity() -> None:
    tab = ConnectionUsage(UsageMeter())
    tab.on_open({Symbol("product"): "some SDK"})
    keys = access(orders_key="orders", news_key="news")
    assert tab.counter(keys, "orders").client == "orders_key"
    assert tab.counter(keys, "Orders/$DeadLetterQueue").client == "orders_key"
    assert tab.counter(keys, "news/Subscriptions/all").client == "news_key"


def test_what_a_client_says_of_itself_goes_before_its_key_if_it_is_text() -> None:
    for said, name in (("shop", "shop"), ("", "root"), (17, "root")):
        tab = ConnectionUsage(UsageMeter())
        tab.on_open({Symbol(CLIENT_ID_PROPERTY): said})
        assert tab.counter(access(root=""), "orders").client == name


def test_connections_are_counted_from_their_opening_to_their_end_once() -> None:
    meter = UsageMeter()
    first, second, never_opened = ConnectionUsage(meter), ConnectionUsage(meter), ConnectionUsage(meter)
    first.on_open(None)
    second.on_open(None)
    first.on_close()
    first.on_close()
    never_opened.on_close()
    assert (meter.connections, meter.take_peak_connections(), meter.take_peak_connections()) == (1, 2, 1)


def test_a_counter_is_in_use_as_long_as_a_connection_may_count_in_it() -> None:
    meter = UsageMeter()
    tabs = [ConnectionUsage(meter), ConnectionUsage(meter)]
    for tab in tabs:
        tab.on_open({CLIENT_ID_PROPERTY: "shop"})
        for _ in range(2):
            tab.counter(access(root=""), "orders")
    counter = meter.counter("orders", "shop")
    assert counter.user_count == 2
    meter.remove_unused([counter])
    assert meter.counter("orders", "shop") is counter
    for tab in tabs:
        tab.on_close()
    meter.remove_unused([counter])
    assert meter.counter("orders", "shop") is not counter
