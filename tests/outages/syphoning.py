"""A program that hosts the syphon: python -m tests.outages.syphoning PLACE, until SIGTERM.

It may be started while the secondary is away: then it tries again. Owns: a log of what it did with each message.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import uvloop

from tests.outages.place import Place, paired
from twinbus.client.pairing import PairingFailed

if TYPE_CHECKING:
    from twinbus.client.pairing import PairingEvent

PAUSE_S: Final = 0.3
log: Final = logging.getLogger("syphon")


def write_down(event: PairingEvent) -> None:
    """What became of each message: where one is missing, this tells the way it went."""
    about = (event.backlog_queue, event.sequence_number, event.message_id, event.reason)
    log.info("%s: %s", event.kind.value, " ".join(str(one) for one in about if one is not None))


async def main(place: Place) -> None:
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    while not stopping.is_set():
        try:
            async with paired(place, enable_syphon=True) as pairing:
                pairing.on_event(write_down)
                await stopping.wait()
        except PairingFailed as failure:
            log.warning("not yet: %s", failure)
            await asyncio.sleep(PAUSE_S)


if __name__ == "__main__":
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    uvloop.run(main(Place.read(Path(sys.argv[1]))))
