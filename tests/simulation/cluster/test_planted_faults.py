"""The simulation finds each fault that is planted in the communication between processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.simulation.cluster.run import run
from tests.simulation.seeded_runs import describe_error
from twinbus.broker.fragment.fragment import Fragment
from twinbus.broker.intake import partitioner
from twinbus.broker.intake.send_order import QueuedSend, SendOrder
from twinbus.broker.remote.credit_reservation import CreditReservation
from twinbus.broker.remote.part import RemoteTransaction
from twinbus.broker.remote.peer_client import PeerClient
from twinbus.broker.remote.remote_consumer import RemoteConsumer
from twinbus.server.cluster.peer_network import HealthPublisher
from twinbus.server.cluster.peer_server import PeerServer

if TYPE_CHECKING:
    from collections.abc import Callable

ENOUGH = 400
"""Number of runs within which a fault must be found."""

Patch = pytest.MonkeyPatch


def first_fault(texts: tuple[str, ...]) -> str:
    """Return the first fault that contains one of the texts, or else the last fault that was found."""
    fault = "nothing"
    for seed in range(ENOUGH):
        try:
            run(seed)
        except Exception as error:  # noqa: BLE001  # a fault may cause any exception
            fault = describe_error(error)
            if any(text in fault for text in texts):
                break
    return fault


def remote_consumers_get_no_offers(patch: Patch) -> None:
    patch.setattr(RemoteConsumer, "available_credit", property(lambda self: self._credit))


def no_dispatch_after_a_process_has_recovered(patch: Patch) -> None:
    patch.setattr(PeerClient, "_request_messages", lambda _: None)


def reservations_never_expire(patch: Patch) -> None:
    patch.setattr(CreditReservation, "_expire", lambda *_: None)


def refused_messages_are_not_returned(patch: Patch) -> None:
    patch.setattr(CreditReservation, "_return_messages", lambda *_: None)


def credit_reserved_for_a_dead_process_is_kept(patch: Patch) -> None:
    patch.setattr(CreditReservation, "on_peer_lost", lambda _: None)


def requests_to_a_dead_process_never_fail(patch: Patch) -> None:
    patch.setattr(PeerClient, "_fail_requests", lambda *_: None)


def consumers_do_not_attach_to_a_restarted_process(patch: Patch) -> None:
    patch.setattr(CreditReservation, "on_peer_connected", lambda _: None)


def receivers_of_a_dead_process_stay(patch: Patch) -> None:
    patch.setattr(PeerServer, "close", lambda _: None)


def undelivered_messages_of_a_detached_receiver_are_forgotten(patch: Patch) -> None:
    leave = RemoteConsumer.detach
    patch.setattr(RemoteConsumer, "detach", lambda self, _seen=None: leave(self))


def messages_deleted_for_a_detached_receiver_are_forgotten(patch: Patch) -> None:
    patch.setattr(Fragment, "restore_deleted", lambda _fragment, _items, answer: answer(None))


def a_transaction_continues_after_a_restart(patch: Patch) -> None:
    patch.setattr(RemoteTransaction, "_check_same_connection", lambda _: None)


def store_health_is_not_published(patch: Patch) -> None:
    patch.setattr(HealthPublisher, "publish_changes", lambda _: None)


def more_messages_are_claimed_than_credit_is_reserved(patch: Patch) -> None:
    claim = RemoteConsumer.grant_credit
    patch.setattr(RemoteConsumer, "grant_credit", lambda self, count: claim(self, count + 1))


def later_sends_overtake_a_batch_under_duplicate_check(patch: Patch) -> None:
    enter = SendOrder.enqueue

    def overtake(order: SendOrder, turn: QueuedSend) -> None:
        if turn.is_ready:
            turn.run()
        else:
            enter(order, turn)

    patch.setattr(SendOrder, "enqueue", overtake)


def sends_refused_by_one_store_are_not_sent_to_another(patch: Patch) -> None:
    patch.setattr(partitioner, "_TRY_OTHER_FRAGMENT", ())


# Texts of the expected violations: another violation does not prove that this fault was found.
FAULTS: dict[Callable[[Patch], None], tuple[str, ...]] = {
    remote_consumers_get_no_offers: ("which waits",),
    no_dispatch_after_a_process_has_recovered: ("which waits",),
    refused_messages_are_not_returned: ("is lost", "comes after"),
    messages_deleted_for_a_detached_receiver_are_forgotten: ("is lost",),
    credit_reserved_for_a_dead_process_is_kept: ("which waits",),
    requests_to_a_dead_process_never_fail: ("waits for",),
    consumers_do_not_attach_to_a_restarted_process: ("which waits",),
    store_health_is_not_published: ("believes of store",),
    more_messages_are_claimed_than_credit_is_reserved: ("are reserved", "are given back"),
    later_sends_overtake_a_batch_under_duplicate_check: ("was stored out of turn",),
    sends_refused_by_one_store_are_not_sent_to_another: ("worked all the time",),
}


@pytest.mark.parametrize("plant", FAULTS, ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_found(plant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    plant(monkeypatch)
    fault = first_fault(FAULTS[plant])
    assert any(text in fault for text in FAULTS[plant]), fault
