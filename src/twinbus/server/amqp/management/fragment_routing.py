"""Routing of `$management` operations to the process that owns the fragment.

Owns: the mapping between operations and messages in the peer protocol.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from twinbus.amqp.codec.decode import decode
from twinbus.amqp.codec.encode import encode
from twinbus.broker.ports.fragment import ManagementRequest
from twinbus.broker.ports.peer_protocol import (
    BatchDelete,
    CancelScheduled,
    CompleteUpTo,
    DeleteBySequenceNumber,
    FindScheduled,
    GetSessionState,
    ListFragments,
    ListSessions,
    ManagementCall,
    MoveMessages,
    PeekMessages,
    Purge,
    ReceiveDeferred,
    RenewLocks,
    RenewSession,
    Resubmit,
    SearchMessages,
    SetSessionState,
    UpdateDisposition,
    Withhold,
)
from twinbus.model.errors import ServiceBusError
from twinbus.server.amqp.management import deletion, messages, search, sessions
from twinbus.server.amqp.management.responses import failure
from twinbus.server.amqp.request_link import Response

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.server.amqp.management.arguments import Arguments
    from twinbus.server.amqp.management.request_context import RequestContext
    from twinbus.server.amqp.request_link import OnReply

    ManagementOperation: TypeAlias = Callable[[RequestContext, Arguments, OnReply], None]

OPERATION_BY_MESSAGE: Final[dict[type[ManagementCall], ManagementOperation]] = {
    PeekMessages: messages.peek,
    CancelScheduled: messages.cancel_scheduled,
    FindScheduled: messages.find_scheduled,
    RenewLocks: messages.renew_lock,
    ReceiveDeferred: messages.receive_deferred,
    UpdateDisposition: messages.update_disposition,
    RenewSession: sessions.renew_session_lock,
    SetSessionState: sessions.set_session_state,
    GetSessionState: sessions.get_session_state,
    ListSessions: sessions.list_sessions,
    BatchDelete: deletion.batch_delete,
    Purge: deletion.purge,
    DeleteBySequenceNumber: deletion.delete_by_sequence_number,
    Resubmit: deletion.resubmit,
    MoveMessages: deletion.move,
    SearchMessages: search.search,
    CompleteUpTo: deletion.complete_up_to,
    ListFragments: deletion.list_fragments,
    Withhold: messages.withhold,
}
"""The operations that the owner of a fragment executes for other processes."""
_MESSAGE_BY_OPERATION: Final = {operation: message for message, operation in OPERATION_BY_MESSAGE.items()}


def run_operation(
    operation: ManagementOperation, context: RequestContext, arguments: Arguments, on_reply: OnReply
) -> None:
    """Run an operation at the owner of its fragment, or in this process if the operation needs no fragment.

    Raise StoreUnavailable if the owner cannot be reached.
    """
    run_locally = partial(operation, context, arguments, on_reply)
    message_type = _MESSAGE_BY_OPERATION.get(operation)
    if message_type is None:
        run_locally()
    else:
        run_at_owner(message_type, context, arguments, on_reply, run_locally)


def run_at_owner(
    message_type: type[ManagementCall],
    context: RequestContext,
    arguments: Arguments,
    on_reply: OnReply,
    run_locally: Callable[[], None],
    transaction_id: int = 0,
) -> None:
    """Run an operation at the owner of a fragment: `run_locally` in this process, or a message to another process."""

    def on_response(response: bytes | ServiceBusError) -> None:
        if isinstance(response, ServiceBusError):
            on_reply(failure(response))
        else:
            properties, body = cast("tuple[dict[str, Any], object]", decode(response)[0])
            on_reply(Response(properties, body))

    request = ManagementRequest(
        message_type,
        lambda: encode(arguments.body),
        on_response,
        client_id=context.client_id,
        transaction_id=transaction_id,
    )
    context.fragment.manage(request, run_locally)
