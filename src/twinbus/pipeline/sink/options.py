"""Options for jobs that write: destination, message ids, and pairing.

Owns the options for the writing half of the data source, their defaults and their validation. Error texts never contain
connection strings.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from twinbus.model.path import canonical_key, relative_path
from twinbus.pipeline.errors import PipelineError
from twinbus.pipeline.option_parser import SPARK_OPTIONS, OptionParser

if TYPE_CHECKING:
    from collections.abc import Mapping

MESSAGE_IDS_GIVEN: Final = "given"
MESSAGE_IDS_DETERMINISTIC: Final = "deterministic"
OPTION_NAMES: Final = (
    "connectionString",
    "entity",
    "caFile",
    "operationTimeout",
    "messageIds",
    "messageIdKey",
    "secondaryConnectionString",
    "secondaryAdminConnectionString",
    "backlogQueueCount",
    "pingInterval",
    "failoverInterval",
    "primaryName",
    "journalDir",
    "spoolDir",
)
_PAIR_OPTION_NAMES: Final = (
    "secondaryAdminConnectionString",
    "backlogQueueCount",
    "pingInterval",
    "failoverInterval",
    "primaryName",
    "spoolDir",
)
"""Options that require a secondary namespace."""
_DEFAULT_TIMEOUT_S: Final = 60.0
_DEFAULT_BACKLOG_QUEUES: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class PairOptions:
    """The secondary namespace, which holds messages that the primary cannot accept."""

    connection_string: str = field(repr=False)
    admin_connection_string: str = field(repr=False)
    backlog_queue_count: int = _DEFAULT_BACKLOG_QUEUES
    ping_interval_s: float = _DEFAULT_TIMEOUT_S
    failover_interval_s: float = _DEFAULT_TIMEOUT_S
    primary_name: str | None = None
    spool_dir: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """The options for a job that writes."""

    connection_string: str = field(repr=False)
    entity: str | None = None
    """Destination for rows without an entity of their own."""
    ca_file: str | None = None
    operation_timeout_s: float = _DEFAULT_TIMEOUT_S
    has_deterministic_ids: bool = False
    """Whether a row without a message id gets the same id each time the row is written."""
    id_key: tuple[str, ...] = ()
    """Columns from which ids are derived (empty: the source id)."""
    journal_dir: str | None = None
    pair: PairOptions | None = None
    checkpoint: str | None = None
    """Checkpoint of the query, if given as an option. The checkpoint shows which batches may have been sent before."""


def read_options(options: Mapping[str, str]) -> SinkOptions:
    """Parse the options. Raise PipelineError if an option is invalid."""
    parser = OptionParser(options, OPTION_NAMES, purpose="writing", ignored=SPARK_OPTIONS)
    has_deterministic_ids = (
        parser.choice("messageIds", (MESSAGE_IDS_GIVEN, MESSAGE_IDS_DETERMINISTIC)) == MESSAGE_IDS_DETERMINISTIC
    )
    return SinkOptions(
        connection_string=parser.connection_string("connectionString"),
        entity=_entity_option(parser, options.get("path")),
        ca_file=parser.text("caFile"),
        operation_timeout_s=parser.seconds("operationTimeout", _DEFAULT_TIMEOUT_S),
        has_deterministic_ids=has_deterministic_ids,
        id_key=_read_id_key(parser, has_deterministic_ids=has_deterministic_ids),
        journal_dir=parser.text("journalDir"),
        pair=_read_pair(parser),
        checkpoint=next((text for name, text in options.items() if name.lower() == "checkpointlocation"), None),
    )


def _entity_option(parser: OptionParser, path: str | None) -> str | None:
    """Return the entity given as an option or as the argument of `save` or `start`."""
    named = parser.text("entity")
    if named and path and canonical_key(relative_path(named)) != canonical_key(relative_path(path)):
        raise PipelineError(
            f"the option entity is {named!r:.80}, but save(...) or start(...) names {path!r:.80}: give one"
        )
    return named or path


def _read_id_key(parser: OptionParser, *, has_deterministic_ids: bool) -> tuple[str, ...]:
    text = parser.text("messageIdKey")
    if text is None:
        return ()
    if not has_deterministic_ids:
        raise PipelineError(
            f"the option messageIdKey is {text!r:.80}, but messageIds is {MESSAGE_IDS_GIVEN}: ids are derived "
            "from these columns"
            f" only with messageIds={MESSAGE_IDS_DETERMINISTIC}"
        )
    names = tuple(name.strip() for name in text.split(","))
    if not all(names) or len(set(names)) < len(names):
        raise PipelineError(f"the option messageIdKey is {text!r:.80}; use distinct column names: orderId,line")
    return names


def _read_pair(parser: OptionParser) -> PairOptions | None:
    secondary = parser.text("secondaryConnectionString")
    if secondary is None:
        pair_options = [name for name in _PAIR_OPTION_NAMES if parser.text(name) is not None]
        if pair_options:
            raise PipelineError(f"the option {pair_options[0]} requires the option secondaryConnectionString")
        return None
    has_admin = parser.text("secondaryAdminConnectionString") is not None
    return PairOptions(
        connection_string=parser.connection_string("secondaryConnectionString"),
        admin_connection_string=parser.connection_string("secondaryAdminConnectionString") if has_admin else secondary,
        backlog_queue_count=parser.count("backlogQueueCount", _DEFAULT_BACKLOG_QUEUES) or _DEFAULT_BACKLOG_QUEUES,
        ping_interval_s=parser.seconds("pingInterval", _DEFAULT_TIMEOUT_S, min_s=1.0),
        failover_interval_s=parser.seconds("failoverInterval", _DEFAULT_TIMEOUT_S, min_s=0.0),
        primary_name=parser.text("primaryName"),
        spool_dir=parser.text("spoolDir"),
    )
