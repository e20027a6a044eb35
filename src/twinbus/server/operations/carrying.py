"""Operations on a fragment that another process has: they are done there.

Owns: which operations these are, by their names, and what is carried there and back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from twinbus.amqp.decode import decode
from twinbus.amqp.encode import encode
from twinbus.broker.remote.calls import SUB_QUEUES, Manage, Managed
from twinbus.broker.remote.journal import RemoteJournal
from twinbus.model.errors import ServiceBusError
from twinbus.server.operations import messages, removals, sessions, withholding
from twinbus.server.operations.outcomes import failure
from twinbus.server.requests import Response

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.remote.calls import Answer
    from twinbus.server.operations.arguments import Arguments
    from twinbus.server.operations.subject import Subject
    from twinbus.server.requests import Reply

    Operation: TypeAlias = Callable[[Subject, Arguments, Reply], None]

CARRIED: Final[dict[str, Operation]] = {
    act.__name__: act
    for act in (
        messages.peek,
        messages.cancel,
        messages.find_scheduled,
        messages.renew_lock,
        messages.receive_deferred,
        messages.update_disposition,
        sessions.renew,
        sessions.set_state,
        sessions.get_state,
        sessions.list_sessions,
        removals.batch_delete,
        removals.purge,
        removals.delete_numbers,
        removals.resubmit,
        removals.complete_up_to,
        removals.list_fragments,
        withholding.withhold,
    )
}
"""By the names under which they are asked for."""


def act_there(act: Operation, subject: Subject, arguments: Arguments, reply: Reply) -> None:
    """Do something in a fragment, wherever it is. StoreUnavailable."""
    if act.__name__ not in CARRIED or not isinstance(subject.fragment.journal, RemoteJournal):
        act(subject, arguments, reply)
    else:
        carry(act.__name__, subject, arguments, reply)


def carry(operation: str, subject: Subject, arguments: Arguments, reply: Reply, transaction: int = 0) -> None:
    """Have something done by the process that has a fragment; in a transaction of that, if one is named."""
    journal = subject.fragment.journal
    assert isinstance(journal, RemoteJournal)
    place = (subject.entity.entity_id, subject.fragment.number, SUB_QUEUES.index(subject.sub_queue))

    def told(answer: Answer | ServiceBusError) -> None:
        if isinstance(answer, Managed):
            properties, body = cast("tuple[dict[str, Any], object]", decode(answer.response)[0])
            reply(Response(properties, body))
        else:
            assert isinstance(answer, ServiceBusError)
            reply(failure(answer))

    journal.owner.ask(Manage(place, operation, encode(arguments.body), subject.client, transaction), told)
