"""`get_namespace_info`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.client.management.fake_service import atom_entry, http_response, run_fake_service
from twinbus.client.management import NamespaceInfo

if TYPE_CHECKING:
    from tests.client.management.manager_factory import ManagerFactory


async def test_namespace_info_has_name_tier_and_times(connect_manager: ManagerFactory) -> None:
    async with connect_manager() as manager:
        info = await manager.get_namespace_info()
    assert (info.name, info.sku, info.messaging_units, info.alias) == ("contoso", "Standard", None, None)
    assert info.created_ms == info.modified_ms > 1_600_000_000_000


async def test_namespace_info_of_a_premium_namespace_has_alias_and_messaging_units() -> None:
    elements = (
        "<Alias>shop</Alias><CreatedTime>2024-05-06T07:08:09.1234567Z</CreatedTime><MessagingSKU>Premium</MessagingSKU>"
        "<MessagingUnits>4</MessagingUnits><ModifiedTime>2024-05-06T07:08:10Z</ModifiedTime><Name>contoso</Name>"
        "<NamespaceType>Messaging</NamespaceType>"
    )
    async with (
        run_fake_service(http_response(200, atom_entry(elements, tag="NamespaceInfo"))) as service,
        service.manager() as manager,
    ):
        info = await manager.get_namespace_info()
    assert info == NamespaceInfo(
        name="contoso",
        created_ms=1_714_979_289_123,
        modified_ms=1_714_979_290_000,
        sku="Premium",
        messaging_units=4,
        alias="shop",
    )
