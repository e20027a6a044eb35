"""Switching and listing outages requires the Manage right on the namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.server.outage_switch.switch_client import OutageSwitchClient
from tests.support.in_process_server import run_server_in_process
from tests.support.raw_client import LinkRefused, connect_raw
from tests.support.server_process import QUEUE_ENTRY
from twinbus.amqp.sasl import Credentials
from twinbus.server.auth.keys import Key, Right

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.in_process_server import InProcessServer

SECRET = "bG9uZy1lbm91Z2gtc2VjcmV0"
RULE_WITH_MANAGE = (
    "<AuthorizationRules><AuthorizationRule xmlns:i='http://www.w3.org/2001/XMLSchema-instance' "
    "i:type='SharedAccessAuthorizationRule'><ClaimType>SharedAccessKey</ClaimType><ClaimValue>None</ClaimValue>"
    "<Rights><AccessRights>Manage</AccessRights><AccessRights>Send</AccessRights><AccessRights>Listen</AccessRights>"
    "</Rights><KeyName>boss-of-one</KeyName><PrimaryKey>bG9uZy1lbm91Z2gtc2VjcmV0</PrimaryKey></AuthorizationRule></AuthorizationRules>"
)
KEYS = [
    Key("root", SECRET),
    Key("manager", SECRET, rights=frozenset({Right.MANAGE})),
    Key("user", SECRET, rights=frozenset({Right.SEND, Right.LISTEN})),
]


@pytest.fixture(scope="module")
def server_with_keys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessServer]:
    with run_server_in_process(tmp_path_factory.mktemp("rights"), keys=KEYS) as server:
        server.request("PUT", "orders", QUEUE_ENTRY.format(RULE_WITH_MANAGE), expected=201)
        yield server


@pytest.mark.parametrize("method", ["PUT", "GET", "DELETE"])
@pytest.mark.parametrize(
    ("key_name", "scope"),
    [("user", ""), ("user", "$outage"), ("boss-of-one", "orders"), ("root", "orders"), ("nobody", "")],
)
def test_a_token_without_manage_on_the_namespace_is_refused(
    server_with_keys: InProcessServer, method: str, key_name: str, scope: str
) -> None:
    switch = OutageSwitchClient(server_with_keys)
    token = server_with_keys.token(scope, key=SECRET, key_name=key_name)
    assert switch.request(method, "/$outage?path=orders&seconds=60", token=token).status == 401
    assert switch.active_outages() == []


@pytest.mark.parametrize("scope", ["", "$outage"])
def test_a_manage_token_for_the_namespace_or_the_switch_is_accepted(
    server_with_keys: InProcessServer, scope: str
) -> None:
    switch, token = OutageSwitchClient(server_with_keys), server_with_keys.token(scope, key=SECRET, key_name="manager")
    assert switch.request("PUT", "/$outage?path=orders&seconds=60", token=token).status == 201
    assert switch.request("DELETE", "/$outage", token=token).status == 200


@pytest.mark.parametrize("key_name", ["user", "boss-of-one"])
async def test_over_amqp_a_key_without_manage_on_the_namespace_is_refused(
    server_with_keys: InProcessServer, key_name: str
) -> None:
    async with connect_raw(server_with_keys, Credentials.plain(key_name, SECRET)) as client:
        for operation in ("begin-outage", "end-outage", "list-outages"):
            body = {"path": "orders", "seconds": 60}
            answer = await client.request_status("$outage", {"operation": f"twinbus:{operation}"}, body)
            assert answer["statusCode"] == 401
            assert "'Manage'" in answer["statusDescription"]
    assert OutageSwitchClient(server_with_keys).active_outages() == []


async def test_over_amqp_links_without_a_token_are_refused(server_with_keys: InProcessServer) -> None:
    async with connect_raw(server_with_keys, Credentials.anonymous()) as client:
        with pytest.raises(LinkRefused, match="amqp:unauthorized-access"):
            await client.attach_sender("$outage")
        with pytest.raises(LinkRefused, match="amqp:unauthorized-access"):
            await client.attach_receiver("$outage")
