"""A link that takes any session waits in all fragments, gets one session of one, and leaves nothing in the others."""

from __future__ import annotations

from typing import Any

import pytest

from tests.broker.consumers import Answers, SessionConsumer
from tests.broker.messages import key_for, message
from tests.broker.rig import STORES, Rig
from twinbus.model.description import FRAGMENTS
from twinbus.model.errors import EntityDeleted, OperationTimeout, ServiceBusError, StoreUnavailable
from twinbus.model.partition_key import fragment_of
from twinbus.model.queue import QueueDescription
from twinbus.server.session_link import SESSION_FILTER, TIMEOUT, SessionLink

WITH_SESSIONS = QueueDescription(enable_partitioning=True, requires_session=True)


class FakeSource:
    def __init__(self, session: str | None) -> None:
        self.filter = {SESSION_FILTER: session}


class FakeAttach:
    snd_settle_mode = 2

    def __init__(self, session: str | None, timeout_ms: int | None) -> None:
        self.source = FakeSource(session)
        self.properties = {TIMEOUT: timeout_ms} if timeout_ms is not None else None


class Link(SessionLink):
    """On a connection that is not there."""

    def __init__(self, rig: Rig, session: str | None = None, timeout_ms: int | None = None) -> None:
        self.refusals: list[Any] = []
        self.seen: list[bytes] = []
        end = FakeEnd(self, FakeAttach(session, timeout_ms))
        super().__init__(
            end,  # type: ignore[arg-type]
            None,  # type: ignore[arg-type]
            "orders",
            rig.mains,
            rig.namespace,
            lambda *_: None,
        )

    @property
    def room(self) -> int:
        return 0

    @property
    def session(self) -> str | None:
        return self.hold.session.decode() if self.hold is not None else None


class FakeEnd:
    """The AMQP end of it."""

    credit = 0
    drain_requested = False
    is_attached = True

    def __init__(self, owner: Link, attach: FakeAttach) -> None:
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
    monkeypatch.setattr("twinbus.server.session_link.source_with", lambda *_: None)


def left_behind(rig: Rig) -> list[int]:
    """Fragments in which someone has a session, or waits for one."""
    return [main.number for main in rig.mains if main.sessions is not None and main.sessions.consumers]


def fill(rig: Rig, *sessions: str) -> None:
    rig.store_messages(*[message(name.encode(), session=name) for name in sessions])


def test_it_gets_a_session_of_whichever_fragment_has_one() -> None:
    rig = Rig(WITH_SESSIONS)
    fill(rig, key_for(11))
    link = Link(rig)
    rig.settle()
    assert link.session == key_for(11)
    assert left_behind(rig) == [11]


def test_sessions_in_all_fragments_are_given_to_as_many_links_and_none_to_two() -> None:
    rig = Rig(WITH_SESSIONS)
    names = [key_for(number, salt) for number in range(FRAGMENTS) for salt in range(2)]
    fill(rig, *names)
    links = [Link(rig) for _ in range(len(names) + 3)]
    rig.settle()
    assert sorted(link.session for link in links if link.session is not None) == sorted(names)
    for link in links:
        link.detached([])
    rig.settle()
    assert left_behind(rig) == []


def test_two_that_wait_and_one_session_that_comes() -> None:
    rig = Rig(WITH_SESSIONS)
    first, second = Link(rig), Link(rig)
    rig.settle()
    fill(rig, "s")
    assert [first.session, second.session] == ["s", None]
    first.detached([])
    rig.settle()
    assert second.session == "s"
    assert left_behind(rig) == [fragment_of(b"s")]


@pytest.mark.parametrize("steps", range(12))
def test_who_gives_up_while_sessions_are_being_looked_at_leaves_none_locked(steps: int) -> None:
    rig = Rig(WITH_SESSIONS)
    names = [key_for(number) for number in range(FRAGMENTS)]
    fill(rig, *names)
    link = Link(rig)
    for _ in range(steps):
        rig.step()
    link.detached([])
    rig.settle()
    assert left_behind(rig) == []
    others = [Link(rig) for _ in names]
    rig.settle()
    assert sorted(str(other.session) for other in others) == sorted(names)


@pytest.mark.parametrize("steps", range(0, 40, 3))
def test_the_session_of_one_who_gives_up_goes_to_one_who_waits(steps: int) -> None:
    rig = Rig(WITH_SESSIONS)
    fill(rig, "s")
    impatient, patient = Link(rig), Link(rig)
    for _ in range(steps):
        rig.step()
    impatient.detached([])
    rig.settle()
    assert patient.session == "s"
    assert left_behind(rig) == [fragment_of(b"s")]


def test_a_session_that_is_only_looked_at_is_had_by_who_names_it() -> None:
    rig = Rig(WITH_SESSIONS)
    fill(rig, "s")
    anyone = Link(rig)
    named = Link(rig, "s")
    rig.settle()
    assert named.session == "s"
    assert anyone.session is None
    fill(rig, "t")
    assert anyone.session == "t"


def test_nobody_waits_longer_than_asked_and_then_nowhere() -> None:
    rig = Rig(WITH_SESSIONS)
    link = Link(rig, timeout_ms=5_000)
    rig.settle()
    rig.wait(4.9)
    assert not link.refusals
    rig.wait(0.2)
    (refusal,) = link.refusals
    assert refusal.condition == OperationTimeout.condition
    assert left_behind(rig) == []


def test_with_all_stores_down_it_is_refused_and_with_some_it_waits_in_all() -> None:
    rig = Rig(WITH_SESSIONS)
    in_store_0 = key_for(0)
    fill(rig, in_store_0)
    rig.break_down(*range(STORES))
    with pytest.raises(StoreUnavailable):
        Link(rig)
    rig.recover()
    rig.break_down(0)
    link = Link(rig)
    rig.settle()
    assert link.session is None
    rig.recover()
    assert link.session == in_store_0


def test_a_store_that_fails_while_its_session_is_looked_at_does_not_end_the_wait() -> None:
    rig = Rig(WITH_SESSIONS)
    name = key_for(0)
    fill(rig, name)
    link = Link(rig)
    rig.break_down(0)
    before = link.session
    fill(rig, key_for(1))
    assert [before, link.session] == [None, key_for(1)]
    rig.recover()
    other = Link(rig)
    rig.settle()
    assert other.session == name


def test_who_waits_in_a_queue_that_is_deleted_is_told_once() -> None:
    rig = Rig(WITH_SESSIONS)
    fill(rig, "s")
    waiting, having = Link(rig), Link(rig)
    rig.settle()
    rig.namespace.remove("orders")
    for link in (waiting, having):
        (refusal,) = link.refusals
        assert refusal.condition == EntityDeleted.condition


def test_links_that_take_one_session_and_go_take_it_from_all_fragments() -> None:
    rig = Rig(WITH_SESSIONS)
    fill(rig, *[key_for(number) for number in range(FRAGMENTS)])
    seen = []
    for _ in range(FRAGMENTS):
        link = Link(rig)
        rig.settle()
        assert link.session is not None
        seen.append(fragment_of(link.session.encode()))
        link.detached([])
        rig.settle()
    assert len(set(seen)) >= STORES
    assert max(seen.count(number) for number in seen) <= FRAGMENTS // STORES


def test_r113_the_messages_of_a_session_are_in_order_though_others_come_between_and_the_store_fails() -> None:
    rig = Rig(WITH_SESSIONS)
    answers: list[Answers] = []
    expected: list[bytes] = []
    for number in range(30):
        if number == 10:
            rig.fail(fragment_of(b"s") % STORES)
        try:
            answers.append(
                rig.send_messages(message(b"%d" % number, session="s"), message(b"x", session=f"other-{number}"))
            )
        except ServiceBusError:
            rig.recover()
            continue
        rig.settle()
        if answers[-1] == [None]:
            expected.append(b"%d" % number)
        else:
            rig.recover()
    main = rig.mains[fragment_of(b"s")]
    consumer = SessionConsumer(main, session=b"s")
    consumer.grant(100)
    rig.settle()
    stored = [body for body in consumer.bodies if body in expected]
    assert stored == expected
    assert len(expected) >= 20
