"""Deterministic runs: all randomness and all time in the pairing code come from the seed."""

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
"""Classes with objects in sets, whose order depends on their hashes: by default these depend on addresses."""


@contextmanager
def deterministic(source: random.Random) -> Iterator[None]:
    """Take ids, secrets and random choices from `source`, and make measured work take no time.

    Secrets matter: the length of a token depends on its characters, and therefore the place of a cut after N bytes.
    """
    replaced: list[tuple[Any, str, Any]] = [
        (uuid, "uuid4", lambda: uuid.UUID(int=source.getrandbits(128), version=4)),
        (secrets, "token_bytes", lambda size=32: source.randbytes(size)),
        (random, "SystemRandom", lambda: random.Random(source.getrandbits(64))),  # randomness of a simulation
        (peer_input, "time", SimpleNamespace(monotonic=lambda: 0.0)),
    ]
    numbers = _StableNumbers()
    replaced += [(kind, "__hash__", lambda instance: numbers.of(instance)) for kind in SET_MEMBER_CLASSES]  # noqa: PLW0108  # a bound method would not get the instance
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in replaced]
    for owner, name, value in replaced:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


class _StableNumbers:
    """Numbers objects in the order of their first use; an object keeps its number."""

    def __init__(self) -> None:
        self._numbered: dict[int, tuple[int, object]] = {}
        """Numbers by address. The objects are kept, so that no other object gets the same address."""

    def of(self, instance: object) -> int:
        number, _ = self._numbered.setdefault(id(instance), (len(self._numbered), instance))
        return number
