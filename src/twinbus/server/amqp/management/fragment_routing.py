"""Operations of `$management` on one fragment: they are carried out by the process that owns it.

Owns: which message of the peer protocol asks for which operation.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from twinbus.amqp.decode import decode
from twinbus.amqp.encode import encode
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
    PeekMessages,
    Purge,
    ReceiveDeferred,
    RenewLocks,
    RenewSession,
    Resubmit,
    SetSessionState,
    UpdateDisposition,
    Withhold,
)
from twinbus.model.errors import ServiceBusError
from twinbus.server.amqp.management import deletion, messages, sessions
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
    CompleteUpTo: deletion.complete_up_to,
    ListFragments: deletion.list_fragments,
    Withhold: messages.withhold,
}
"""What the owner of a fragment does when another process asks for it."""
_MESSAGE_BY_OPERATION: Final = {operation: message for message, operation in OPERATION_BY_MESSAGE.items()}


def run_operation(
    operation: ManagementOperation, context: RequestContext, arguments: Arguments, on_reply: OnReply
) -> None:
    """Carry out an operation where its fragment is; one that concerns no fragment, here. StoreUnavailable."""
    act = partial(operation, context, arguments, on_reply)
    kind = _MESSAGE_BY_OPERATION.get(operation)
    if kind is None:
        act()
    else:
        run_at_owner(kind, context, arguments, on_reply, act)


def run_at_owner(
    message_type: type[ManagementCall],
    context: RequestContext,
    arguments: Arguments,
    on_reply: OnReply,
    run_locally: Callable[[], None],
    transaction_id: int = 0,
) -> None:
    """Have something done by the owner of a fragment: by `act` if that is this process, else as the message asks."""

    def answered(response: bytes | ServiceBusError) -> None:
        if isinstance(response, ServiceBusError):
            on_reply(failure(response))
        else:
            properties, body = cast("tuple[dict[str, Any], object]", decode(response)[0])
            on_reply(Response(properties, body))

    request = ManagementRequest(
        message_type,
        lambda: encode(arguments.body),
        answered,
        client_id=context.client_id,
        transaction_id=transaction_id,
    )
    context.fragment.manage(request, run_locally)
