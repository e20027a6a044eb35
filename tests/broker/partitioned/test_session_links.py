"""A link for any session waits in all fragments, gets one session, and leaves nothing in the other fragments."""

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
    """A session link without a connection."""

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
    """The AMQP end of a session link."""

    credit = 0
    drain_requested = False
    is_attached = True

    def __init__(self, owner: FakeSessionLink, attach: FakeAttach) -> None:
        self._owner = owner
        self.remote_attach = attach

    def accept(self, **_fields: object) -> None:
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


def occupied_fragments(harness: BrokerHarness) -> list[int]:
    """Return the fragments in which a link has a session or waits for one."""
    return [main.number for main in harness.main_fragments if main.sessions is not None and main.sessions.consumers]


def fill(harness: BrokerHarness, *sessions: str) -> None:
    harness.store_messages(*[message(name.encode(), session=name) for name in sessions])


def test_a_link_gets_a_session_of_any_fragment() -> None:
    harness = BrokerHarness(WITH_SESSIONS)
    fill(harness, key_for_fragment(11))
    link = FakeSessionLink(harness)
    harness.run_until_idle()
    assert link.session == key_for_fragment(11)
    assert occupied_fragments(harness) == [11]


def test_each_session_is_granted_to_one_link() -> None:
    harness = BrokerHarness(WITH_SESSIONS)
    names = [key_for_fragment(number, salt) for number in range(FRAGMENT_COUNT) for salt in range(2)]
    fill(harness, *names)
    links = [FakeSessionLink(harness) for _ in range(len(names) + 3)]
    harness.run_until_idle()
    assert sorted(link.session for link in links if link.session is not None) == sorted(names)
    for link in links:
        link.on_detached([])
    harness.run_until_idle()
    assert occupied_fragments(harness) == []


def test_of_two_waiting_links_one_gets_a_new_session() -> None:
    harness = BrokerHarness(WITH_SESSIONS)
    first, second = FakeSessionLink(harness), FakeSessionLink(harness)
    harness.run_until_idle()
    fill(harness, "s")
    assert [first.session, second.session] == ["s", None]
    first.on_detached([])
    harness.run_until_idle()
    assert second.session == "s"
    assert occupied_fragments(harness) == [fragment_of(b"s")]


@pytest.mark.parametrize("steps", range(12))
def test_a_link_that_detaches_during_the_search_leaves_no_session_locked(steps: int) -> None:
    harness = BrokerHarness(WITH_SESSIONS)
    names = [key_for_fragment(number) for number in range(FRAGMENT_COUNT)]
    fill(harness, *names)
    link = FakeSessionLink(harness)
    for _ in range(steps):
        harness.step()
    link.on_detached([])
    harness.run_until_idle()
    assert occupied_fragments(harness) == []
    others = [FakeSessionLink(harness) for _ in names]
    harness.run_until_idle()
    assert sorted(str(other.session) for other in others) == sorted(names)


@pytest.mark.parametrize("steps", range(0, 40, 3))
def test_the_session_of_a_detached_link_goes_to_a_waiting_link(steps: int) -> None:
    harness = BrokerHarness(WITH_SESSIONS)
    fill(harness, "s")
    detaching, waiting = FakeSessionLink(harness), FakeSessionLink(harness)
    for _ in range(steps):
        harness.step()
    detaching.on_detached([])
    harness.run_until_idle()
    assert waiting.session == "s"
    assert occupied_fragments(harness) == [fragment_of(b"s")]


def test_a_link_that_names_a_session_gets_it_before_a_link_for_any_session() -> None:
    harness = BrokerHarness(WITH_SESSIONS)
    fill(harness, "s")
    any_session = FakeSessionLink(harness)
    named_session = FakeSessionLink(harness, "s")
    harness.run_until_idle()
    assert named_session.session == "s"
    assert any_session.session is None
    fill(harness, "t")
    assert any_session.session == "t"


def test_a_link_waits_no_longer_than_its_timeout() -> None:
    harness = BrokerHarness(WITH_SESSIONS)
    link = FakeSessionLink(harness, timeout_ms=5_000)
    harness.run_until_idle()
    harness.advance(4.9)
    assert not link.refusals
    harness.advance(0.2)
    (refusal,) = link.refusals
    assert refusal.condition == OperationTimeout.condition
    assert occupied_fragments(harness) == []


def test_a_link_is_refused_if_all_stores_are_unavailable_and_waits_if_some_are() -> None:
    harness = BrokerHarness(WITH_SESSIONS)
    in_store_0 = key_for_fragment(0)
    fill(harness, in_store_0)
    harness.fail_stores(*range(STORES))
    with pytest.raises(StoreUnavailable):
        FakeSessionLink(harness)
    harness.recover()
    harness.fail_stores(0)
    link = FakeSessionLink(harness)
    harness.run_until_idle()
    assert link.session is None
    harness.recover()
    assert link.session == in_store_0


def test_a_store_failure_during_the_search_does_not_end_the_wait() -> None:
    harness = BrokerHarness(WITH_SESSIONS)
    name = key_for_fragment(0)
    fill(harness, name)
    link = FakeSessionLink(harness)
    harness.fail_stores(0)
    before = link.session
    fill(harness, key_for_fragment(1))
    assert [before, link.session] == [None, key_for_fragment(1)]
    harness.recover()
    other = FakeSessionLink(harness)
    harness.run_until_idle()
    assert other.session == name


def test_links_of_a_deleted_queue_get_one_error() -> None:
    harness = BrokerHarness(WITH_SESSIONS)
    fill(harness, "s")
    waiting, holding = FakeSessionLink(harness), FakeSessionLink(harness)
    harness.run_until_idle()
    harness.namespace.remove("orders")
    for link in (waiting, holding):
        (refusal,) = link.refusals
        assert refusal.condition == EntityDeleted.condition


def test_links_for_one_session_each_get_sessions_of_all_fragments() -> None:
    harness = BrokerHarness(WITH_SESSIONS)
    fill(harness, *[key_for_fragment(number) for number in range(FRAGMENT_COUNT)])
    seen = []
    for _ in range(FRAGMENT_COUNT):
        link = FakeSessionLink(harness)
        harness.run_until_idle()
        assert link.session is not None
        seen.append(fragment_of(link.session.encode()))
        link.on_detached([])
        harness.run_until_idle()
    assert len(set(seen)) >= STORES
    assert max(seen.count(number) for number in seen) <= FRAGMENT_COUNT // STORES


def test_r113_the_messages_of_a_session_stay_in_order_if_the_store_fails() -> None:
    harness = BrokerHarness(WITH_SESSIONS)
    results: list[Results] = []
    expected: list[bytes] = []
    for number in range(30):
        if number == 10:
            harness.fail_next_sync(fragment_of(b"s") % STORES)
        try:
            results.append(
                harness.send_messages(message(b"%d" % number, session="s"), message(b"x", session=f"other-{number}"))
            )
        except ServiceBusError:
            harness.recover()
            continue
        harness.run_until_idle()
        if results[-1] == [None]:
            expected.append(b"%d" % number)
        else:
            harness.recover()
    main = harness.main_fragments[fragment_of(b"s")]
    consumer = FakeSessionConsumer(main, session=b"s")
    consumer.grant(100)
    harness.run_until_idle()
    stored = [body for body in consumer.bodies if body in expected]
    assert stored == expected
    assert len(expected) >= 20
