"""What everything that a factory makes has in common: it belongs to one entity, it is closed once, it asks.

Owns: whether it is closed. Its links are its subclass's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from twinbus.client.errors import ObjectClosed
from twinbus.client.retry import OperationOutcome
from twinbus.model.path import relative_path

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from twinbus.client.amqp.request_response import Response
    from twinbus.client.factory import MessagingFactory
    from twinbus.client.retry import RetryPolicy


class ClientEntity:
    """A sender, a receiver, or a client that has both."""

    def __init__(self, factory: MessagingFactory, path: str) -> None:
        """`path` is of the entity, as the application spells it."""
        if not path.strip("/"):
            raise ValueError("the path of an entity is empty")
        self.factory = factory
        self.path = relative_path(path)
        self.is_closed = False
        factory.check_open()
        factory.register(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path!r}{' closed' if self.is_closed else ''}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def check_open(self) -> None:
        """ObjectClosed if it cannot be used any more."""
        self.factory.check_open()
        if self.is_closed:
            raise ObjectClosed(f"{self!r} is used after it was closed")

    async def close(self) -> None:
        """End it. May be called again."""
        if not self.is_closed:
            self.is_closed = True
            self.factory.unregister(self)
            await self._close()

    async def _close(self) -> None:
        """End its links."""

    async def _request(
        self,
        operation: str,
        body: Mapping[str, object] | Callable[[bool], Mapping[str, object]],
        *,
        timeout_s: float | None = None,
        policy: RetryPolicy | None = None,
        link_name: str | None = None,
    ) -> Response:
        """Ask the entity's `$management`, with retries.

        If `body` depends on whether an earlier attempt may have been carried out, it is called with that.
        """
        self.check_open()
        limit_s = self.factory.settings.operation_timeout_s if timeout_s is None else timeout_s
        doubt = OperationOutcome()

        async def attempt() -> Response:
            asked = body(doubt.may_have_happened) if callable(body) else body
            return await self.factory.request(
                self.path, operation, asked, timeout_s=limit_s, link_name=link_name, outcome=doubt
            )

        with doubt.adjusted_errors():
            return await self.factory.run_with_retries(
                f"{operation} of '{self.path}'", attempt, timeout_s=timeout_s, policy=policy, outcome=doubt
            )
