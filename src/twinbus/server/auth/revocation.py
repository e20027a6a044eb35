"""Connections indexed by the keys they use, so that links that a changed key no longer allows can be closed.

Owns: which connections have used a key or a token signed with it, and when they are checked: soon after the key lost a
secret or a right. Connections that use other keys are not checked. The connection itself decides which links to close.
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
"""How many connections are checked per turn of the event loop, because thousands may use the same key."""


class KeyUser(Protocol):
    """The part of a connection's interface that this module uses."""

    def check_access(self) -> None:
        """Close every link that the connection's keys and tokens no longer allow."""


class Revocations:
    """The connections to one process, by the keys they use."""

    def __init__(self, call_soon: CallSoon) -> None:
        """Create an empty index; `call_soon` schedules a call for the next turn of the event loop."""
        self._call_soon = call_soon
        self._users_by_key: dict[tuple[str, str], dict[KeyUser, None]] = {}
        """Connections by the key's owner ("" is the namespace) and name."""
        self._keys_by_user: dict[KeyUser, set[tuple[str, str]]] = {}
        self._pending: dict[KeyUser, None] = {}
        """Connections to check, in the order in which their keys changed."""
        self._done_callbacks: list[Callable[[], None]] = []

    def add_user(self, user: KeyUser, key: Key) -> None:
        """Record that a connection uses a key."""
        self._users_by_key.setdefault((key.owner, key.name), {})[user] = None
        self._keys_by_user.setdefault(user, set()).add((key.owner, key.name))

    def remove_user(self, user: KeyUser) -> None:
        """Remove a closed connection."""
        self._pending.pop(user, None)
        for key in self._keys_by_user.pop(user, ()):
            users = self._users_by_key[key]
            del users[user]
            if not users:
                del self._users_by_key[key]

    def revoke(self, key: Key) -> None:
        """Schedule a check of all connections that use a key which was removed, or lost a secret or a right."""
        is_working = bool(self._pending)
        self._pending.update(self._users_by_key.get((key.owner, key.name), {}))
        if self._pending and not is_working:
            self._call_soon(self._check_some)

    def call_when_done(self, callback: Callable[[], None]) -> None:
        """Call `callback` once all pending checks are done; at once if there are none."""
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
            except Exception:  # an error in one connection must not prevent the checks of other connections
                log.exception("cannot check a connection after a change of its key")
        if not self._pending:
            callbacks, self._done_callbacks = self._done_callbacks, []
            for callback in callbacks:
                callback()
