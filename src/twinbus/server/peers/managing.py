"""Requests to `$management` between processes: what one is asked, and another does.

Owns: which operations are done where the fragment is, and how requests and answers get there. What an operation does
is written in `server.operations`, once.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from twinbus.amqp.decode import decode
from twinbus.amqp.encode import encode
from twinbus.broker.ports.peer_protocol import SUB_QUEUES, Managed, ScheduleMessages, UpdateDisposition
from twinbus.model.errors import ServiceBusError
from twinbus.server.operations import transacted
from twinbus.server.operations.arguments import Arguments
from twinbus.server.operations.carrying import BY_MESSAGE
from twinbus.server.operations.outcomes import failure
from twinbus.server.operations.subject import Subject

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.ports.peer_protocol import Answer, Manage
    from twinbus.server.administration import Administration
    from twinbus.server.peers.desk import Desk
    from twinbus.server.requests import Response

_IN_TRANSACTIONS: Final = {
    ScheduleMessages: transacted.schedule,
    UpdateDisposition: transacted.update_disposition,
}


def manage(administration: Administration, desk: Desk, call: Manage, tell: Callable[[Answer], None]) -> None:
    """Do what another process asks of a fragment."""

    def reply(response: Response) -> None:
        tell(Managed(encode([dict(response.properties), response.body])))

    entity, number, sub_queue = call.place
    try:
        desk.part(entity, number)
        subject = Subject(
            desk.namespace,
            administration,
            desk.entity(entity),
            SUB_QUEUES[sub_queue],
            partial(desk.find_session, call.client),
            partial(desk.is_of, call.client),
            number=number,
        )
        subject.entity.note_use(desk.namespace.clock)
        body = cast("dict[Any, Any]", decode(call.arguments)[0])
        arguments = Arguments(body, max_id_characters=desk.namespace.limits.max_id_characters)
        if call.transaction:
            _IN_TRANSACTIONS[type(call)](subject, arguments, desk.transaction(call.transaction), reply)
        else:
            BY_MESSAGE[type(call)](subject, arguments, reply)
    except ServiceBusError as error:
        if call.transaction:
            desk.transaction(call.transaction).fail(error)
        reply(failure(error))
