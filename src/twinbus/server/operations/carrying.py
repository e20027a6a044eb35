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
    DeleteByNumber,
    FindScheduled,
    GetSessionState,
    ListFragments,
    ListSessions,
    Manage,
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
from twinbus.server.operations import messages, removals, sessions, withholding
from twinbus.server.operations.outcomes import failure
from twinbus.server.requests import Response

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.server.operations.arguments import Arguments
    from twinbus.server.operations.subject import Subject
    from twinbus.server.requests import Reply

    Operation: TypeAlias = Callable[[Subject, Arguments, Reply], None]

BY_MESSAGE: Final[dict[type[Manage], Operation]] = {
    PeekMessages: messages.peek,
    CancelScheduled: messages.cancel,
    FindScheduled: messages.find_scheduled,
    RenewLocks: messages.renew_lock,
    ReceiveDeferred: messages.receive_deferred,
    UpdateDisposition: messages.update_disposition,
    RenewSession: sessions.renew,
    SetSessionState: sessions.set_state,
    GetSessionState: sessions.get_state,
    ListSessions: sessions.list_sessions,
    BatchDelete: removals.batch_delete,
    Purge: removals.purge,
    DeleteByNumber: removals.delete_numbers,
    Resubmit: removals.resubmit,
    CompleteUpTo: removals.complete_up_to,
    ListFragments: removals.list_fragments,
    Withhold: withholding.withhold,
}
"""What the owner of a fragment does when another process asks for it."""
_MESSAGES: Final = {operation: message for message, operation in BY_MESSAGE.items()}


def carry_out(operation: Operation, subject: Subject, arguments: Arguments, reply: Reply) -> None:
    """Carry out an operation where its fragment is; one that concerns no fragment, here. StoreUnavailable."""
    act = partial(operation, subject, arguments, reply)
    kind = _MESSAGES.get(operation)
    if kind is None:
        act()
    else:
        carry(kind, subject, arguments, reply, act)


def carry(
    kind: type[Manage],
    subject: Subject,
    arguments: Arguments,
    reply: Reply,
    act: Callable[[], None],
    transaction: int = 0,
) -> None:
    """Have something done by the owner of a fragment: by `act` if that is this process, else as the message asks."""

    def answered(response: bytes | ServiceBusError) -> None:
        if isinstance(response, ServiceBusError):
            reply(failure(response))
        else:
            properties, body = cast("tuple[dict[str, Any], object]", decode(response)[0])
            reply(Response(properties, body))

    request = ManagementRequest(
        kind, lambda: encode(arguments.body), answered, client=subject.client, transaction=transaction
    )
    subject.fragment.manage(request, act)
