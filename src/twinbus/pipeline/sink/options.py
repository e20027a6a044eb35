"""What a job that writes says: where to, and how.

Owns: the options of the writing half of the data source, their defaults, and what is wrong with one that cannot be. The
connection strings never show in a text.
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
"""What means nothing without a secondary."""
_DEFAULT_TIMEOUT_S: Final = 60.0
_DEFAULT_BACKLOG_QUEUES: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class PairOptions:
    """The second namespace, which has what the first does not take."""

    connection_string: str = field(repr=False)
    admin_connection_string: str = field(repr=False)
    backlog_queue_count: int = _DEFAULT_BACKLOG_QUEUES
    ping_interval_s: float = _DEFAULT_TIMEOUT_S
    failover_interval_s: float = _DEFAULT_TIMEOUT_S
    primary_name: str | None = None
    spool_dir: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """All of it."""

    connection_string: str = field(repr=False)
    entity: str | None = None
    """Where rows go that do not say it themselves."""
    ca_file: str | None = None
    operation_timeout_s: float = _DEFAULT_TIMEOUT_S
    has_deterministic_ids: bool = False
    """Rows without an id are given one that is the same each time they are written."""
    id_key: tuple[str, ...] = ()
    """The columns that these ids are derived from; none: the id of the source's message."""
    journal_dir: str | None = None
    pair: PairOptions | None = None
    checkpoint: str | None = None
    """The checkpoint of the query, if that was given as an option: it tells which batches may have been sent before."""


def read_options(options: Mapping[str, str]) -> SinkOptions:
    """What the options come to; PipelineError names the one that cannot be."""
    found = OptionParser(options, OPTION_NAMES, purpose="writing", ignored=SPARK_OPTIONS)
    has_deterministic_ids = (
        found.choice("messageIds", (MESSAGE_IDS_GIVEN, MESSAGE_IDS_DETERMINISTIC)) == MESSAGE_IDS_DETERMINISTIC
    )
    return SinkOptions(
        connection_string=found.connection_string("connectionString"),
        entity=_entity_option(found, options.get("path")),
        ca_file=found.text("caFile"),
        operation_timeout_s=found.seconds("operationTimeout", _DEFAULT_TIMEOUT_S),
        has_deterministic_ids=has_deterministic_ids,
        id_key=_read_id_key(found, has_deterministic_ids=has_deterministic_ids),
        journal_dir=found.text("journalDir"),
        pair=_read_pair(found),
        checkpoint=next((text for name, text in options.items() if name.lower() == "checkpointlocation"), None),
    )


def _entity_option(parser: OptionParser, path: str | None) -> str | None:
    """The entity: by the option, or by the argument of save or start."""
    named = parser.text("entity")
    if named and path and canonical_key(relative_path(named)) != canonical_key(relative_path(path)):
        raise PipelineError(
            f"the option entity is {named!r:.80}, and save(...) or start(...) says {path!r:.80}: give one of them"
        )
    return named or path


def _read_id_key(parser: OptionParser, *, has_deterministic_ids: bool) -> tuple[str, ...]:
    text = parser.text("messageIdKey")
    if text is None:
        return ()
    if not has_deterministic_ids:
        raise PipelineError(
            f"the option messageIdKey is {text!r:.80}, and messageIds is {MESSAGE_IDS_GIVEN}: ids are derived "
            "from these columns"
            f" with messageIds={MESSAGE_IDS_DETERMINISTIC} only"
        )
    names = tuple(name.strip() for name in text.split(","))
    if not all(names) or len(set(names)) < len(names):
        raise PipelineError(
            f"the option messageIdKey is {text!r:.80}; it is the names of columns, each once: orderId,line"
        )
    return names


def _read_pair(parser: OptionParser) -> PairOptions | None:
    secondary = parser.text("secondaryConnectionString")
    if secondary is None:
        alone = [name for name in _PAIR_OPTION_NAMES if parser.text(name) is not None]
        if alone:
            raise PipelineError(f"the option {alone[0]} is for a pair: it needs secondaryConnectionString as well")
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
