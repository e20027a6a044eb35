"""Connections by the keys that they use, to end what a changed key does not allow any more.

Owns: which connections have shown a key, or a token signed with one, and when they are checked again: soon after the
key has lost a secret or a right. Nothing is done before that, and no other connection is looked at. What a connection
does then is its own business.
"""

from __future__ import annotations

import logging
from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.server.amqp.socket_backpressure import CallSoon
    from twinbus.server.auth.keys import Key

log: Final = logging.getLogger(__name__)

MAX_CHECKS_PER_TURN: Final = 50
"""Connections that are checked in one turn of the loop: thousands may use the same key."""


class KeyUser(Protocol):
    """A connection, as far as it is of interest here."""

    def check_access(self) -> None:
        """End every link that the connection's keys and tokens do not allow any more."""


class Revocations:
    """The users of all keys, in one process."""

    def __init__(self, call_soon: CallSoon) -> None:
        """`soon` makes a call in the next turn of the loop."""
        self._call_soon = call_soon
        self._users_by_key: dict[tuple[str, str], dict[KeyUser, None]] = {}
        """By the entity ("" is the namespace) and the name of a key."""
        self._keys_by_user: dict[KeyUser, set[tuple[str, str]]] = {}
        self._pending: dict[KeyUser, None] = {}
        """Those to be checked, in the order of the changes."""
        self._done_callbacks: list[Callable[[], None]] = []

    def add_user(self, user: KeyUser, key: Key) -> None:
        """A connection uses a key."""
        self._users_by_key.setdefault((key.owner, key.name), {})[user] = None
        self._keys_by_user.setdefault(user, set()).add((key.owner, key.name))

    def remove_user(self, user: KeyUser) -> None:
        """A connection is over."""
        self._pending.pop(user, None)
        for key in self._keys_by_user.pop(user, ()):
            users = self._users_by_key[key]
            del users[user]
            if not users:
                del self._users_by_key[key]

    def revoke(self, key: Key) -> None:
        """A key has lost a secret or a right, or is gone: check all who use it."""
        is_working = bool(self._pending)
        self._pending.update(self._users_by_key.get((key.owner, key.name), {}))
        if self._pending and not is_working:
            self._call_soon(self._check_some)

    def call_when_done(self, callback: Callable[[], None]) -> None:
        """Make a call once all connections are checked whose keys have changed so far."""
        if self._pending:
            self._done_callbacks.append(callback)
        else:
            callback()

    def _check_some(self) -> None:
        users = list(islice(self._pending, MAX_CHECKS_PER_TURN))
        for user in users:
            del self._pending[user]
        if self._pending:
            self._call_soon(self._check_some)
        for user in users:
            try:
                user.check_access()
            except Exception:  # a fault of one connection must not spare the others
                log.exception("a connection could not be checked after a change of its key")
        if not self._pending:
            waiting, self._done_callbacks = self._done_callbacks, []
            for call in waiting:
                call()
