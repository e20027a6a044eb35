"""What other processes are told of the stores of this one.

Owns: what each of them was told last. One that comes is told at once, and whoever knows it differently is told again: a
store may fail and work again between two looks, and one that came just then must not take it for failed for ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from twinbus.broker.ports.peer_protocol import Health
from twinbus.broker.remote.journal import RemoteStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.namespace import Namespace

    Respond: TypeAlias = Callable[[int, Health], None]

_NOTICE = 0


class HealthReport:
    """One for a process."""

    def __init__(self, namespace: Namespace) -> None:
        """Nobody is told yet."""
        self._namespace = namespace
        self._told: dict[Respond, Health] = {}

    def greet(self, respond: Respond) -> None:
        """Another process has come, and hears what is said by `respond`."""
        self._tell(respond, self._health())

    def forget(self, respond: Respond) -> None:
        """It has gone."""
        self._told.pop(respond, None)

    def look(self) -> None:
        """Tell those who do not know how it is now."""
        now = self._health()
        for respond, told in list(self._told.items()):
            if told != now:
                self._tell(respond, now)

    def _tell(self, respond: Respond, health: Health) -> None:
        self._told[respond] = health
        respond(_NOTICE, health)

    def _health(self) -> Health:
        own = {
            number: (journal.trouble, journal.refusal)
            for number, journal in enumerate(self._namespace.journals)
            if not isinstance(journal, RemoteStore)
        }
        return Health(own)
