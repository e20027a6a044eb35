"""Whoever takes one message over HTTP: the consumer that a fragment knows, for as long as one request waits.

Owns: that a message is locked for a caller who is there, or in the queue. HTTP cannot say that an answer has arrived:
what was on its way when the caller went is out until its lock expires.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from starlette.requests import ClientDisconnect
from starlette.responses import Response

from twinbus.broker.ports.consumer import ReceiverIdentity
from twinbus.broker.ports.multi_fragment_receiver import MultiFragmentReceiver
from twinbus.broker.ports.settlement import Disposition, lock_lost_error
from twinbus.model.callbacks import ignore
from twinbus.model.errors import ServiceBusError, Unauthorized
from twinbus.server.http.completion import wait_until_done

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.types import Receive, Scope, Send

    from twinbus.broker.namespace import Queue, Subscription, Transaction
    from twinbus.broker.ports.consumer import Delivery
    from twinbus.broker.ports.fragment import FragmentPort
    from twinbus.server.http.call import Caller
    from twinbus.server.http.routes import Recheck


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


class HttpReceiver:
    """One message, at most."""

    receive_and_delete = False

    def __init__(self, fragments: Sequence[FragmentPort], caller: Caller, recheck: Recheck | None = None) -> None:
        """Those of the entity, which has no sessions. `recheck` raises if the caller's key was changed meanwhile."""
        self._multi_receiver = MultiFragmentReceiver(fragments)
        self._caller = caller
        self._recheck = recheck
        self.receiver_identity = ReceiverIdentity()
        self._reserved_credit = 0
        self._outcome: asyncio.Future[Delivery | None] = asyncio.get_running_loop().create_future()

    async def receive(self, wait_s: float) -> Delivery | None:
        """A message, or None where none came in that time.

        ClientDisconnect if nobody is there to get it, Unauthorized if the key was changed while the request waited.
        """
        self._multi_receiver.add(self)
        try:
            self._multi_receiver.dispatch_to(self)
            await self._wait_for_outcome(self._caller.answer_now, timeout_s=wait_s)
            if not self._outcome.done():
                # Reading takes its time: what is there now is had also by those who do not wait at all.
                self._multi_receiver.drain(self, self._on_drained)
                await self._wait_for_outcome()
        except asyncio.CancelledError:
            self._release()
            raise
        finally:
            self._multi_receiver.remove(self)
            self._outcome.cancel()  # if there is none yet, none is to come any more
        if self._caller.closed.done():
            self._release()
            raise ClientDisconnect
        try:
            if self._recheck is not None:
                self._recheck()
        except Unauthorized:
            self._release()
            raise
        return self._outcome.result()

    async def _wait_for_outcome(self, *other_futures: asyncio.Future[None], timeout_s: float | None = None) -> None:
        wanted: list[asyncio.Future[Any]] = [self._outcome, self._caller.closed, *other_futures]
        await asyncio.wait(wanted, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)

    def _release(self) -> None:
        if self._outcome.done() and not self._outcome.cancelled() and self._outcome.exception() is None:
            delivery = self._outcome.result()
            if delivery is not None:
                with suppress(ServiceBusError):  # its store is gone, and the lock with it
                    fragment = self._multi_receiver.fragment_of_tag(delivery[1])
                    fragment.settlement.release(fragment.lock_numbers([delivery[1]]), ignore)

    def _on_drained(self) -> None:
        if not self._outcome.done():
            self._outcome.set_result(None)

    # --- the fragment calls these -------------------------------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        """Nobody is there to get anything; or it was got."""
        return self._outcome.done() or self._caller.closed.done()

    @property
    def available_credit(self) -> int:
        """One, until it is there, or while a fragment of another process is asked for it."""
        return 0 if self.is_closed else 1 - self._reserved_credit

    def reserve_credit(self, count: int) -> None:
        """Its room is lent to a fragment of another process, or is not any more."""
        self._reserved_credit += count

    def deliver(self, deliveries: list[Delivery]) -> int:
        """Here it is. To one who has gone it is not given (`room`), but for what was on its way from elsewhere."""
        if self.is_closed:
            return 0
        self._outcome.set_result(deliveries[0])
        return 1

    def request_messages(self) -> None:
        """There is room again."""
        if not self.is_closed:
            self._multi_receiver.dispatch_to(self)

    def on_admitted(self) -> None:
        """A fragment of another process knows it."""

    def force_detach(self, error: ServiceBusError) -> None:
        """The entity was deleted or disabled."""
        if not self._outcome.done():
            self._outcome.set_exception(error)

    def on_session_lock_lost(self, error: ServiceBusError) -> None:
        """There are no sessions here."""
        self.force_detach(error)
