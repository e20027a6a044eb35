"""A pair for applications without asyncio: the same call, and it waits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.served import started
from twinbus.client.pairing import EntityState, EventKind, PairingEvent
from twinbus.client.sync import (
    BrokeredMessage,
    MessagingFactory,
    NamespaceManager,
    SendAvailabilityPairedNamespaceOptions,
)

if TYPE_CHECKING:
    from pathlib import Path


def test_sends_survive_the_loss_of_the_primary(tmp_path: Path) -> None:
    for name in ("primary", "secondary"):
        (tmp_path / name).mkdir()
    with started(tmp_path / "primary") as primary, started(tmp_path / "secondary") as secondary:
        queue = primary.make_queue()
        manager = NamespaceManager.from_connection_string(secondary.admin_connection_string, ca_file=secondary.ca_file)
        factory = MessagingFactory.from_connection_string(primary.connection_string)
        options = SendAvailabilityPairedNamespaceOptions(
            secondary_factory=MessagingFactory.from_connection_string(secondary.connection_string),
            secondary_namespace_manager=manager,
            primary_namespace_name="contoso",
            backlog_queue_count=2,
            failover_interval=0,
        )
        with manager, factory.pair_namespace(options) as pairing:
            heard: list[PairingEvent] = []
            pairing.on_event(heard.append)
            states: list[PairingEvent] = []
            pairing.on_event(states.append, {EventKind.FAILED_OVER})
            client = factory.create_queue_client(queue)
            assert client.sender.can_be_parked(BrokeredMessage("small"))
            assert not client.sender.can_be_parked(BrokeredMessage(b"x" * 262_144))
            client.send(BrokeredMessage("before"))
            primary.kill()
            client.send(BrokeredMessage("meanwhile"))
            status = pairing.status()
            assert [(entity.path, entity.state) for entity in status.entities] == [(queue, EntityState.FAILED_OVER)]
            assert EventKind.PARKED in {event.kind for event in heard}
            assert [event.kind for event in states] == [EventKind.FAILED_OVER]
            assert status.parked == 1
            assert len([one for one in manager.get_queues() if "x-servicebus-transfer" in one.path]) == 2
        primary.start()
