"""Paired namespaces with the blocking client."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tests.support.server_process import run_server, wait_until
from twinbus.client.pairing import EntityState, EventKind, PairingEvent
from twinbus.client.sync import (
    BrokeredMessage,
    MessagingFactory,
    NamespaceManager,
    SendAvailabilityPairedNamespaceOptions,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.server_process import ServerProcess
    from twinbus.client.sync import Pairing


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, ServerProcess]]:
    folders = [tmp_path_factory.mktemp(name) for name in ("primary", "secondary")]
    with run_server(folders[0]) as primary, run_server(folders[1]) as secondary:
        yield primary, secondary


@contextlib.contextmanager
def run_pair(
    primary: ServerProcess, secondary: ServerProcess
) -> Iterator[tuple[MessagingFactory, NamespaceManager, Pairing]]:
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
        yield factory, manager, pairing


def test_q03_q04_a_send_transferred_before_its_client_was_closed_is_uncertain(
    servers: tuple[ServerProcess, ServerProcess],
) -> None:
    primary, _ = servers
    queue = primary.create_queue()
    with run_pair(*servers) as (factory, _, _), ThreadPoolExecutor() as threads:
        client = factory.create_queue_client(queue)
        client.send(BrokeredMessage("before"))
        link = client.inner.sender._link  # noqa: SLF001  # there is no public count of transferred messages
        assert link is not None
        primary.pause()
        try:
            sends = [threads.submit(client.send, BrokeredMessage(str(number))) for number in range(3)]
            wait_until(lambda: len(link._pending) == 3)  # noqa: SLF001
            client.close()
            errors = [send.exception() for send in sends]
        finally:
            primary.resume()
        assert [getattr(error, "may_have_happened", None) for error in errors] == [True] * 3
        assert not any("not sent" in str(error) for error in errors)
        wait_until(lambda: primary.message_counts(queue)[0] == 4)


def test_sends_survive_the_loss_of_the_primary(servers: tuple[ServerProcess, ServerProcess]) -> None:
    primary, secondary = servers
    queue = primary.create_queue()
    with run_pair(primary, secondary) as (factory, manager, pairing):
        events: list[PairingEvent] = []
        pairing.on_event(events.append)
        failover_events: list[PairingEvent] = []
        pairing.on_event(failover_events.append, {EventKind.FAILED_OVER})
        states_in_listener: list[EntityState] = []
        pairing.on_event(
            lambda event: states_in_listener.append(pairing.entity(str(event.path)).state), {EventKind.FAILED_OVER}
        )
        client = factory.create_queue_client(queue)
        assert client.sender.can_be_parked(BrokeredMessage("small"))
        assert not client.sender.can_be_parked(BrokeredMessage(b"x" * 262_144))
        assert client.can_be_parked(BrokeredMessage(f"{number}") for number in range(3))
        assert not client.can_be_parked([BrokeredMessage("small"), BrokeredMessage(b"x" * 262_144)])
        client.send(BrokeredMessage("before"))
        primary.kill()
        client.send(BrokeredMessage("meanwhile"))
        assert pairing.entity(queue).state is EntityState.FAILED_OVER
        assert states_in_listener == [EntityState.FAILED_OVER], "a listener can read the state"
        assert [entity.path for entity in pairing.entities] == [queue]
        status = pairing.status()
        assert [(entity.path, entity.state) for entity in status.entities] == [(queue, EntityState.FAILED_OVER)]
        assert EventKind.PARKED in {event.kind for event in events}
        assert [event.kind for event in failover_events] == [EventKind.FAILED_OVER]
        assert status.parked == 1
        assert len([each for each in manager.get_queues() if "x-servicebus-transfer" in each.path]) == 2
    primary.start()
