"""A link that takes any session waits in all fragments, gets one session of one, and leaves nothing in the others."""

from __future__ import annotations

from typing import Any

import pytest

from tests.broker.consumers import FakeSessionConsumer, Results
from tests.broker.harness import STORES, BrokerHarness
from tests.broker.messages import key_for_fragment, message
from twinbus.model.description import FRAGMENT_COUNT
from twinbus.model.errors import EntityDeleted, OperationTimeout, ServiceBusError, StoreUnavailable
from twinbus.model.partition_key import fragment_of
from twinbus.model.queue import QueueDescription
from twinbus.server.amqp.session_link import SESSION_FILTER, TIMEOUT_PROPERTY, SessionLink

WITH_SESSIONS = QueueDescription(enable_partitioning=True, requires_session=True)


class FakeSource:
    def __init__(self, session: str | None) -> None:
        self.filter = {SESSION_FILTER: session}


class FakeAttach:
    snd_settle_mode = 2

    def __init__(self, session: str | None, timeout_ms: int | None) -> None:
        self.source = FakeSource(session)
        self.properties = {TIMEOUT_PROPERTY: timeout_ms} if timeout_ms is not None else None


class FakeSessionLink(SessionLink):
    """On a connection that is not there."""

    def __init__(self, harness: BrokerHarness, session: str | None = None, timeout_ms: int | None = None) -> None:
        self.refusals: list[Any] = []
        self.delivered: list[bytes] = []
        end = FakeLinkEnd(self, FakeAttach(session, timeout_ms))
        super().__init__(
            end,  # type: ignore[arg-type]
            None,  # type: ignore[arg-type]
            "orders",
            harness.main_fragments,
            harness.namespace,
            lambda *_: None,
        )

    @property
    def available_credit(self) -> int:
        return 0

    @property
    def session(self) -> str | None:
        return self.session_lock.session_id.decode() if self.session_lock is not None else None


class FakeLinkEnd:
    """The AMQP end of it."""

    credit = 0
    drain_requested = False
    is_attached = True

    def __init__(self, owner: FakeSessionLink, attach: FakeAttach) -> None:
        self._owner = owner
        self.remote_attach = attach

    def accept(self, **_said: object) -> None:
        assert not self._owner.refusals

    def refuse(self, error: object) -> None:
        self._owner.refusals.append(error)

    def detach(self, *, error: object) -> None:
        self._owner.refusals.append(error)

    def unsettled(self) -> list[object]:
        return []


@pytest.fixture(autouse=True)
def _no_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twinbus.server.amqp.session_link.accepted_source", lambda *_: None)


def left_behind(harness: BrokerHarness) -> list[int]:
    """Fragments in which someone has a session, or waits for one."""
    return [main.number for main in harness.main_fragments if main.sessions is not None and main.sessions.consumers]


def fill(harness: BrokerHarness, *sessions: str) -> None:
    harness.store_messages(*[message(name.encode(), session=name) for name in sessions])


def test_it_gets_a_session_of_whichever_fragment_has_one() -> None:
    rig = BrokerHarness(WITH_SESSIONS)
    fill(rig, key_for_fragment(11))
    link = FakeSessionLink(rig)
    rig.run_until_idle()
    assert link.session == key_for_fragment(11)
    assert left_behind(rig) == [11]


def test_sessions_in_all_fragments_are_given_to_as_many_links_and_none_to_two() -> None:
    rig = BrokerHarness(WITH_SESSIONS)
    names = [key_for_fragment(number, salt) for number in range(FRAGMENT_COUNT) for salt in range(2)]
    fill(rig, *names)
    links = [FakeSessionLink(rig) for _ in range(len(names) + 3)]
    rig.run_until_idle()
    assert sorted(link.session for link in links if link.session is not None) == sorted(names)
    for link in links:
        link.on_detached([])
    rig.run_until_idle()
    assert left_behind(rig) == []


def test_two_that_wait_and_one_session_that_comes() -> None:
    rig = BrokerHarness(WITH_SESSIONS)
    first, second = FakeSessionLink(rig), FakeSessionLink(rig)
    rig.run_until_idle()
    fill(rig, "s")
    assert [first.session, second.session] == ["s", None]
    first.on_detached([])
    rig.run_until_idle()
    assert second.session == "s"
    assert left_behind(rig) == [fragment_of(b"s")]


@pytest.mark.parametrize("steps", range(12))
def test_who_gives_up_while_sessions_are_being_looked_at_leaves_none_locked(steps: int) -> None:
    rig = BrokerHarness(WITH_SESSIONS)
    names = [key_for_fragment(number) for number in range(FRAGMENT_COUNT)]
    fill(rig, *names)
    link = FakeSessionLink(rig)
    for _ in range(steps):
        rig.step()
    link.on_detached([])
    rig.run_until_idle()
    assert left_behind(rig) == []
    others = [FakeSessionLink(rig) for _ in names]
    rig.run_until_idle()
    assert sorted(str(other.session) for other in others) == sorted(names)


@pytest.mark.parametrize("steps", range(0, 40, 3))
def test_the_session_of_one_who_gives_up_goes_to_one_who_waits(steps: int) -> None:
    rig = BrokerHarness(WITH_SESSIONS)
    fill(rig, "s")
    impatient, patient = FakeSessionLink(rig), FakeSessionLink(rig)
    for _ in range(steps):
        rig.step()
    impatient.on_detached([])
    rig.run_until_idle()
    assert patient.session == "s"
    assert left_behind(rig) == [fragment_of(b"s")]


def test_a_session_that_is_only_looked_at_is_had_by_who_names_it() -> None:
    rig = BrokerHarness(WITH_SESSIONS)
    fill(rig, "s")
    anyone = FakeSessionLink(rig)
    named = FakeSessionLink(rig, "s")
    rig.run_until_idle()
    assert named.session == "s"
    assert anyone.session is None
    fill(rig, "t")
    assert anyone.session == "t"


def test_nobody_waits_longer_than_asked_and_then_nowhere() -> None:
    rig = BrokerHarness(WITH_SESSIONS)
    link = FakeSessionLink(rig, timeout_ms=5_000)
    rig.run_until_idle()
    rig.advance(4.9)
    assert not link.refusals
    rig.advance(0.2)
    (refusal,) = link.refusals
    assert refusal.condition == OperationTimeout.condition
    assert left_behind(rig) == []


def test_with_all_stores_down_it_is_refused_and_with_some_it_waits_in_all() -> None:
    rig = BrokerHarness(WITH_SESSIONS)
    in_store_0 = key_for_fragment(0)
    fill(rig, in_store_0)
    rig.fail_stores(*range(STORES))
    with pytest.raises(StoreUnavailable):
        FakeSessionLink(rig)
    rig.recover()
    rig.fail_stores(0)
    link = FakeSessionLink(rig)
    rig.run_until_idle()
    assert link.session is None
    rig.recover()
    assert link.session == in_store_0


def test_a_store_that_fails_while_its_session_is_looked_at_does_not_end_the_wait() -> None:
    rig = BrokerHarness(WITH_SESSIONS)
    name = key_for_fragment(0)
    fill(rig, name)
    link = FakeSessionLink(rig)
    rig.fail_stores(0)
    before = link.session
    fill(rig, key_for_fragment(1))
    assert [before, link.session] == [None, key_for_fragment(1)]
    rig.recover()
    other = FakeSessionLink(rig)
    rig.run_until_idle()
    assert other.session == name


def test_who_waits_in_a_queue_that_is_deleted_is_told_once() -> None:
    rig = BrokerHarness(WITH_SESSIONS)
    fill(rig, "s")
    waiting, having = FakeSessionLink(rig), FakeSessionLink(rig)
    rig.run_until_idle()
    rig.namespace.remove("orders")
    for link in (waiting, having):
        (refusal,) = link.refusals
        assert refusal.condition == EntityDeleted.condition


def test_links_that_take_one_session_and_go_take_it_from_all_fragments() -> None:
    rig = BrokerHarness(WITH_SESSIONS)
    fill(rig, *[key_for_fragment(number) for number in range(FRAGMENT_COUNT)])
    seen = []
    for _ in range(FRAGMENT_COUNT):
        link = FakeSessionLink(rig)
        rig.run_until_idle()
        assert link.session is not None
        seen.append(fragment_of(link.session.encode()))
        link.on_detached([])
        rig.run_until_idle()
    assert len(set(seen)) >= STORES
    assert max(seen.count(number) for number in seen) <= FRAGMENT_COUNT // STORES


def test_r113_the_messages_of_a_session_are_in_order_though_others_come_between_and_the_store_fails() -> None:
    rig = BrokerHarness(WITH_SESSIONS)
    answers: list[Results] = []
    expected: list[bytes] = []
    for number in range(30):
        if number == 10:
            rig.fail_next_sync(fragment_of(b"s") % STORES)
        try:
            answers.append(
                rig.send_messages(message(b"%d" % number, session="s"), message(b"x", session=f"other-{number}"))
            )
        except ServiceBusError:
            rig.recover()
            continue
        rig.run_until_idle()
        if answers[-1] == [None]:
            expected.append(b"%d" % number)
        else:
            rig.recover()
    main = rig.main_fragments[fragment_of(b"s")]
    consumer = FakeSessionConsumer(main, session=b"s")
    consumer.grant(100)
    rig.run_until_idle()
    stored = [body for body in consumer.bodies if body in expected]
    assert stored == expected
    assert len(expected) >= 20
