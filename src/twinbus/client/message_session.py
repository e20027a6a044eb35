"""A session: the messages with one session id, in order, for one receiver at a time; and the session's state.

    async with await queue.accept_session() as session:
        async for message in session: ...

Owns: the lock on the session. It goes with its link: when the connection is lost the session is free, and this object
of no use any more.
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
"""How long the namespace may take to say that no session was free in time."""
_RENEWAL_PAUSE_S: Final = (0.5, 30.0)
"""Between two renewals, at least and at most: this machine's clock may be ahead of the namespace's, or behind."""


class MessageSession(MessageReceiver):
    """One session, held."""

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
        """`wanted` is the session's id; None: the next that nobody has. Made by `accept`."""
        self._requested_session_id = requested_session_id
        self._wait_s = wait_s
        super().__init__(factory, path, mode, prefetch=prefetch, epoch=epoch, silence_limit=silence_limit)
        self.locked_until_ms = 0
        self._renewal_task: asyncio.Task[None] | None = None

    @classmethod
    async def accept(  # noqa: PLR0913  # each is a wish of its own
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
        """Take a session; OperationTimeout if none was free in that time, SessionCannotBeLocked if somebody has it.

        With `epoch` nobody else receives from the entity, whatever the session, until its holder has been silent for
        `silence_limit`.
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
        """When somebody else may have it, unless it is renewed."""
        return datetime_of(self.locked_until_ms)

    async def renew_session_lock(self) -> dt.datetime:
        """Have it for longer; until when."""
        answer = await self._request(
            "com.microsoft:renew-session-lock", {"session-id": self.session_id}, link_name=self._link_name()
        )
        expiration = answer.body.get("expiration")
        if not isinstance(expiration, int):
            raise UnknownAnswer(f"'{self.path}' renewed a session and did not say until when")
        self.locked_until_ms = int(expiration)
        return self.locked_until_utc

    async def get_state(self) -> bytes | None:
        """What was last kept for the session."""
        answer = await self._request(
            "com.microsoft:get-session-state", {"session-id": self.session_id}, link_name=self._link_name()
        )
        state = answer.body.get("session-state")
        return state if isinstance(state, bytes) else None

    async def set_state(self, state: bytes | None) -> None:
        """Keep something for the session; None: nothing any more."""
        body = {"session-id": self.session_id, "session-state": state}
        await self._request("com.microsoft:set-session-state", body, link_name=self._link_name())

    # --- inside -------------------------------------------------------------------------------------------------------

    def _source(self) -> Source:
        return Source(address=self.path, filter={SESSION_FILTER: self._requested_session_id})

    def _link_properties(self) -> dict[str, object]:
        wait_s = self._wait_s
        return {} if wait_s is None else {"com.microsoft:timeout": UInt(min(round(wait_s * 1000), 2**32 - 1))}

    def _attach_limit_s(self) -> float:
        return (self.factory.settings.operation_timeout_s if self._wait_s is None else self._wait_s) + _RESPONSE_GRACE_S

    async def _try_accept(self) -> OperationTimeout | None:
        """Take the session; or the word that none was free in time, which is no reason to ask again."""
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
        found = source.filter.get(SESSION_FILTER) if isinstance(source, Source) and source.filter is not None else None
        found = getattr(found, "value", found)
        if not isinstance(found, str):
            link.detach()
            raise UnknownAnswer(f"'{self.path}' gave a session and did not say which")
        self.session_id = str(found)
        ticks = (attach.properties or {}).get(Symbol("com.microsoft:locked-until-utc"))
        self.locked_until_ms = (ticks - _TICKS_AT_1970) // 10_000 if isinstance(ticks, int) else 0
        return link

    async def _renew_for(self, max_duration_s: float) -> None:
        loop = asyncio.get_running_loop()
        ends = loop.time() + max_duration_s
        while loop.time() < ends and not self.is_closed:
            left_s = (self.locked_until_ms - self.factory.settings.clock.wall_ms()) / 1000
            await asyncio.sleep(min(max(_RENEWAL_PAUSE_S[0], left_s / 2), _RENEWAL_PAUSE_S[1]))
            if self._link_name() is None:
                return  # it went with its link
            try:
                await self.renew_session_lock()
            except CallerError:
                return  # whoever receives or settles is told
            except ServiceBusError as error:
                log.warning("session %r of '%s' was not renewed: %s", self.session_id, self.path, error)

    async def _close(self) -> None:
        if self._renewal_task is not None:
            self._renewal_task.cancel()
        await super()._close()
