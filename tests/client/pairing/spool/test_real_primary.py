"""With a real server: messages that are sent while both namespaces are down arrive when the primary is back."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

from tests.client.pairing.spool.fake_namespaces import SECONDARY, FakeManager, FakeNamespaces, make_factory
from tests.support.server_process import run_server
from twinbus.client.factory import MessagingFactory
from twinbus.client.pairing import EventKind, SendAvailabilityPairedNamespaceOptions
from twinbus.model.message import BrokeredMessage

if TYPE_CHECKING:
    from pathlib import Path

COUNT = 50


async def test_messages_of_a_session_that_are_sent_during_an_outage_arrive_once_and_in_order(tmp_path: Path) -> None:
    namespaces = FakeNamespaces()
    namespaces.down_namespaces = {SECONDARY}
    with run_server(tmp_path) as server:
        queue = server.create_queue(RequiresSession="true")
        primary = MessagingFactory.from_connection_string(server.connection_string, operation_timeout=20)
        options = SendAvailabilityPairedNamespaceOptions(
            secondary_factory=make_factory(SECONDARY),
            secondary_namespace_manager=cast("Any", FakeManager(namespaces)),
            primary_namespace_name="contoso",
            failover_interval=0,
            ping_primary_interval=1,
            require_secondary=False,
            spool_dir=tmp_path / "spool",
        )
        async with await primary.pair_namespace(options) as pairing:
            pairing.on_event(namespaces.on_event)
            client = primary.create_queue_client(queue)
            await client.send(BrokeredMessage("0", message_id="0", session_id="apples"))
            await asyncio.to_thread(server.kill)
            names = [str(number) for number in range(COUNT)]
            for name in names[1:]:
                await client.send(BrokeredMessage(name, message_id=name, session_id="apples"))
            assert namespaces.event_message_ids(EventKind.SPOOLED) == names[1:]
            await asyncio.to_thread(server.start)
            await namespaces.wait_until(lambda: namespaces.event_message_ids(EventKind.UNSPOOLED) == names[1:])
            session = await client.accept_session("apples")
            received = await session.receive_batch(COUNT, timeout=5)
            while len(received) < COUNT:
                received += await session.receive_batch(COUNT, timeout=5)
            assert [message.text for message in received] == names
            assert pairing.spool_status is not None
            assert pairing.spool_status.count == 0
