"""Requests and responses over a pair of links to a node (`$cbs`, or an entity's `$management`).

Owns the correlation of responses with requests. The callers define the operations and their bodies.
"""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING, Final

from twinbus.amqp.errors import DecodeError
from twinbus.amqp.message import Message, Properties, build, value
from twinbus.amqp.terminus import Source, Target
from twinbus.client.errors import ConnectionLost, TimedOut, UnknownAnswer, error_for_condition, with_error_info

if TYPE_CHECKING:
    from collections.abc import Mapping

    from twinbus.client.amqp.connection import AmqpConnection
    from twinbus.client.retry import OperationOutcome
    from twinbus.model.errors import ServiceBusError

REPLY_CREDIT: Final = 100
_SUCCESS: Final = range(200, 300)


class Response:
    """Response from a node."""

    def __init__(self, message: Message) -> None:
        """Decode a response. Raise DecodeError if the response is malformed."""
        properties = self._properties = dict(message.application_properties)
        status = properties.get("statusCode", properties.get("status-code"))
        self.status = status if isinstance(status, int) else 0
        self.description = _text_or_none(properties.get("statusDescription", properties.get("status-description")))
        self.condition = _text_or_none(properties.get("errorCondition", properties.get("error-condition")))
        body = message.value
        self.body: dict[object, object] = dict(body) if isinstance(body, dict) else {}

    @property
    def is_success(self) -> bool:
        """Whether the status is 2xx."""
        return self.status in _SUCCESS

    @property
    def error(self) -> ServiceBusError:
        """The exception for a failed response."""
        return with_error_info(
            error_for_condition(self.condition or _CONDITION_BY_STATUS.get(self.status), self.description),
            self._properties,
        )


_CONDITION_BY_STATUS: Final = {
    400: "com.microsoft:argument-error",
    401: "amqp:unauthorized-access",
    403: "amqp:resource-limit-exceeded",
    404: "amqp:not-found",
    408: "com.microsoft:timeout",
    410: "com.microsoft:message-lock-lost",
    500: "amqp:internal-error",
    501: "amqp:not-implemented",
    503: "com.microsoft:server-busy",
}
"""AMQP condition for the status of a response without a condition; `$cbs` sends only a status."""


class RequestResponseLinks:
    """The request link and the response link to a node."""

    def __init__(self, connection: AmqpConnection, node: str) -> None:
        """Start attaching both links; `open` waits for them."""
        self._node = node
        self._reply_to = f"replies-{uuid.uuid4()}"
        self._reply_link = connection.attach_receiver(
            f"{node}-answers", source=Source(address=node), target=Target(address=self._reply_to), is_presettled=True
        )
        self._request_link = connection.attach_sender(
            f"{node}-requests", target=Target(address=node), source=Source(address=self._reply_to)
        )
        self._reply_link.grant(REPLY_CREDIT)
        self._reply_link.on_arrival = self._receive_replies
        self._request_link.on_ended = lambda _: self._receive_replies()
        self._pending: dict[str, asyncio.Future[Response]] = {}

    @property
    def failure(self) -> ServiceBusError | None:
        """Why the links ended; None while they are attaching or attached."""
        return self._reply_link.failure or self._request_link.failure

    async def open(self) -> None:
        """Wait until both links are attached. Raise the node's error if the node refuses either link."""
        await asyncio.shield(self._reply_link.attached)
        await asyncio.shield(self._request_link.attached)

    async def request(
        self,
        properties: Mapping[str, object],
        body: object,
        *,
        timeout_s: float,
        outcome: OperationOutcome | None = None,
    ) -> Response:
        """Send a request and return the response, successful or not. Raise TimedOut if no response arrives in time.

        If the caller is cancelled after the send, `outcome` records that the operation may have been carried out.
        """
        message_id = str(uuid.uuid4())
        payload = build(
            properties=Properties(message_id=message_id, reply_to=self._reply_to),
            application_properties=properties,
            body=value(body),
        )
        response: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        request = self._request_link.send(payload)
        self._pending[message_id] = response
        try:
            async with asyncio.timeout(timeout_s):
                await request
                return await response
        except TimeoutError:
            has_left = not self._request_link.withdraw(request)
            text = f"'{self._node}' did not answer {properties.get('operation')} within {timeout_s:g} s"
            raise TimedOut(text, may_have_happened=has_left) from None
        except asyncio.CancelledError:
            if not self._request_link.withdraw(request) and outcome is not None:
                outcome.may_have_happened = True
            raise
        finally:
            self._pending.pop(message_id, None)
            if response.done() and not response.cancelled():
                response.exception()  # asyncio logs an exception that nobody retrieves

    def detach(self) -> None:
        """Detach both links."""
        self._request_link.detach()
        self._reply_link.detach()

    def _receive_replies(self) -> None:
        reply_link = self._reply_link
        while reply_link.arrived:
            delivery = reply_link.arrived.popleft()
            reply_link.mark_taken([delivery])
            self._dispatch_reply(delivery.payload)
        if self.failure is not None:
            for future in self._pending.values():
                if not future.done():
                    future.set_exception(ConnectionLost(f"'{self._node}' did not answer: {self.failure}"))
        elif reply_link.credit < REPLY_CREDIT // 2:
            reply_link.grant(REPLY_CREDIT)

    def _dispatch_reply(self, payload: bytes) -> None:
        try:
            message = Message(payload)
            correlation = message.properties.correlation_id if message.properties is not None else None
            future = self._pending.get(str(correlation))
            if future is not None and not future.done():
                future.set_result(Response(message))
        except DecodeError as error:
            for pending in self._pending.values():
                if not pending.done():
                    pending.set_exception(UnknownAnswer(f"malformed response of '{self._node}': {error}"))


def _text_or_none(item: object) -> str | None:
    return str(item) if isinstance(item, str) else None
