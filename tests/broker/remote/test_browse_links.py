"""A client that looks at an entity sees what the fragments of all processes have."""

from __future__ import annotations

from tests.broker.messages import key_for, message
from tests.broker.remote.links import browse
from tests.broker.rig import PARTITIONED, Rig
from twinbus.amqp.message import Message
from twinbus.model.description import FRAGMENTS


class Client:
    """Looks at all fragments."""

    def __init__(self, rig: Rig, *fragments: int) -> None:
        self.bodies: list[bytes] = []
        self._rig = rig
        parts = rig.queue.parts
        chosen = [parts[number].main for number in fragments or range(len(parts))]
        self.link, self.use = browse(self._see, chosen, rig.turn.append)
        if not fragments:
            rig.settle()

    def _see(self, delivery: tuple[bytes, bytes]) -> None:
        self.bodies.append(Message(delivery[0]).data[0])

    def grant(self, credit: int, *, drain: bool = False) -> None:
        self.link.credit += credit
        self.link.drain_requested = drain
        self.use.receive_credit()
        self._rig.settle()


class RangeClient(Client):
    """Looks at a range of one fragment, and wants to know when it is over."""

    def __init__(self, rig: Rig, fragment: int, first: int, last: int) -> None:
        self.bodies = []
        self._rig = rig
        limits = {"twinbus:from-sequence-number": first, "twinbus:to-sequence-number": last}
        chosen = [rig.queue.parts[fragment].main]
        self.link, self.use = browse(self._see, chosen, rig.turn.append, limits)
        rig.settle()


def test_what_is_in_all_fragments_is_seen() -> None:
    rig = Rig(PARTITIONED, processes=2)
    rig.store_messages(*[message(b"%d" % number) for number in range(2 * FRAGMENTS)])
    client = Client(rig)
    client.grant(100)
    assert sorted(map(int, client.bodies)) == list(range(2 * FRAGMENTS))


def test_a_drain_shows_what_is_in_all_fragments_and_is_answered() -> None:
    for fragment in range(FRAGMENTS):
        rig = Rig(PARTITIONED, processes=2)
        rig.store_messages(message(b"one", key=key_for(fragment)))
        client = Client(rig)
        client.grant(3, drain=True)
        assert (client.bodies, client.link.drains) == ([b"one"], 1)


def test_a_drain_takes_no_more_than_there_is_credit_for() -> None:
    rig = Rig(PARTITIONED, processes=2)
    rig.store_messages(*[message(b"%d" % number) for number in range(2 * FRAGMENTS)])
    client = Client(rig)
    client.grant(5, drain=True)
    assert (len(client.bodies), client.link.drains) == (5, 1)
    client.grant(100, drain=True)
    assert sorted(map(int, client.bodies)) == list(range(2 * FRAGMENTS))
    assert client.link.drains == 2


def test_a_drain_is_answered_while_a_process_is_silent() -> None:
    rig = Rig(PARTITIONED, processes=2)
    rig.store_messages(message(b"here", key=key_for(0)))
    client = Client(rig)
    rig.silent.add(1)
    client.grant(3, drain=True)
    rig.wait(0.1)
    assert (client.bodies, client.link.drains) == ([b"here"], 1)


def test_a_drain_that_is_asked_for_before_the_link_is_accepted_is_answered() -> None:
    rig = Rig(PARTITIONED, processes=2)
    rig.store_messages(message(b"one", key=key_for(1)))
    client = Client(rig, 1)
    client.grant(3, drain=True)
    assert (client.bodies, client.link.drains) == ([b"one"], 1)


def test_a_range_is_over_when_all_of_it_was_seen() -> None:
    for fragment in range(FRAGMENTS):
        rig = Rig(PARTITIONED, processes=2)
        first = (fragment << 48) + 1
        rig.store_messages(*[message(b"%d" % number, key=key_for(fragment)) for number in range(4)])
        client = RangeClient(rig, fragment, first + 1, first + 2)
        client.grant(1)
        assert (client.bodies, client.link.errors) == ([b"1"], [])
        client.grant(100)
        assert client.bodies == [b"1", b"2"]
        assert [error.condition for error in client.link.errors] == ["twinbus:range-seen"]


def test_a_range_that_reaches_beyond_what_is_there_is_not_over() -> None:
    for fragment in range(FRAGMENTS):
        rig = Rig(PARTITIONED, processes=2)
        first = (fragment << 48) + 1
        rig.store_messages(message(b"0", key=key_for(fragment)))
        client = RangeClient(rig, fragment, first, first + 1)
        client.grant(100)
        assert (client.bodies, client.link.errors) == ([b"0"], [])
        rig.store_messages(message(b"1", key=key_for(fragment)))
        rig.settle()
        assert client.bodies == [b"0", b"1"]
        assert [error.condition for error in client.link.errors] == ["twinbus:range-seen"]
