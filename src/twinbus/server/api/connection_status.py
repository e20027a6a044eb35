"""Descriptions of open connections and their links.

Owns the conversion of a client's connection to resources of the API. Reads the state of links, and changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from twinbus.model.status import ConnectionDetails, ConnectionStatus, Holder, LinkStatus
from twinbus.model.times import datetime_of
from twinbus.server.amqp.browse_link import BrowseLink
from twinbus.server.amqp.incoming_link import IncomingLink
from twinbus.server.amqp.open_connections import printable
from twinbus.server.amqp.outgoing_link import OutgoingLink
from twinbus.server.amqp.request_link import ReplyLink, RequestLink
from twinbus.server.amqp.session_link import SessionLink
from twinbus.server.amqp.transactions import CoordinatorLink
from twinbus.server.websocket.socket import WebSocket

if TYPE_CHECKING:
    from twinbus.amqp.link import Link
    from twinbus.server.amqp.open_connections import OpenConnection

    Role = Literal["sender", "receiver", "browser", "management", "transactions", "other"]


def connection_id(worker: int, number: int) -> str:
    """Return the id of a connection."""
    return f"{worker}-{number}"


def make_holder(connection: OpenConnection, worker: int, link: Link) -> Holder:
    """Return the description of the link that holds a lock or a session."""
    return Holder(
        connection_id=connection_id(worker, connection.number),
        client=client_address(connection),
        container_id=connection.container_id,
        link=printable(link.name),
    )


def make_connection_status(connection: OpenConnection, worker: int) -> ConnectionStatus:
    """Return the description of a connection."""
    return ConnectionStatus(**_common_fields(connection, worker))  # type: ignore[arg-type]  # the fields, by name


def make_connection_details(connection: OpenConnection, worker: int) -> ConnectionDetails:
    """Return the description of a connection with its links."""
    links = [_make_link_status(link, handler) for link, handler in connection.link_handlers.items()]
    return ConnectionDetails(**_common_fields(connection, worker), links=links)  # type: ignore[arg-type]


def client_address(connection: OpenConnection) -> str:
    """Return the address and port of a client."""
    peer_name = connection.peer.transport.get_extra_info("peername")
    return f"{peer_name[0]}:{peer_name[1]}" if isinstance(peer_name, tuple) else "unknown"


def _common_fields(connection: OpenConnection, worker: int) -> dict[str, object]:
    received, sent = connection.detached_received, connection.detached_sent
    locks = sessions = 0
    for handler in connection.link_handlers.values():
        if isinstance(handler, IncomingLink):
            received += handler.message_count
        elif isinstance(handler, OutgoingLink):
            sent += handler.message_count
            locks += 0 if handler.receive_and_delete else handler.link.unsettled_count
            sessions += isinstance(handler, SessionLink) and handler.session_lock is not None
    peer = connection.peer
    tls = peer.transport.get_extra_info("ssl_object")
    return {
        "id": connection_id(worker, connection.number),
        "worker": worker,
        "client": client_address(connection),
        "container_id": connection.container_id,
        "product": connection.product,
        "protocol": "amqp-websocket" if isinstance(peer.transport, WebSocket) else "amqp",
        "tls": tls.version() if tls is not None else None,
        "keys": sorted({grant.key_name for grant in connection.grants.current_grants()}),
        "since": datetime_of(connection.since_ms),
        "received_bytes": peer.received_bytes,
        "sent_bytes": peer.sent_bytes,
        "received_messages": received,
        "sent_messages": sent,
        "link_count": len(connection.link_handlers),
        "lock_count": locks,
        "session_count": sessions,
    }


def _make_link_status(link: Link, handler: object) -> LinkStatus:
    session_id = session_until = epoch = mode = None
    unsettled = link.unanswered_count
    if isinstance(handler, OutgoingLink):
        unsettled, epoch = link.unsettled_count, handler.receiver_identity.epoch
        mode = "receive-and-delete" if handler.receive_and_delete else "peek-lock"
    if isinstance(handler, SessionLink) and handler.session_lock is not None:
        session_id = handler.session_lock.session_id.decode(errors="replace")
        session_until = datetime_of(handler.session_lock.locked_until_ms)
    return LinkStatus(
        name=printable(link.name),
        role=_role_of(handler),
        address=printable(getattr(handler, "path", "")),
        credit=link.credit,
        unsettled=unsettled,
        messages=getattr(handler, "message_count", 0),
        receive_mode=mode,  # type: ignore[arg-type]  # one of the two literals above
        session_id=session_id,
        session_locked_until=session_until,
        epoch=epoch,
    )


def _role_of(handler: object) -> Role:
    if isinstance(handler, IncomingLink):
        return "sender"
    if isinstance(handler, OutgoingLink):
        return "receiver"
    if isinstance(handler, BrowseLink):
        return "browser"
    if isinstance(handler, CoordinatorLink):
        return "transactions"
    return "management" if isinstance(handler, RequestLink | ReplyLink) else "other"
