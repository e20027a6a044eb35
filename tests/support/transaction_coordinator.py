"""A link to the transaction coordinator, to declare and discharge transactions.

coordinator = await attach_coordinator(client)
txn_id = await coordinator.declare()
assert await coordinator.discharge(txn_id) is None
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.amqp.message import build, value
from twinbus.amqp.outcomes import Declare, Discharge
from twinbus.amqp.terminus import Coordinator

if TYPE_CHECKING:
    from tests.support.raw_client import RawClient
    from twinbus.amqp.sender import Sender


class CoordinatorLink:
    """A sending link to the transaction coordinator."""

    def __init__(self, client: RawClient, link: Sender) -> None:
        self._client = client
        self.link = link

    async def declare(self) -> bytes:
        state = await self._client.send_for_state(self.link, build(body=value(Declare())))
        txn_id = state.txn_id
        assert isinstance(txn_id, bytes)
        return txn_id

    async def discharge(self, txn_id: bytes, *, fail: bool = False) -> str | None:
        """Commit or (`fail`) roll back a transaction; return the error condition, or None."""
        return await self._client.send(self.link, build(body=value(Discharge(txn_id=txn_id, fail=fail))))


async def attach_coordinator(client: RawClient) -> CoordinatorLink:
    return CoordinatorLink(client, await client.attach_sender(None, target=Coordinator()))
