"""Usage is counted under the client id that a client sends, or else under the name of its key."""

from __future__ import annotations

import pytest

from tests.server.usage.usage_totals import nonzero_counts
from twinbus.amqp.types import Symbol
from twinbus.client import BrokeredMessage
from twinbus.client.amqp.connection import CLIENT_ID_PROPERTY as CLIENTS_PROPERTY
from twinbus.client.settings import FactorySettings
from twinbus.server.auth.grants import ConnectionGrants
from twinbus.server.auth.keys import Key
from twinbus.server.auth.sas import Grant
from twinbus.server.usage.meter import CLIENT_ID_PROPERTY, ConnectionUsage, UsageMeter
from twinbus.testing import InMemoryNamespace, in_virtual_time

FOREVER = float("inf")


def access(**scopes: str) -> ConnectionGrants:
    """Grants of keys by name, each for one entity and its children; "" is the namespace."""
    grants = ConnectionGrants(lambda grant: grant)
    grants.add_all([Grant(Key(name, "secret"), "secret", scope, FOREVER) for name, scope in scopes.items()])
    return grants


@in_virtual_time
async def test_our_client_is_counted_under_its_client_id() -> None:
    async with InMemoryNamespace() as namespace:
        await namespace.create_queue("orders")
        for _ in range(2):
            factory = namespace.factory()
            await factory.create_message_sender("orders").send(BrokeredMessage("apples"))
            rows = [row for row in namespace.usage() if row.client == factory.settings.client_id]
            assert [(row.entity, nonzero_counts(row)) for row in rows] == [("orders", {"sends": 1, "send_units": 1})]


@in_virtual_time
async def test_an_application_may_choose_the_client_id() -> None:
    async with InMemoryNamespace() as namespace:
        await namespace.create_queue("orders")
        for _ in range(2):
            sender = namespace.factory(client_id="shop").create_message_sender("orders")
            await sender.send(BrokeredMessage("apples"))
        assert [(row.client, row.sends) for row in namespace.usage()] == [("shop", 2)]


def test_a_client_id_has_1_to_128_characters() -> None:
    for name in ("", "x" * 129):
        with pytest.raises(ValueError, match="client_id"):
            FactorySettings(client_id=name)


def test_client_and_server_use_the_same_property() -> None:
    assert CLIENT_ID_PROPERTY == CLIENTS_PROPERTY


def test_another_client_is_counted_under_the_key_that_grants_access() -> None:
    usage = ConnectionUsage(UsageMeter())
    usage.on_open({Symbol("product"): "some SDK"})
    keys = access(orders_key="orders", news_key="news")
    assert usage.counter(keys, "orders").client == "orders_key"
    assert usage.counter(keys, "Orders/$DeadLetterQueue").client == "orders_key"
    assert usage.counter(keys, "news/Subscriptions/all").client == "news_key"


def test_a_client_id_takes_precedence_over_the_key_if_it_is_text() -> None:
    for client_id, name in (("shop", "shop"), ("", "root"), (17, "root")):
        usage = ConnectionUsage(UsageMeter())
        usage.on_open({Symbol(CLIENT_ID_PROPERTY): client_id})
        assert usage.counter(access(root=""), "orders").client == name


def test_connections_are_counted_once_from_open_to_close() -> None:
    meter = UsageMeter()
    first, second, never_opened = ConnectionUsage(meter), ConnectionUsage(meter), ConnectionUsage(meter)
    first.on_open(None)
    second.on_open(None)
    first.on_close()
    first.on_close()
    never_opened.on_close()
    assert (meter.connections, meter.take_peak_connections(), meter.take_peak_connections()) == (1, 2, 1)


def test_a_counter_is_kept_while_a_connection_uses_it() -> None:
    meter = UsageMeter()
    usages = [ConnectionUsage(meter), ConnectionUsage(meter)]
    for usage in usages:
        usage.on_open({CLIENT_ID_PROPERTY: "shop"})
        for _ in range(2):
            usage.counter(access(root=""), "orders")
    counter = meter.counter("orders", "shop")
    assert counter.user_count == 2
    meter.remove_unused([counter])
    assert meter.counter("orders", "shop") is counter
    for usage in usages:
        usage.on_close()
    meter.remove_unused([counter])
    assert meter.counter("orders", "shop") is not counter
