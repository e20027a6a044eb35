"""Status of a namespace and its parts, as the JSON API returns it: entities, connections, locks, stores, workers.

Owns the resources of the API with their fields. The server encodes them, the client decodes them, and the OpenAPI
document is generated from them, so all three agree. Nothing here contains a secret: no keys, no lock tokens.

Times are in UTC. Totals count from the creation of an entity and survive restarts; rates are messages per second in the
last few seconds.
"""

from __future__ import annotations

import datetime as dt  # noqa: TC003  # msgspec resolves the annotations
from typing import Literal

import msgspec

EntityKind = Literal["queue", "topic", "subscription"]
Severity = Literal["critical", "warning"]


class _Resource(msgspec.Struct, frozen=True, kw_only=True):
    """Base class of all resources. Unknown fields are ignored, so that a client can read a newer server."""


# --- entities ---------------------------------------------------------------------------------------------------------


class MessageCounts(_Resource, frozen=True, kw_only=True):
    """Messages by state, now."""

    active: int = 0
    """Active messages, locked ones included."""
    scheduled: int = 0
    deferred: int = 0
    dead_lettered: int = 0
    transfer: int = 0
    """Messages on their way to another entity."""
    transfer_dead_lettered: int = 0
    """Messages that could not be forwarded to another entity."""
    locked: int = 0
    """Locked messages, those of the dead-letter queue included."""


class MessageTotals(_Resource, frozen=True, kw_only=True):
    """Messages since the creation of the entity. The numbers are on disk and never decrease."""

    enqueued: int = 0
    """Messages stored: sent, forwarded, copied or resubmitted to the entity. A scheduled message counts once when it
    is stored, and once more when it becomes active."""
    removed: int = 0
    """Messages that have left the entity: completed, expired, deleted, forwarded or dead-lettered."""
    dead_lettered: int = 0
    """Messages moved to the dead-letter queue."""


class MessageRates(_Resource, frozen=True, kw_only=True):
    """Messages per second that clients sent, received and settled, in the last few seconds."""

    sent: float = 0.0
    received: float = 0.0
    settled: float = 0.0


class EntityStatus(_Resource, frozen=True, kw_only=True):
    """A queue, topic or subscription."""

    path: str
    kind: EntityKind
    status: str
    """`Active`, `Disabled`, `SendDisabled` or `ReceiveDisabled`."""
    is_partitioned: bool
    is_available: bool
    """False while a store of the entity does not work; its figures are then the last known ones."""
    counts: MessageCounts
    totals: MessageTotals
    size_bytes: int
    max_size_bytes: int
    rates: MessageRates
    oldest_active: dt.datetime | None
    """Enqueued time of the oldest active message; null if there is none, or if it is not known yet."""
    oldest_active_age_s: float | None
    senders: int
    """Links on which clients send to the entity."""
    receivers: int
    """Links on which clients receive from the entity, its dead-letter queue not included."""
    created: dt.datetime
    updated: dt.datetime
    accessed: dt.datetime


class FragmentStatus(_Resource, frozen=True, kw_only=True):
    """A fragment of an entity. A plain entity has one, a partitioned entity has 16."""

    number: int
    store: int
    worker: int
    """The process that owns the store."""
    is_available: bool
    counts: MessageCounts
    totals: MessageTotals
    size_bytes: int


class EntityDetails(EntityStatus, frozen=True, kw_only=True):
    """An entity with its fragments."""

    requires_session: bool
    forward_to: str | None
    fragments: list[FragmentStatus]


class EntityPage(_Resource, frozen=True, kw_only=True):
    """A page of entities, in order of path."""

    entities: list[EntityStatus]
    next: str | None
    """The value of `after` for the next page; null on the last page."""


# --- locks and sessions -----------------------------------------------------------------------------------------------


class Holder(_Resource, frozen=True, kw_only=True):
    """The link that holds a lock or a session."""

    connection_id: str
    client: str
    """Address and port of the client."""
    container_id: str
    link: str
    """Name of the link."""


class LockStatus(_Resource, frozen=True, kw_only=True):
    """The lock of a message."""

    sequence_number: int
    fragment: int
    session_id: str | None
    is_deferred: bool
    locked_since: dt.datetime
    """When the message was locked, or the lock was renewed last."""
    locked_until: dt.datetime
    holder: Holder | None
    """Null if the link that received the message is closed, or if the message was received without a link."""


class LockPage(_Resource, frozen=True, kw_only=True):
    """A page of locks, in order of sequence number."""

    locks: list[LockStatus]
    next: str | None


class SessionStatus(_Resource, frozen=True, kw_only=True):
    """A locked session."""

    session_id: str
    fragment: int
    locked_until: dt.datetime
    locked_messages: int
    """Messages of the session that are locked."""
    holder: Holder | None


class SessionPage(_Resource, frozen=True, kw_only=True):
    """A page of locked sessions, in order of id."""

    sessions: list[SessionStatus]
    next: str | None


# --- connections ------------------------------------------------------------------------------------------------------


class LinkStatus(_Resource, frozen=True, kw_only=True):
    """A link of a connection."""

    name: str
    role: Literal["sender", "receiver", "browser", "management", "transactions", "other"]
    """What the client does with the link."""
    address: str
    """Path of the entity or node."""
    credit: int
    unsettled: int
    """Messages that are not settled yet."""
    messages: int
    """Messages transferred on the link."""
    receive_mode: Literal["peek-lock", "receive-and-delete"] | None
    """Null if the link does not receive."""
    session_id: str | None
    session_locked_until: dt.datetime | None
    epoch: int | None
    """The epoch of an exclusive receiver."""


class ConnectionStatus(_Resource, frozen=True, kw_only=True):
    """An AMQP connection of a client."""

    id: str
    """The number of the process and of the connection, such as `0-17`."""
    worker: int
    client: str
    """Address and port of the client."""
    container_id: str
    product: str
    """Name and version of the client's library, as the client reports them."""
    protocol: Literal["amqp", "amqp-websocket"]
    tls: str | None
    """Version of TLS; null without TLS."""
    keys: list[str]
    """Names of the keys that the client presented or that signed its tokens."""
    since: dt.datetime
    received_bytes: int
    sent_bytes: int
    received_messages: int
    """Messages that the client sent."""
    sent_messages: int
    """Messages that the client received."""
    link_count: int
    lock_count: int
    """Messages locked by the links of the connection."""
    session_count: int
    """Sessions locked by the links of the connection."""


class ConnectionDetails(ConnectionStatus, frozen=True, kw_only=True):
    """A connection with its links."""

    links: list[LinkStatus]


class ConnectionPage(_Resource, frozen=True, kw_only=True):
    """A page of connections, in order of worker and number."""

    connections: list[ConnectionStatus]
    next: str | None


# --- the server -------------------------------------------------------------------------------------------------------


class StoreStatus(_Resource, frozen=True, kw_only=True):
    """A store."""

    number: int
    worker: int
    is_available: bool
    accepts_messages: bool
    """False while the store is unavailable or its disk is full."""
    reason: str | None
    """Why the store is unavailable or accepts no messages."""


class DiskStatus(_Resource, frozen=True, kw_only=True):
    """The disk of a store."""

    store: int
    worker: int
    free_bytes: int | None
    """Null if the disk cannot be read."""
    total_bytes: int | None
    min_free_bytes: int
    """Below this free space, the store accepts no messages."""


class WorkerStatus(_Resource, frozen=True, kw_only=True):
    """A process of the server. After a process has stopped answering, its figures are the last known ones."""

    number: int
    is_up: bool
    started: dt.datetime | None
    """Null if the process never answered."""
    connections: int
    cpu_s: float
    memory_bytes: int
    open_files: int


class FailedLogin(_Resource, frozen=True, kw_only=True):
    """A failed login."""

    time: dt.datetime
    worker: int
    mechanism: str
    """`sasl`, `cbs` or `http`."""
    client: str
    key: str
    """The name of the key, or `unknown`: an unknown name may be a secret entered in the wrong field."""
    reason: str


class OutageStatus(_Resource, frozen=True, kw_only=True):
    """A rehearsed outage."""

    path: str
    kind: str
    since: dt.datetime
    until: dt.datetime


class PairingStatus(_Resource, frozen=True, kw_only=True):
    """Reports from paired clients, for one primary. `/$pairing` has the reports themselves."""

    primary: str
    clients: int
    unprotected_clients: int
    """Clients whose secondary cannot take over."""
    failed_over_entities: int
    """Entities that a client sends to through this namespace, added up over all clients."""
    spooled_messages: int
    """Messages that wait on the disks of clients."""


class Alert(_Resource, frozen=True, kw_only=True):
    """A condition that needs attention."""

    severity: Severity
    name: str
    """One of `store-unavailable`, `disk-full`, `worker-down`, `dead-letters-growing`, `failed-logins` and
    `outage-rehearsed`."""
    text: str


class EntityNumbers(_Resource, frozen=True, kw_only=True):
    """The number of entities, by kind."""

    queues: int
    topics: int
    subscriptions: int


class Overview(_Resource, frozen=True, kw_only=True):
    """The namespace as a whole."""

    namespace: str
    version: str
    time: dt.datetime
    started: dt.datetime
    """When the process that answers was started."""
    workers: int
    workers_up: int
    entities: EntityNumbers
    unavailable_entities: int
    counts: MessageCounts
    totals: MessageTotals
    size_bytes: int
    rates: MessageRates
    connections: int
    alerts: list[Alert]


# --- lists that are never long ----------------------------------------------------------------------------------------


class Stores(_Resource, frozen=True, kw_only=True):
    """All stores."""

    stores: list[StoreStatus]


class Workers(_Resource, frozen=True, kw_only=True):
    """All processes."""

    workers: list[WorkerStatus]


class Disks(_Resource, frozen=True, kw_only=True):
    """The disks of all stores."""

    disks: list[DiskStatus]


class Pairings(_Resource, frozen=True, kw_only=True):
    """Summaries of reports from paired clients, by primary."""

    pairings: list[PairingStatus]


class RehearsedOutages(_Resource, frozen=True, kw_only=True):
    """The rehearsed outages that are on now."""

    outages: list[OutageStatus]


class FailedLogins(_Resource, frozen=True, kw_only=True):
    """The last failed logins, the latest first."""

    failed_logins: list[FailedLogin]


class ErrorBody(_Resource, frozen=True, kw_only=True):
    """The body of an error response."""

    status: int
    error: str
    """What failed, with which value, and what to do."""
    tracking_id: str
    """With this id, an administrator finds the failure in the server's log."""
