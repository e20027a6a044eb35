"""Configuration of a program: connection strings of the two namespaces, and options of the pair.

Owns: the file with a program's connection strings, and the options of all pairs. Times are short: an operation has 4
seconds, an unavailable entity is pinged every second, and failover is immediate.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from twinbus.client import MessagingFactory
from twinbus.client.management import NamespaceManager
from twinbus.client.pairing import SendAvailabilityPairedNamespaceOptions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from twinbus.client.pairing import Pairing

PRIMARY_NAME: Final = "contoso"
BACKLOG_QUEUES: Final = 3
OPERATION_TIMEOUT_S: Final = 4.0
PING_INTERVAL_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class ProgramConfig:
    """Connection strings of a program, each through its own relay."""

    primary: str
    secondary: str
    management: str
    """Management of the secondary, to create backlog queues."""
    journals: str | None = None
    """Folder for journals; None: no journals."""
    spool: str | None = None
    """Folder for the spool; None: no spool."""

    def write(self, file: Path) -> None:
        file.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, file: Path) -> ProgramConfig:
        return cls(**json.loads(file.read_text()))


@contextlib.asynccontextmanager
async def pair_namespaces(config: ProgramConfig, **options: bool) -> AsyncIterator[Pairing]:
    """Pair the namespaces; raise ServiceBusError if the secondary is unavailable."""
    async with (
        MessagingFactory.from_connection_string(config.primary, operation_timeout=OPERATION_TIMEOUT_S) as primary,
        MessagingFactory.from_connection_string(config.secondary, operation_timeout=OPERATION_TIMEOUT_S) as secondary,
        NamespaceManager.from_connection_string(config.management, operation_timeout=OPERATION_TIMEOUT_S) as manager,
    ):
        pair_options = SendAvailabilityPairedNamespaceOptions(
            secondary_factory=secondary,
            secondary_namespace_manager=manager,
            failover_interval=0,
            ping_primary_interval=PING_INTERVAL_S,
            backlog_queue_count=BACKLOG_QUEUES,
            backlog_cool_down=2,
            primary_namespace_name=PRIMARY_NAME,
            journal_dir=config.journals,
            spool_dir=config.spool,
            **options,  # type: ignore[arg-type]  # all options here are bool
        )
        async with await primary.pair_namespace(pair_options) as pairing:
            yield pairing
