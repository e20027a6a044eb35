"""The simulation finds what it is there to find: each fault planted between processes comes out."""

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
"""Runs in which a fault must show."""

Patch = pytest.MonkeyPatch


def found(signs: tuple[str, ...]) -> str:
    """What the first run says that finds one of these signs; if none does, what the last one said."""
    said = "nothing"
    for seed in range(ENOUGH):
        try:
            run(seed)
        except Exception as error:  # noqa: BLE001  # a fault may show as anything
            said = describe_error(error)
            if any(sign in said for sign in signs):
                break
    return said


def nobody_is_told_that_there_is_something(patch: Patch) -> None:
    patch.setattr(RemoteConsumer, "available_credit", property(lambda self: self._credit))


def nobody_is_fed_when_a_process_is_well_again(patch: Patch) -> None:
    patch.setattr(PeerClient, "_request_messages", lambda _: None)


def nothing_is_written_off(patch: Patch) -> None:
    patch.setattr(CreditReservation, "_expire", lambda *_: None)


def what_is_not_taken_is_forgotten(patch: Patch) -> None:
    patch.setattr(CreditReservation, "_return_messages", lambda *_: None)


def what_is_lent_to_one_that_died_stays_lent(patch: Patch) -> None:
    patch.setattr(CreditReservation, "on_peer_lost", lambda _: None)


def who_waits_for_one_that_died_is_not_told(patch: Patch) -> None:
    patch.setattr(PeerClient, "_fail_requests", lambda *_: None)


def nobody_comes_again_to_one_that_was_started_again(patch: Patch) -> None:
    patch.setattr(CreditReservation, "on_peer_connected", lambda _: None)


def receivers_of_a_process_that_died_stay(patch: Patch) -> None:
    patch.setattr(PeerServer, "close", lambda _: None)


def what_a_receiver_that_left_has_not_seen_is_forgotten(patch: Patch) -> None:
    leave = RemoteConsumer.detach
    patch.setattr(RemoteConsumer, "detach", lambda self, _seen=None: leave(self))


def what_was_deleted_for_one_who_left_is_forgotten(patch: Patch) -> None:
    patch.setattr(Fragment, "restore_deleted", lambda _fragment, _items, answer: answer(None))


def a_transaction_goes_on_with_another_life(patch: Patch) -> None:
    patch.setattr(RemoteTransaction, "_check_same_connection", lambda _: None)


def nobody_hears_of_stores(patch: Patch) -> None:
    patch.setattr(HealthPublisher, "publish_changes", lambda _: None)


def more_is_claimed_than_is_lent(patch: Patch) -> None:
    claim = RemoteConsumer.grant_credit
    patch.setattr(RemoteConsumer, "grant_credit", lambda self, count: claim(self, count + 1))


def later_sends_overtake_a_batch_that_is_checked(patch: Patch) -> None:
    enter = SendOrder.enqueue

    def overtake(order: SendOrder, turn: QueuedSend) -> None:
        if turn.is_ready:
            turn.run()
        else:
            enter(order, turn)

    patch.setattr(SendOrder, "enqueue", overtake)


def what_one_store_does_not_take_is_refused(patch: Patch) -> None:
    patch.setattr(partitioner, "_TRY_OTHER_FRAGMENT", ())


# What is said of each: that another thing is found is no sign that this one is.
FAULTS: dict[Callable[[Patch], None], tuple[str, ...]] = {
    nobody_is_told_that_there_is_something: ("which waits",),
    nobody_is_fed_when_a_process_is_well_again: ("which waits",),
    what_is_not_taken_is_forgotten: ("is lost", "comes after"),
    what_was_deleted_for_one_who_left_is_forgotten: ("is lost",),
    what_is_lent_to_one_that_died_stays_lent: ("which waits",),
    who_waits_for_one_that_died_is_not_told: ("waits for",),
    nobody_comes_again_to_one_that_was_started_again: ("which waits",),
    nobody_hears_of_stores: ("believes of store",),
    more_is_claimed_than_is_lent: ("are reserved", "are given back"),
    later_sends_overtake_a_batch_that_is_checked: ("was stored out of turn",),
    what_one_store_does_not_take_is_refused: ("worked all the time",),
}


@pytest.mark.parametrize("plant", FAULTS, ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_found(plant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    plant(monkeypatch)
    said = found(FAULTS[plant])
    assert any(sign in said for sign in FAULTS[plant]), said
