"""A message that is received and deleted over HTTP: deleted when its answer was handed to the caller's socket.

Owns: that order, so that a message is never deleted for a caller who is not there, nor lost where the server fails
before the answer is sent. HTTP cannot say that an answer has arrived: what the network lost after that is gone.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from starlette.responses import Response

from twinbus.broker.ports.settlement import Disposition, lock_lost_error
from twinbus.model.callbacks import ignore
from twinbus.model.errors import ServiceBusError
from twinbus.server.http.answered import wait_until_done

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from twinbus.broker.namespace import Queue, Subscription, Transaction
    from twinbus.broker.ports.consumer import Delivery
    from twinbus.broker.ports.fragment import FragmentPort
    from twinbus.server.http.caller import Caller


class PendingDeletion:
    """Of one message that is locked for a caller. As in a transaction, its lock does not expire until it is decided."""

    def __init__(
        self,
        source: Queue | Subscription,
        fragment: FragmentPort,
        delivery: Delivery,
        caller: Caller,
        transaction: Transaction,
    ) -> None:
        """MessageLockLost if it is not locked any more."""
        self._fragment = fragment
        self._caller = caller
        self._lock_numbers = fragment.lock_numbers([delivery[1]])
        self._transaction = transaction
        if transaction.settle(source.parts[fragment.number], fragment, self._lock_numbers, Disposition.COMPLETE):
            raise lock_lost_error()

    @property
    def is_abandoned(self) -> bool:
        """Nobody is there to get it."""
        return self._caller.closed.done()

    async def commit(self) -> None:
        """The answer was handed over: delete the message. Who has gone since may have got it."""
        with suppress(ServiceBusError):  # its store is gone: the message is there when that is opened again
            await wait_until_done(self._transaction.commit)

    def roll_back(self) -> None:
        """Nobody has seen the message."""
        self._transaction.roll_back()
        with suppress(ServiceBusError):  # its store is gone, and the lock with it
            self._fragment.settlement.release(self._lock_numbers, ignore)


class DeletingResponse(Response):
    """The answer with the message. The next request of the same connection finds it deleted."""

    deletion: PendingDeletion

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002  # as Starlette has it
        """Send it, delete the message, and end."""
        if self.deletion.is_abandoned:
            self.deletion.roll_back()
            return
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": self.body, "more_body": True})
        except BaseException:
            self.deletion.roll_back()
            raise
        await self.deletion.commit()
        await send({"type": "http.response.body"})
