"""Program that hosts the syphon: python -m tests.campaigns.outages.syphon_program CONFIG, until SIGTERM.

If the secondary is unavailable at the start, the program retries. Owns: a log with a line for each message that was
moved, deferred or dead-lettered.
"""

from __future__ import annotations

import asyncio
import logging
import re
import signal
import sys
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

import uvloop

from tests.campaigns.outages.program_config import ProgramConfig, pair_namespaces
from twinbus.model.errors import ServiceBusError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from twinbus.client.pairing import PairingEvent

RETRY_PAUSE_S: Final = 0.3
log: Final = logging.getLogger("syphon")
_EVENT: Final = re.compile(r"^\S+ \S+ INFO syphon: ([a-z -]+):", re.MULTILINE)


def log_event(event: PairingEvent) -> None:
    """Log the event of a message, so that a missing message can be traced."""
    details = (event.backlog_queue, event.sequence_number, event.message_id, event.reason)
    log.info("%s: %s", event.kind.value, " ".join(str(detail) for detail in details if detail is not None))


def count_events(logs: Iterable[Path]) -> Counter[str]:
    """Count the events in the logs of syphons, by kind."""
    return Counter(kind for file in logs for kind in _EVENT.findall(file.read_text(errors="replace")))


async def main(config: ProgramConfig) -> None:
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    while not stopping.is_set():
        async with AsyncExitStack() as stack:
            try:
                pairing = await stack.enter_async_context(pair_namespaces(config, enable_syphon=True))
            except ServiceBusError as error:
                log.warning("not paired yet: %s", error)
                await asyncio.sleep(RETRY_PAUSE_S)
                continue
            pairing.on_event(log_event)
            await stopping.wait()


if __name__ == "__main__":
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.INFO)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    uvloop.run(main(ProgramConfig.read(Path(sys.argv[1]))))
