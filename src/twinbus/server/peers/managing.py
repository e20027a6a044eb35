"""Requests to `$management` between processes: what one is asked, and another does.

Owns: which operations are done where the fragment is, and how requests and answers get there. What an operation does
is written in `server.operations`, once.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from twinbus.amqp.decode import decode
from twinbus.amqp.encode import encode
from twinbus.broker.ports.peer_protocol import SUB_QUEUES, ManagementResponse, ScheduleMessages, UpdateDisposition
from twinbus.model.errors import ServiceBusError
from twinbus.server.operations import transacted
from twinbus.server.operations.arguments import Arguments
from twinbus.server.operations.carrying import OPERATION_BY_MESSAGE
from twinbus.server.operations.outcomes import failure
from twinbus.server.operations.subject import RequestContext

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.ports.peer_protocol import ManagementCall, Reply
    from twinbus.server.administration import Administration
    from twinbus.server.peers.desk import PeerServer
    from twinbus.server.requests import Response

_TRANSACTIONAL_OPERATIONS: Final = {
    ScheduleMessages: transacted.schedule,
    UpdateDisposition: transacted.update_disposition,
}


def handle_management(
    administration: Administration, peer_server: PeerServer, request: ManagementCall, on_reply: Callable[[Reply], None]
) -> None:
    """Do what another process asks of a fragment."""

    def reply(response: Response) -> None:
        on_reply(ManagementResponse(encode([dict(response.properties), response.body])))

    entity, number, sub_queue = request.address
    try:
        peer_server.part(entity, number)
        subject = RequestContext(
            peer_server.namespace,
            administration,
            peer_server.entity(entity),
            SUB_QUEUES[sub_queue],
            partial(peer_server.find_session_holder, request.client_id),
            partial(peer_server.owns_consumer, request.client_id),
            fragment_number=number,
        )
        subject.entity.record_access(peer_server.namespace.clock)
        body = cast("dict[Any, Any]", decode(request.arguments)[0])
        arguments = Arguments(body, max_id_characters=peer_server.namespace.limits.max_id_characters)
        if request.transaction_id:
            _TRANSACTIONAL_OPERATIONS[type(request)](
                subject, arguments, peer_server.transaction(request.transaction_id), reply
            )
        else:
            OPERATION_BY_MESSAGE[type(request)](subject, arguments, reply)
    except ServiceBusError as error:
        if request.transaction_id:
            peer_server.transaction(request.transaction_id).fail(error)
        reply(failure(error))
