"""ResponseChecker: late responses and errors are problems, unless a fault excuses them."""

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

FAULTY, HEALTHY = 100, 101
STORES = 4
UNAVAILABLE = "amqp:internal-error: store 1 is unavailable"
STOPPED = Fault(FaultKind.STOPPED, FAULTY, frozenset({1}), began_s=50, detected_s=55, ended_s=55, recovered_s=58)
HANGING = Fault(FaultKind.HANGING, None, frozenset({2}), began_s=70, detected_s=72, ended_s=74, recovered_s=75)
ACCEPTED = SendRecord(0, Stream("loose-0", "loose"), None, None, HEALTHY, 51, 55.9, is_accepted=True)
KEYED = replace(ACCEPTED, stream=Stream("keyed-0", "keyed", has_keys=True), key="k", fragment=6)


def check(
    *sends: SendRecord,
    drops: tuple[ConnectionDrop, ...] = (),
    returns: tuple[Reconnection, ...] = (),
    lag: LoopLag | None = None,
) -> ResponseReport:
    checker = ClusterChecker(random.Random(1))
    checker.sends += sends
    return ResponseChecker([STOPPED, HANGING], STORES, lag or LoopLag()).check(checker, drops, returns)


def problem_kinds(verdict: ResponseReport) -> list[str]:
    return [problem.partition(":")[0] for problem in verdict.problems]


@pytest.mark.parametrize("send", [ACCEPTED, KEYED, replace(KEYED, fragment=5)])
def test_a_response_within_a_second_of_the_detection_is_in_time(send: SendRecord) -> None:
    assert check(send).problems == []
    assert problem_kinds(check(replace(send, ended_s=56.1))) == ["late"]
    assert check(replace(send, began_s=57, ended_s=57.9)).problems == []
    assert problem_kinds(check(replace(send, began_s=57, ended_s=58.1))) == ["late"]


def test_a_send_without_a_response_is_late() -> None:
    assert problem_kinds(check(replace(ACCEPTED, is_accepted=False, ended_s=None))) == ["late"]


def test_errors_are_allowed_for_keys_of_affected_fragments_only() -> None:
    refused = replace(KEYED, is_accepted=False, refusal=UNAVAILABLE)
    assert problem_kinds(check(refused)) == ["error"]
    assert problem_kinds(check(replace(refused, key=None, fragment=None))) == ["error"]
    affected = replace(refused, fragment=5)
    assert check(affected).problems == []
    assert problem_kinds(check(replace(affected, refusal="amqp:not-found: it is gone"))) == ["error"]


def test_sends_through_the_faulty_process_may_be_cut_off() -> None:
    cut_off = replace(ACCEPTED, is_accepted=False, is_disconnected=True)
    assert problem_kinds(check(cut_off)) == ["error"]
    verdict = check(replace(cut_off, process=FAULTY))
    assert verdict.problems == []
    assert verdict.figures[FaultKind.STOPPED, SendClass.FAULTY_PROCESS].cut_off == 1


def test_an_unknown_process_counts_as_the_faulty_one() -> None:
    cut_off = replace(ACCEPTED, is_accepted=False, is_disconnected=True, process=UNKNOWN_PROCESS)
    assert check(cut_off).problems == []
    assert problem_kinds(check(replace(cut_off, began_s=71, ended_s=72.5))) == ["error"]
    assert problem_kinds(check(replace(cut_off, began_s=60, ended_s=60.1))) == ["error"]


def test_an_error_without_a_fault_is_a_problem() -> None:
    assert problem_kinds(check(replace(KEYED, began_s=60, ended_s=60.1, is_accepted=False, refusal=UNAVAILABLE))) == [
        "error"
    ]


def test_a_disk_fault_does_not_excuse_a_cut_off_send() -> None:
    send = replace(ACCEPTED, began_s=71, ended_s=72.5, process=FAULTY)
    assert check(send).problems == []
    assert problem_kinds(check(replace(send, is_accepted=False, is_disconnected=True))) == ["error"]


def test_only_connections_of_the_faulty_process_may_end_and_they_end_soon() -> None:
    verdict = check(drops=(ConnectionDrop(FAULTY, 55.2, ""),))
    assert (verdict.problems, verdict.drops) == ([], {FaultKind.STOPPED: 1})
    assert problem_kinds(check(drops=(ConnectionDrop(FAULTY, 56.2, ""),))) == ["late"]
    assert problem_kinds(check(drops=(ConnectionDrop(HEALTHY, 55.2, ""),))) == ["dropped"]
    assert problem_kinds(check(drops=(ConnectionDrop(FAULTY, 72, ""),))) == ["dropped"]
    assert problem_kinds(check(drops=(ConnectionDrop(FAULTY, 65, ""),))) == ["dropped"]


def test_a_late_reconnection_of_a_sender_is_a_problem() -> None:
    verdict = check(returns=(Reconnection(55, 56.5),))
    assert (verdict.problems, verdict.longest_reconnection_s) == ([], 1.5)
    assert problem_kinds(check(returns=(Reconnection(55, 57.5),))) == ["back"]


def test_time_in_which_this_program_did_not_run_does_not_count() -> None:
    lag = LoopLag()
    lag.late_periods.append((55.5, 56.0))
    assert check(replace(ACCEPTED, ended_s=56.4), lag=lag).problems == []
    assert problem_kinds(check(replace(ACCEPTED, ended_s=56.6), lag=lag)) == ["late"]


def test_refusals_due_to_the_machines_own_disk_are_counted_separately(tmp_path: Path) -> None:
    refused = replace(ACCEPTED, is_accepted=False, refusal=f"amqp:internal-error: store 3: {DISK_TIMEOUT_TEXT} 2 s")
    assert problem_kinds(check(refused)) == ["error"]
    disk, checker = DiskMonitor(tmp_path), ClusterChecker(random.Random(1))
    checker.sends.append(refused)
    assert refused.ended_s is not None
    for silent_s, expected in ((0.8, ["error"]), (1.8, [])):
        disk.slow_periods[:] = [(refused.ended_s - silent_s, refused.ended_s)]
        assert (
            problem_kinds(ResponseChecker([STOPPED, HANGING], STORES, LoopLag(), disk=disk).check(checker, (), ()))
            == expected
        )


def delivery(since_s: float, *, fragment: int = 6, holder: int = HEALTHY) -> Delivery:
    return Delivery(Copy(0, "loose", {"loose": (fragment << FRAGMENT_SHIFT) + 1}), 1, holder, since_s, since_s + 30)


@pytest.mark.parametrize(
    ("earlier", "is_fine"),
    [
        (delivery(49), False),
        (delivery(49, fragment=5), True),
        (delivery(49, holder=FAULTY), True),
        (delivery(58.5, fragment=5), False),
    ],
)
def test_two_receivers_hold_a_message_only_after_a_fault_of_the_first_lock(earlier: Delivery, *, is_fine: bool) -> None:
    checker = ClusterChecker(random.Random(1))
    checker.double_locks.append(DeliveryPair(earlier, delivery(60)))
    verdict = ResponseChecker([STOPPED, HANGING], STORES, LoopLag()).check(checker, (), ())
    assert problem_kinds(verdict) == ([] if is_fine else ["two holders"])


@pytest.mark.parametrize(
    ("since_s", "fragment", "is_fine"), [(69, 6, True), (69, 5, False), (49, 5, False), (75.5, 6, False)]
)
def test_a_link_gets_a_session_message_again_only_after_a_disk_fault(
    since_s: float, fragment: int, *, is_fine: bool
) -> None:
    checker = ClusterChecker(random.Random(1))
    checker.session_redeliveries.append(
        DeliveryPair(delivery(since_s, fragment=fragment), delivery(76, fragment=fragment))
    )
    verdict = ResponseChecker([STOPPED, HANGING], STORES, LoopLag()).check(checker, (), ())
    assert problem_kinds(verdict) == ([] if is_fine else ["order"])
