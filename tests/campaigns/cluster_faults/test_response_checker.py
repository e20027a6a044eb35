"""What comes late, or as an error, where nothing was struck is found; what was struck is excused, for a while."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.campaigns.cluster_faults.checker import ClusterChecker, Delivery, DeliveryPair, SendRecord
from tests.campaigns.cluster_faults.disk_monitor import DiskMonitor
from tests.campaigns.cluster_faults.fault import Fault, FaultKind
from tests.campaigns.cluster_faults.loop_lag import LoopLag
from tests.campaigns.cluster_faults.response_checker import (
    DISK_TIMEOUT_TEXT,
    UNKNOWN_PROCESS,
    ConnectionDrop,
    Reconnection,
    ResponseChecker,
    ResponseReport,
    SendClass,
)
from tests.campaigns.cluster_faults.scenario import Stream
from tests.support.delivery_checker.messages import FRAGMENT_SHIFT, Copy

if TYPE_CHECKING:
    from pathlib import Path

STRUCK, WELL = 100, 101
STORES = 4
UNAVAILABLE = "amqp:internal-error: store 1 is unavailable"
STOPPED = Fault(FaultKind.STOPPED, STRUCK, frozenset({1}), began_s=50, detected_s=55, ended_s=55, recovered_s=58)
HANGING = Fault(FaultKind.HANGING, None, frozenset({2}), began_s=70, detected_s=72, ended_s=74, recovered_s=75)
ACCEPTED = SendRecord(0, Stream("loose-0", "loose"), None, None, WELL, 51, 55.9, is_accepted=True)
KEYED = replace(ACCEPTED, stream=Stream("keyed-0", "keyed", has_keys=True), key="k", fragment=6)


def judged(
    *sends: SendRecord,
    drops: tuple[ConnectionDrop, ...] = (),
    returns: tuple[Reconnection, ...] = (),
    lag: LoopLag | None = None,
) -> ResponseReport:
    ledger = ClusterChecker(random.Random(1))
    ledger.sends += sends
    return ResponseChecker([STOPPED, HANGING], STORES, lag or LoopLag()).check(ledger, drops, returns)


def kinds(verdict: ResponseReport) -> list[str]:
    return [problem.partition(":")[0] for problem in verdict.problems]


@pytest.mark.parametrize("send", [ACCEPTED, KEYED, replace(KEYED, fragment=5)])
def test_an_answer_within_a_second_of_the_detection_is_in_time(send: SendRecord) -> None:
    assert judged(send).problems == []
    assert kinds(judged(replace(send, ended_s=56.1))) == ["late"]
    assert judged(replace(send, began_s=57, ended_s=57.9)).problems == []
    assert kinds(judged(replace(send, began_s=57, ended_s=58.1))) == ["late"]


def test_a_send_that_is_never_answered_is_late() -> None:
    assert kinds(judged(replace(ACCEPTED, is_accepted=False, ended_s=None))) == ["late"]


def test_an_error_is_for_keys_of_struck_fragments_only() -> None:
    refused = replace(KEYED, is_accepted=False, refusal=UNAVAILABLE)
    assert kinds(judged(refused)) == ["error"]
    assert kinds(judged(replace(refused, key=None, fragment=None))) == ["error"]
    struck = replace(refused, fragment=5)
    assert judged(struck).problems == []
    assert kinds(judged(replace(struck, refusal="amqp:not-found: it is gone"))) == ["error"]


def test_what_was_sent_through_the_struck_process_may_be_cut_off() -> None:
    cut_off = replace(ACCEPTED, is_accepted=False, is_disconnected=True)
    assert kinds(judged(cut_off)) == ["error"]
    verdict = judged(replace(cut_off, process=STRUCK))
    assert verdict.problems == []
    assert verdict.figures[FaultKind.STOPPED, SendClass.FAULTY_PROCESS].cut_off == 1


def test_a_process_that_was_gone_before_it_was_seen_is_the_struck_one() -> None:
    cut_off = replace(ACCEPTED, is_accepted=False, is_disconnected=True, process=UNKNOWN_PROCESS)
    assert judged(cut_off).problems == []
    assert kinds(judged(replace(cut_off, began_s=71, ended_s=72.5))) == ["error"]
    assert kinds(judged(replace(cut_off, began_s=60, ended_s=60.1))) == ["error"]


def test_where_nothing_was_struck_there_is_no_error() -> None:
    assert kinds(judged(replace(KEYED, began_s=60, ended_s=60.1, is_accepted=False, refusal=UNAVAILABLE))) == ["error"]


def test_a_disk_excuses_no_process() -> None:
    send = replace(ACCEPTED, began_s=71, ended_s=72.5, process=STRUCK)
    assert judged(send).problems == []
    assert kinds(judged(replace(send, is_accepted=False, is_disconnected=True))) == ["error"]


def test_connections_of_the_struck_process_drop_soon_and_no_others_do() -> None:
    verdict = judged(drops=(ConnectionDrop(STRUCK, 55.2, ""),))
    assert (verdict.problems, verdict.drops) == ([], {FaultKind.STOPPED: 1})
    assert kinds(judged(drops=(ConnectionDrop(STRUCK, 56.2, ""),))) == ["late"]
    assert kinds(judged(drops=(ConnectionDrop(WELL, 55.2, ""),))) == ["dropped"]
    assert kinds(judged(drops=(ConnectionDrop(STRUCK, 72, ""),))) == ["dropped"]
    assert kinds(judged(drops=(ConnectionDrop(STRUCK, 65, ""),))) == ["dropped"]


def test_senders_are_back_soon() -> None:
    verdict = judged(returns=(Reconnection(55, 56.5),))
    assert (verdict.problems, verdict.longest_reconnection_s) == ([], 1.5)
    assert kinds(judged(returns=(Reconnection(55, 57.5),))) == ["back"]


def test_the_time_in_which_this_program_stood_still_is_nobodys() -> None:
    lag = LoopLag()
    lag.late_periods.append((55.5, 56.0))
    assert judged(replace(ACCEPTED, ended_s=56.4), lag=lag).problems == []
    assert kinds(judged(replace(ACCEPTED, ended_s=56.6), lag=lag)) == ["late"]


def test_what_the_machines_disk_did_not_keep_is_counted_apart(tmp_path: Path) -> None:
    refused = replace(ACCEPTED, is_accepted=False, refusal=f"amqp:internal-error: store 3: {DISK_TIMEOUT_TEXT} 2 s")
    assert kinds(judged(refused)) == ["error"]
    disk, ledger = DiskMonitor(tmp_path), ClusterChecker(random.Random(1))
    ledger.sends.append(refused)
    assert refused.ended_s is not None
    for silent_s, found in ((0.8, ["error"]), (1.8, [])):
        disk.slow_periods[:] = [(refused.ended_s - silent_s, refused.ended_s)]
        assert kinds(ResponseChecker([STOPPED, HANGING], STORES, LoopLag(), disk=disk).check(ledger, (), ())) == found


def delivery(since_s: float, *, fragment: int = 6, holder: int = WELL) -> Delivery:
    return Delivery(Copy(0, "loose", {"loose": (fragment << FRAGMENT_SHIFT) + 1}), 1, holder, since_s, since_s + 30)


@pytest.mark.parametrize(
    ("earlier", "is_fine"),
    [
        (delivery(49), False),
        (delivery(49, fragment=5), True),
        (delivery(49, holder=STRUCK), True),
        (delivery(58.5, fragment=5), False),
    ],
)
def test_two_hold_a_message_only_if_the_first_lock_was_struck(earlier: Delivery, *, is_fine: bool) -> None:
    ledger = ClusterChecker(random.Random(1))
    ledger.double_locks.append(DeliveryPair(earlier, delivery(60)))
    verdict = ResponseChecker([STOPPED, HANGING], STORES, LoopLag()).check(ledger, (), ())
    assert kinds(verdict) == ([] if is_fine else ["two holders"])


@pytest.mark.parametrize(
    ("since_s", "fragment", "is_fine"), [(69, 6, True), (69, 5, False), (49, 5, False), (75.5, 6, False)]
)
def test_a_link_gets_a_message_of_its_session_again_only_if_the_disk_was_struck(
    since_s: float, fragment: int, *, is_fine: bool
) -> None:
    ledger = ClusterChecker(random.Random(1))
    ledger.session_redeliveries.append(
        DeliveryPair(delivery(since_s, fragment=fragment), delivery(76, fragment=fragment))
    )
    verdict = ResponseChecker([STOPPED, HANGING], STORES, LoopLag()).check(ledger, (), ())
    assert kinds(verdict) == ([] if is_fine else ["order"])
