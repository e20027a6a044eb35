"""A rehearsal reports which senders failed over and recovered, and always ends its outage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.server.paired_clients.client_reports import report_of
from twinbus.cli.admin_client import AdminClient, AdminRequestFailed
from twinbus.cli.rehearse import Rehearsal
from twinbus.model.outage import ALL_ENTITIES

if TYPE_CHECKING:
    from collections.abc import Callable

SECONDS = 10.0
PING_S = 5.0


class FakePairService(AdminClient):
    """Both namespaces, the senders, and a clock that each sleep advances."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.calls: list[tuple[str, dict[str, object]]] = []
        self.failures: dict[str, BaseException] = {}
        """The errors to raise, by HTTP method."""
        self.failed_over: Callable[[float], dict[str, list[str]]] = lambda _: {"a": []}
        """The entities that each sender has failed over after so many seconds; a trailing `?` means suspect."""

    @property
    def is_on(self) -> bool:
        switched = [method for method, _ in self.calls if method in ("PUT", "DELETE")]
        return bool(switched) and switched[-1] == "PUT"

    def request(self, method: str, resource: str, **query: object) -> dict[str, Any]:
        if resource == "$outage":
            self.calls.append((method, query))
        if method in self.failures:
            raise self.failures[method]
        if resource != "$pairing":
            return {}
        return {
            "reports": [self._report(client, paths) for client, paths in self.failed_over(self.now_s - 100).items()]
        }

    def _report(self, client: str, paths: list[str]) -> dict[str, Any]:
        failed_over = [path for path in paths if not path.endswith("?")]
        suspect = [path.rstrip("?") for path in paths if path.endswith("?")]
        return report_of(client, failed_over=failed_over, suspect=suspect, ping_interval_s=PING_S)

    def sleep(self, seconds: float) -> None:
        assert 0 < seconds <= 1
        self.now_s += seconds

    def rehearse(self, path: str = "orders", *, seconds: float = SECONDS, is_paired: bool = True) -> Rehearsal:
        secondary = self if is_paired else None
        return Rehearsal(
            self, secondary, path, kind="refuse", seconds=seconds, sleep=self.sleep, now_s=lambda: self.now_s
        )

    def run(self, rehearsal: Rehearsal) -> list[tuple[str, str, float | None, float | None]]:
        rehearsal.run(lambda _stage, _elapsed_s: None)
        records = rehearsal.observer.records.values()
        return [(record.client, record.path, record.failed_over_s, record.recovered_s) for record in records]


def test_failovers_and_recoveries_are_reported_with_their_times() -> None:
    pair = FakePairService()
    pair.failed_over = lambda elapsed_s: {
        "a": ["orders"] if 3 <= elapsed_s < 13 else [],
        "b": ["orders"] if 5 <= elapsed_s < 12 else [],
        "c": [],
    }
    rehearsal = pair.rehearse()
    assert pair.run(rehearsal) == [("a", "orders", 3.0, 13.0), ("b", "orders", 5.0, 12.0)]
    assert {client for _, client, _ in rehearsal.observer.senders} == {"a", "b", "c"}
    assert all("cannot be reached" in record.reason for record in rehearsal.observer.records.values())
    assert pair.calls == [
        ("PUT", {"path": "orders", "seconds": "10", "kind": "refuse"}),
        ("DELETE", {"path": "orders"}),
    ]


def test_the_wait_for_a_sender_that_does_not_recover_is_limited() -> None:
    pair = FakePairService()
    pair.failed_over = lambda elapsed_s: {"a": ["orders"] if elapsed_s >= 3 else []}
    assert pair.run(pair.rehearse()) == [("a", "orders", 3.0, None)]
    assert pair.now_s == 100 + SECONDS + 12, "two ping intervals, and two looks"


def test_a_suspect_entity_has_not_failed_over_and_its_recovery_is_not_awaited() -> None:
    pair = FakePairService()
    pair.failed_over = lambda elapsed_s: {
        "a": ["orders"] if elapsed_s >= 6 else (["orders?"] if elapsed_s >= 1 else []),
        "b": ["orders?"] if elapsed_s >= 2 else [],
    }
    rehearsal = pair.rehearse(seconds=8)
    assert pair.run(rehearsal) == [("a", "orders", 6.0, None), ("b", "orders", None, None)]
    assert [record.suspected_s for record in rehearsal.observer.records.values()] == [1.0, 2.0]
    pair.now_s, pair.failed_over = 100.0, lambda elapsed_s: {"b": ["orders?"] if elapsed_s >= 2 else []}
    assert pair.run(pair.rehearse()) == [("b", "orders", None, None)]
    assert pair.now_s == 100 + SECONDS


def test_other_entities_and_earlier_failovers_are_not_reported() -> None:
    pair = FakePairService()
    pair.failed_over = lambda elapsed_s: {"a": ["old", "other", "ORDERS"] if 1 <= elapsed_s < 12 else ["old"]}
    assert pair.run(pair.rehearse()) == [("a", "ORDERS", 1.0, 12.0)]
    pair.now_s = 100.0
    assert pair.run(pair.rehearse(ALL_ENTITIES)) == [("a", "other", 1.0, 12.0), ("a", "ORDERS", 1.0, 12.0)]


def test_a_sender_that_closed_has_not_recovered_and_is_not_awaited() -> None:
    pair = FakePairService()
    pair.failed_over = lambda elapsed_s: (
        {"a": ["orders"]} if 1 <= elapsed_s < 5 else ({"a": []} if elapsed_s < 1 else {})
    )
    rehearsal = pair.rehearse()
    assert pair.run(rehearsal) == [("a", "orders", 1.0, None)]
    assert [record.sender_ended_s for record in rehearsal.observer.records.values()] == [5.0]
    assert pair.now_s == 100 + SECONDS


def test_the_wait_for_recovery_ends_when_the_sender_closes() -> None:
    pair = FakePairService()
    pair.failed_over = lambda elapsed_s: {"a": ["orders"] if elapsed_s >= 1 else []} if elapsed_s < 14 else {}
    assert pair.run(pair.rehearse()) == [("a", "orders", 1.0, None)]
    assert pair.now_s == 100 + 14


def test_without_a_secondary_the_outage_happens_and_no_sender_is_reported() -> None:
    pair = FakePairService()
    assert pair.run(pair.rehearse(is_paired=False, seconds=2.5)) == []
    assert pair.now_s == 102.5
    assert not pair.is_on


@pytest.mark.parametrize("interruption", [KeyboardInterrupt(), RuntimeError("whatever")], ids=repr)
def test_an_interrupted_rehearsal_ends_its_outage(interruption: BaseException) -> None:
    pair = FakePairService()

    def interrupt(_stage: str, elapsed_s: float) -> None:
        if elapsed_s >= 2:
            raise interruption

    with pytest.raises(type(interruption)):
        pair.rehearse().run(interrupt)
    assert [method for method, _ in pair.calls] == ["PUT", "DELETE"]


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), AdminRequestFailed("no answer")], ids=repr)
def test_an_outage_whose_start_failed_is_ended_anyway(failure: BaseException) -> None:
    pair = FakePairService()
    pair.failures["PUT"] = failure
    with pytest.raises(type(failure)):
        pair.run(pair.rehearse())
    assert [method for method, _ in pair.calls] == ["PUT", "DELETE"]


def test_if_the_outage_cannot_be_ended_the_error_says_when_it_ends_by_itself() -> None:
    pair = FakePairService()
    pair.failures["DELETE"] = AdminRequestFailed("no answer")
    with pytest.raises(AdminRequestFailed, match=r"was not switched off .*ends by itself after 10 s"):
        pair.run(pair.rehearse())


def test_a_brief_failure_of_the_secondary_does_not_end_the_rehearsal() -> None:
    pair = FakePairService()
    times_s: list[float] = []

    def fail_for_a_while(_stage: str, elapsed_s: float) -> None:
        times_s.append(elapsed_s)
        if 2 <= elapsed_s < 5:
            pair.failures["GET"] = AdminRequestFailed("not now")
        else:
            pair.failures.pop("GET", None)

    pair.rehearse().run(fail_for_a_while)
    assert times_s[-1] == SECONDS
