"""A client that looks at an entity sees what the fragments of all processes have."""

from __future__ import annotations

from tests.broker.partitioned.rig import key_for, message
from tests.broker.remote.links import browse
from tests.broker.remote.rig import TwoProcesses
from twinbus.amqp.message import Message
from twinbus.model.description import FRAGMENTS


class Client:
    """Looks at all fragments."""

    def __init__(self, rig: TwoProcesses, *fragments: int) -> None:
        self.bodies: list[bytes] = []
        self._rig = rig
        parts = rig.queue().parts
        chosen = [parts[number].main for number in fragments or range(len(parts))]
        self.link, self.use = browse(self._see, chosen, rig.clock, rig.turn.append)
        if not fragments:
            rig.settle()

    def _see(self, delivery: tuple[bytes, bytes]) -> None:
        self.bodies.append(Message(delivery[0]).data[0])

    def grant(self, credit: int, *, drain: bool = False) -> None:
        self.link.credit += credit
        self.link.drain_requested = drain
        self.use.receive_credit()
        self._rig.settle()


def test_what_is_in_all_fragments_is_seen() -> None:
    rig = TwoProcesses()
    rig.stored(*[message(b"%d" % number) for number in range(2 * FRAGMENTS)])
    client = Client(rig)
    client.grant(100)
    assert sorted(map(int, client.bodies)) == list(range(2 * FRAGMENTS))


def test_a_drain_shows_what_is_in_all_fragments_and_is_answered() -> None:
    for fragment in range(FRAGMENTS):
        rig = TwoProcesses()
        rig.stored(message(b"one", key=key_for(fragment)))
        client = Client(rig)
        client.grant(3, drain=True)
        assert (client.bodies, client.link.drains) == ([b"one"], 1)


def test_a_drain_takes_no_more_than_there_is_credit_for() -> None:
    rig = TwoProcesses()
    rig.stored(*[message(b"%d" % number) for number in range(2 * FRAGMENTS)])
    client = Client(rig)
    client.grant(5, drain=True)
    assert (len(client.bodies), client.link.drains) == (5, 1)
    client.grant(100, drain=True)
    assert sorted(map(int, client.bodies)) == list(range(2 * FRAGMENTS))
    assert client.link.drains == 2


def test_a_drain_is_answered_while_a_process_is_silent() -> None:
    rig = TwoProcesses()
    rig.stored(message(b"here", key=key_for(0)))
    client = Client(rig)
    rig.silent.add(1)
    client.grant(3, drain=True)
    rig.wait(0.1)
    assert (client.bodies, client.link.drains) == ([b"here"], 1)


def test_a_drain_that_is_asked_for_before_the_link_is_accepted_is_answered() -> None:
    rig = TwoProcesses()
    rig.stored(message(b"one", key=key_for(1)))
    client = Client(rig, 1)
    client.grant(3, drain=True)
    assert (client.bodies, client.link.drains) == ([b"one"], 1)
