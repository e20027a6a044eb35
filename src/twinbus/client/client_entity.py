"""Base class of senders, receivers and clients: the entity path, closing, and requests to `$management`.

Owns the closed flag. Links belong to the subclasses.
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
    """Base class of senders, receivers and clients for one entity."""

    def __init__(self, factory: MessagingFactory, path: str) -> None:
        """Check the path and register with the factory, which closes this object when it closes itself."""
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
        """Raise ObjectClosed or FactoryFaulted if this object or its factory cannot be used any more."""
        self.factory.check_open()
        if self.is_closed:
            raise ObjectClosed(f"{self!r} was used after it was closed")

    async def close(self) -> None:
        """Close this object and its links. Idempotent."""
        if not self.is_closed:
            self.is_closed = True
            self.factory.unregister(self)
            await self._close()

    async def _close(self) -> None:
        """Close the links; subclasses override this."""

    async def _request(
        self,
        operation: str,
        body: Mapping[str, object] | Callable[[bool], Mapping[str, object]],
        *,
        timeout_s: float | None = None,
        policy: RetryPolicy | None = None,
        link_name: str | None = None,
        other_path: str | None = None,
    ) -> Response:
        """Send a request to the entity's `$management`, with retries, and return the response.

        A callable `body` gets True if an earlier attempt may have been carried out. `other_path` is another entity for
        which the request needs a right.
        """
        self.check_open()
        limit_s = self.factory.settings.operation_timeout_s if timeout_s is None else timeout_s
        outcome = OperationOutcome()

        async def attempt() -> Response:
            if other_path is not None:
                await self.factory.authorized_connection(other_path)
            request_body = body(outcome.may_have_happened) if callable(body) else body
            return await self.factory.request(
                self.path, operation, request_body, timeout_s=limit_s, link_name=link_name, outcome=outcome
            )

        with outcome.adjusted_errors():
            return await self.factory.run_with_retries(
                f"{operation} of '{self.path}'", attempt, timeout_s=timeout_s, policy=policy, outcome=outcome
            )
