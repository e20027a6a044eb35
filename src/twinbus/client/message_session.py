"""Sessions: the messages with one session id, in order, locked for one receiver, and the state of the session.

    async with await queue.accept_session() as session:
        async for message in session: ...

Owns the session lock, which ends with its link. After the connection is lost, another receiver may accept the session,
and this object cannot be used any more.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from twinbus.amqp.terminus import Source
from twinbus.amqp.types import Symbol, UInt
from twinbus.client.errors import UnknownAnswer
from twinbus.client.receiver import MessageReceiver
from twinbus.client.retry import OperationOutcome
from twinbus.model.errors import CallerError, OperationTimeout, ServiceBusError, SessionLockLost
from twinbus.model.times import datetime_of, duration_s

if TYPE_CHECKING:
    import datetime as dt

    from twinbus.client.amqp.receiver_link import ReceiverLink
    from twinbus.client.factory import MessagingFactory
    from twinbus.client.receiver import ReceiveMode

log: Final = logging.getLogger(__name__)

SESSION_FILTER: Final = "com.microsoft:session-filter"
_TICKS_AT_1970: Final = 621_355_968_000_000_000
_RESPONSE_GRACE_S: Final = 5.0
"""Extra time for the namespace's response after the wait for a session has timed out."""
_RENEWAL_PAUSE_S: Final = (0.5, 30.0)
"""Shortest and longest delay between renewals, since the clocks of this machine and the namespace may differ."""


class MessageSession(MessageReceiver):
    """Receiver of one accepted session."""

    def __init__(
        self,
        factory: MessagingFactory,
        path: str,
        mode: ReceiveMode,
        *,
        prefetch: int = 0,
        requested_session_id: str | None = None,
        wait_s: float | None = None,
        epoch: int | None = None,
        silence_limit: dt.timedelta | float | None = None,
    ) -> None:
        """Create a session receiver; `accept` attaches its link.

        Without `requested_session_id`, the namespace chooses a free session.
        """
        self._requested_session_id = requested_session_id
        self._wait_s = wait_s
        super().__init__(factory, path, mode, prefetch=prefetch, epoch=epoch, silence_limit=silence_limit)
        self.locked_until_ms = 0
        self._renewal_task: asyncio.Task[None] | None = None

    @classmethod
    async def accept(  # noqa: PLR0913  # independent options
        cls,
        factory: MessagingFactory,
        path: str,
        mode: ReceiveMode,
        session_id: str | None,
        *,
        prefetch: int = 0,
        timeout: dt.timedelta | float | None = None,  # noqa: ASYNC109
        auto_renew: dt.timedelta | float | None = None,
        epoch: int | None = None,
        silence_limit: dt.timedelta | float | None = None,
    ) -> MessageSession:
        """Accept a session, or the next free one if `session_id` is None.

        Raise OperationTimeout if no session was free within the timeout, or SessionCannotBeLocked if another receiver
        holds the requested session. With `epoch`, no other receiver gets messages from any session of the entity until
        the namespace has heard nothing from this client for `silence_limit`.
        """
        wait_s = factory.settings.operation_timeout_s if timeout is None else duration_s(timeout)
        session = cls(
            factory,
            path,
            mode,
            prefetch=prefetch,
            requested_session_id=session_id,
            wait_s=wait_s,
            epoch=epoch,
            silence_limit=silence_limit,
        )
        try:
            none_was_free = await factory.run_with_retries(
                f"accepting a session of '{path}'",
                session._try_accept,
                timeout_s=wait_s + _RESPONSE_GRACE_S,
                outcome=OperationOutcome(),
            )
        except BaseException:
            await session.close()
            raise
        if none_was_free is not None:
            await session.close()
            raise none_was_free.copy_with(may_have_happened=False) from none_was_free
        if auto_renew is not None:
            session._renewal_task = asyncio.ensure_future(session._renew_for(duration_s(auto_renew)))
        return session

    @property
    def locked_until_utc(self) -> dt.datetime:
        """Expiry time of the session lock, unless it is renewed."""
        return datetime_of(self.locked_until_ms)

    async def renew_session_lock(self) -> dt.datetime:
        """Renew the session lock; return its new expiry time."""
        response = await self._request(
            "com.microsoft:renew-session-lock", {"session-id": self.session_id}, link_name=self._link_name()
        )
        expiration = response.body.get("expiration")
        if not isinstance(expiration, int):
            raise UnknownAnswer(f"the response of '{self.path}' has no expiry time for the renewed session lock")
        self.locked_until_ms = int(expiration)
        return self.locked_until_utc

    async def get_state(self) -> bytes | None:
        """Return the session state, or None if none is set."""
        response = await self._request(
            "com.microsoft:get-session-state", {"session-id": self.session_id}, link_name=self._link_name()
        )
        state = response.body.get("session-state")
        return state if isinstance(state, bytes) else None

    async def set_state(self, state: bytes | None) -> None:
        """Set the session state; None deletes it."""
        body = {"session-id": self.session_id, "session-state": state}
        await self._request("com.microsoft:set-session-state", body, link_name=self._link_name())

    # --- implementation -----------------------------------------------------------------------------------------------

    def _source(self) -> Source:
        return Source(address=self.path, filter={SESSION_FILTER: self._requested_session_id})

    def _link_properties(self) -> dict[str, object]:
        wait_s = self._wait_s
        return {} if wait_s is None else {"com.microsoft:timeout": UInt(min(round(wait_s * 1000), 2**32 - 1))}

    def _attach_limit_s(self) -> float:
        return (self.factory.settings.operation_timeout_s if self._wait_s is None else self._wait_s) + _RESPONSE_GRACE_S

    async def _try_accept(self) -> OperationTimeout | None:
        """Attach the link. If no session was free, return the error, because raising it would cause a retry."""
        try:
            await self._attached_link()
        except OperationTimeout as error:
            return error
        return None

    async def _attach(self) -> ReceiverLink:
        if self.session_id is not None:
            failure = self._buffer.link.failure if self._buffer.link is not None else None
            if isinstance(failure, CallerError):
                raise failure
            raise SessionLockLost(f"session {self.session_id!r} of '{self.path}' was lost with its link: {failure}")
        link = await super()._attach()
        attach = link.attached.result()
        source = attach.source
        value = source.filter.get(SESSION_FILTER) if isinstance(source, Source) and source.filter is not None else None
        value = getattr(value, "value", value)
        if not isinstance(value, str):
            link.detach()
            raise UnknownAnswer(f"the attach of '{self.path}' has no id for the accepted session")
        self.session_id = str(value)
        ticks = (attach.properties or {}).get(Symbol("com.microsoft:locked-until-utc"))
        self.locked_until_ms = (ticks - _TICKS_AT_1970) // 10_000 if isinstance(ticks, int) else 0
        return link

    async def _renew_for(self, max_duration_s: float) -> None:
        loop = asyncio.get_running_loop()
        end_s = loop.time() + max_duration_s
        while loop.time() < end_s and not self.is_closed:
            left_s = (self.locked_until_ms - self.factory.settings.clock.wall_ms()) / 1000
            await asyncio.sleep(min(max(_RENEWAL_PAUSE_S[0], left_s / 2), _RENEWAL_PAUSE_S[1]))
            if self._link_name() is None:
                return  # the session lock ended with its link
            try:
                await self.renew_session_lock()
            except CallerError:
                return  # the next receive or settlement raises the error
            except ServiceBusError as error:
                log.warning("could not renew the lock of session %r of '%s': %s", self.session_id, self.path, error)

    async def _close(self) -> None:
        if self._renewal_task is not None:
            self._renewal_task.cancel()
        await super()._close()
