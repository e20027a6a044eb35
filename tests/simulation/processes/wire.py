"""The connection of one process to another, over which the first asks the second.

Owns: the words that are on their way. Each direction keeps its order; when each word arrives is for the world to say.
What a process said before it died may arrive after that, or some of it.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import msgspec

from twinbus.server.peers.channel import ANSWERS, CALLS
from twinbus.server.peers.desk import Desk

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from tests.simulation.processes.process import Process
    from twinbus.broker.ports.peer_protocol import Answer, Call

_encode = msgspec.msgpack.encode


class Wire:
    """One connection."""

    def __init__(self, asker: Process, asked: Process) -> None:
        """The asker takes it for made; the other one learns of it when it looks."""
        self.asker = asker
        self.asked = asked
        self.desk: Desk | None = None
        self.calls: deque[Callable[[], object]] = deque([self._admit])
        self.answers: deque[Callable[[], object]] = deque()
        self.is_cut = False
        """One of the two has died."""
        self.is_over = False
        """... and the other one has noticed."""
        self._owner = asker.owner(asked.number)
        self._owner.connected(self._call)

    def __repr__(self) -> str:
        return f"{self.asker!r} -> {self.asked!r}"

    def _call(self, number: int, word: Call) -> None:
        written = _encode((number, word))
        if not self.is_cut:
            self.calls.append(lambda: self._hear_call(written))

    def answer(self, number: int, word: Answer) -> None:
        written = _encode((number, word))
        if not self.is_cut:
            self.answers.append(lambda: self._hear_answer(written))

    def _admit(self) -> None:
        self.desk = Desk(self.asked.namespace, self.answer, _refuse)
        self.asked.health.greet(self.answer)

    def _hear_call(self, written: bytes) -> None:
        assert self.desk is not None
        number, word = CALLS.decode(written)
        self.asked.world.say(f"    {self!r}: {number} {word}")
        self.desk.receive(number, word)

    def _hear_answer(self, written: bytes) -> None:
        number, word = ANSWERS.decode(written)
        self.asker.world.say(f"    {self!r} answers: {number} {word}")
        self._owner.receive(number, word)

    # --- its end ------------------------------------------------------------------------------------------------------

    def lose_asked(self, random: Random) -> None:
        """The one that is asked has died."""
        self.is_cut = True
        self.calls.clear()
        _shorten(self.answers, random)
        self.answers.append(self._lost)

    def lose_asker(self, random: Random) -> None:
        """The one that asks has died."""
        self.is_cut = True
        self.answers.clear()
        _shorten(self.calls, random)
        self.calls.append(self._left)

    def lose_both(self) -> None:
        self.is_cut = self.is_over = True
        self.calls.clear()
        self.answers.clear()

    def _lost(self) -> None:
        self.is_over = True
        self._owner.disconnected()

    def _left(self) -> None:
        self.is_over = True
        if self.desk is not None:
            self.asked.health.forget(self.answer)
            self.asked.world.ledger.deletions.may_lose()  # what was deleted until now for receivers of the dead one
            self.desk.close()


def _shorten(words: deque[Callable[[], object]], random: Random) -> None:
    for _ in range(random.randint(0, len(words))):
        words.pop()


def _refuse(desk: Desk, call: object, tell: object) -> None:
    raise AssertionError(desk, call, tell)
