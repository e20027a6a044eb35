"""What makes a run repeatable: all chance and all time that the pairing code meets come from the seed."""

from __future__ import annotations

import random
import secrets
import uuid
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from twinbus.amqp import peer_input
from twinbus.amqp.aio import Peer
from twinbus.client.client_entity import ClientEntity
from twinbus.server.amqp.incoming_link import IncomingLink
from twinbus.server.amqp.outgoing_link import OutgoingLink
from twinbus.server.amqp.request_link import RequestLink

if TYPE_CHECKING:
    from collections.abc import Iterator

SET_MEMBER_CLASSES: Final = (Peer, ClientEntity, IncomingLink, OutgoingLink, RequestLink)
"""Classes whose objects are kept in sets: in the order of their hashes, which by default is that of their addresses."""


@contextmanager
def deterministic(source: random.Random) -> Iterator[None]:
    """Take ids, secrets and random choices from `source`, and let work take no time that anybody measures.

    Secrets matter: the length of a token depends on its characters, and with it where a cut after so many bytes hits.
    """
    replaced: list[tuple[Any, str, Any]] = [
        (uuid, "uuid4", lambda: uuid.UUID(int=source.getrandbits(128), version=4)),
        (secrets, "token_bytes", lambda size=32: source.randbytes(size)),
        (random, "SystemRandom", lambda: random.Random(source.getrandbits(64))),  # of a simulation
        (peer_input, "time", SimpleNamespace(monotonic=lambda: 0.0)),
    ]
    numbers = _StableNumbers()
    replaced += [(kind, "__hash__", lambda one: numbers.of(one)) for kind in SET_MEMBER_CLASSES]  # noqa: PLW0108  # not a method of it
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in replaced]
    for owner, name, value in replaced:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


class _StableNumbers:
    """Gives objects numbers, in the order in which it is first asked; each keeps its own."""

    def __init__(self) -> None:
        self._numbered: dict[int, tuple[int, object]] = {}
        """By their addresses, with the objects themselves: while one is here, no other has its address."""

    def of(self, one: object) -> int:
        number, _ = self._numbered.setdefault(id(one), (len(self._numbered), one))
        return number
