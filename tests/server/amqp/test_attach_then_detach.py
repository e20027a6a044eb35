"""A client may detach a link before the server has answered its attach: both frames arrive in one read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.raw_client import connect_raw
from twinbus.amqp.terminus import Source, Target

if TYPE_CHECKING:
    from tests.support.server_process import ServerProcess


async def test_links_detached_in_the_same_read_as_their_attach_do_not_disturb_other_links(
    server: ServerProcess, queue: str
) -> None:
    async with connect_raw(server) as client:
        client.session.attach_sender("to send", target=Target(address=queue)).detach()
        client.session.attach_receiver("to receive", source=Source(address=queue)).detach()
        await client.attach_receiver(queue)
    server.check_log()
