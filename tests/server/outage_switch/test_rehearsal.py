"""A rehearsal tells who failed over and who came back, and its outage is over when it is, whatever ends it."""

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
    """Both namespaces, the senders, and a clock: each sleep is a step of it."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.calls: list[tuple[str, dict[str, object]]] = []
        self.failures: dict[str, BaseException] = {}
        """By methods."""
        self.failed_over: Callable[[float], dict[str, list[str]]] = lambda _: {"a": []}
        """Which entities each sender has failed over, so many seconds after the beginning; with `?`, holds suspect."""

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
        seen = rehearsal.observer.records.values()
        return [(one.client, one.path, one.failed_over_s, one.recovered_s) for one in seen]


def test_who_fails_over_and_comes_back_is_told_with_the_times() -> None:
    world = FakePairService()
    world.failed_over = lambda elapsed_s: {
        "a": ["orders"] if 3 <= elapsed_s < 13 else [],
        "b": ["orders"] if 5 <= elapsed_s < 12 else [],
        "c": [],
    }
    rehearsal = world.rehearse()
    assert world.run(rehearsal) == [("a", "orders", 3.0, 13.0), ("b", "orders", 5.0, 12.0)]
    assert {client for _, client, _ in rehearsal.observer.senders} == {"a", "b", "c"}
    assert all("cannot be reached" in one.reason for one in rehearsal.observer.records.values())
    assert world.calls == [
        ("PUT", {"path": "orders", "seconds": "10", "kind": "refuse"}),
        ("DELETE", {"path": "orders"}),
    ]


def test_it_does_not_wait_for_ever_for_who_does_not_come_back() -> None:
    world = FakePairService()
    world.failed_over = lambda elapsed_s: {"a": ["orders"] if elapsed_s >= 3 else []}
    assert world.run(world.rehearse()) == [("a", "orders", 3.0, None)]
    assert world.now_s == 100 + SECONDS + 12, "two ping intervals, and two looks"


def test_an_entity_that_is_only_suspect_has_not_failed_over_and_is_not_waited_for() -> None:
    world = FakePairService()
    world.failed_over = lambda elapsed_s: {
        "a": ["orders"] if elapsed_s >= 6 else (["orders?"] if elapsed_s >= 1 else []),
        "b": ["orders?"] if elapsed_s >= 2 else [],
    }
    rehearsal = world.rehearse(seconds=8)
    assert world.run(rehearsal) == [("a", "orders", 6.0, None), ("b", "orders", None, None)]
    assert [one.suspected_s for one in rehearsal.observer.records.values()] == [1.0, 2.0]
    world.now_s, world.failed_over = 100.0, lambda elapsed_s: {"b": ["orders?"] if elapsed_s >= 2 else []}
    assert world.run(world.rehearse()) == [("b", "orders", None, None)]
    assert world.now_s == 100 + SECONDS


def test_other_entities_are_none_of_its_business_and_neither_is_what_was_down_before() -> None:
    world = FakePairService()
    world.failed_over = lambda elapsed_s: {"a": ["old", "other", "ORDERS"] if 1 <= elapsed_s < 12 else ["old"]}
    assert world.run(world.rehearse()) == [("a", "ORDERS", 1.0, 12.0)]
    world.now_s = 100.0
    assert world.run(world.rehearse(ALL_ENTITIES)) == [("a", "other", 1.0, 12.0), ("a", "ORDERS", 1.0, 12.0)]


def test_a_sender_that_has_ended_has_not_come_back_and_is_not_waited_for() -> None:
    world = FakePairService()
    world.failed_over = lambda elapsed_s: (
        {"a": ["orders"]} if 1 <= elapsed_s < 5 else ({"a": []} if elapsed_s < 1 else {})
    )
    rehearsal = world.rehearse()
    assert world.run(rehearsal) == [("a", "orders", 1.0, None)]
    assert [one.sender_ended_s for one in rehearsal.observer.records.values()] == [5.0]
    assert world.now_s == 100 + SECONDS


def test_a_sender_that_ends_while_it_is_waited_for_is_waited_for_no_longer() -> None:
    world = FakePairService()
    world.failed_over = lambda elapsed_s: {"a": ["orders"] if elapsed_s >= 1 else []} if elapsed_s < 14 else {}
    assert world.run(world.rehearse()) == [("a", "orders", 1.0, None)]
    assert world.now_s == 100 + 14


def test_without_a_secondary_there_is_an_outage_and_nobody_is_seen() -> None:
    world = FakePairService()
    assert world.run(world.rehearse(is_paired=False, seconds=2.5)) == []
    assert world.now_s == 102.5
    assert not world.is_on


@pytest.mark.parametrize("interruption", [KeyboardInterrupt(), RuntimeError("whatever")], ids=repr)
def test_whatever_ends_it_early_ends_the_outage(interruption: BaseException) -> None:
    world = FakePairService()

    def interrupt(_stage: str, elapsed_s: float) -> None:
        if elapsed_s >= 2:
            raise interruption

    with pytest.raises(type(interruption)):
        world.rehearse().run(interrupt)
    assert [method for method, _ in world.calls] == ["PUT", "DELETE"]


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), AdminRequestFailed("no answer")], ids=repr)
def test_one_that_may_have_begun_is_ended(failure: BaseException) -> None:
    world = FakePairService()
    world.failures["PUT"] = failure
    with pytest.raises(type(failure)):
        world.run(world.rehearse())
    assert [method for method, _ in world.calls] == ["PUT", "DELETE"]


def test_one_that_cannot_be_ended_says_when_it_ends_by_itself() -> None:
    world = FakePairService()
    world.failures["DELETE"] = AdminRequestFailed("no answer")
    with pytest.raises(AdminRequestFailed, match=r"was not switched off .*ends by itself after 10 s"):
        world.run(world.rehearse())


def test_a_secondary_that_fails_for_a_moment_does_not_end_it() -> None:
    world = FakePairService()
    seen: list[float] = []

    def fail_for_a_while(_stage: str, elapsed_s: float) -> None:
        seen.append(elapsed_s)
        if 2 <= elapsed_s < 5:
            world.failures["GET"] = AdminRequestFailed("not now")
        else:
            world.failures.pop("GET", None)

    world.rehearse().run(fail_for_a_while)
    assert seen[-1] == SECONDS
