"""Where a program of a campaign finds the two namespaces, and how it pairs them.

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
    """A program's connection strings, each by way of a network path of its own."""

    primary: str
    secondary: str
    management: str
    """Of the secondary, to make backlog queues."""
    journals: str | None = None
    """The folder for journals; None: the program keeps none."""
    spool: str | None = None
    """The folder for the spool; None: the program has none."""

    def write(self, file: Path) -> None:
        file.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, file: Path) -> ProgramConfig:
        return cls(**json.loads(file.read_text()))


@contextlib.asynccontextmanager
async def pair_namespaces(config: ProgramConfig, **options: bool) -> AsyncIterator[Pairing]:
    """A pair with such options, until the block ends. ServiceBusError while the secondary cannot be used."""
    async with (
        MessagingFactory.from_connection_string(config.primary, operation_timeout=OPERATION_TIMEOUT_S) as primary,
        MessagingFactory.from_connection_string(config.secondary, operation_timeout=OPERATION_TIMEOUT_S) as secondary,
        NamespaceManager.from_connection_string(config.management, operation_timeout=OPERATION_TIMEOUT_S) as manager,
    ):
        chosen = SendAvailabilityPairedNamespaceOptions(
            secondary_factory=secondary,
            secondary_namespace_manager=manager,
            failover_interval=0,
            ping_primary_interval=PING_INTERVAL_S,
            backlog_queue_count=BACKLOG_QUEUES,
            backlog_cool_down=2,
            primary_namespace_name=PRIMARY_NAME,
            journal_dir=config.journals,
            spool_dir=config.spool,
            **options,  # type: ignore[arg-type]  # those that are bool
        )
        async with await primary.pair_namespace(chosen) as pairing:
            yield pairing
