"""A program that sends: python -m tests.outages.sending PLACE NAME LEDGER, until SIGTERM.

Each of its streams has a client of its own, and sends one message after the other. The first of these programs parks
what is meant for a fragment that is down, the others fail over. Owns: the ledger of its sends, a
line of JSON each, written when the send is over, however it ended.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import random
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

import uvloop

from tests.outages.ledger import Send
from tests.outages.place import Place, paired
from tests.outages.scene import SENDERS, SUBSCRIPTIONS, message_of, streams_of
from twinbus.client.pairing import EventKind
from twinbus.model.errors import ServiceBusError

if TYPE_CHECKING:
    from tests.outages.scene import Stream
    from twinbus.client.pairing import Pairing, PairingEvent

PAUSE_S: Final = 0.02
"""Between two sends of a stream, in the mean."""


class Sender:
    """All streams of one program."""

    def __init__(self, pairing: Pairing, ledger: TextIO, stopping: asyncio.Event) -> None:
        self._pairing = pairing
        self._ledger = ledger
        self._stopping = stopping
        self._parked: dict[object, str | None] = {}
        pairing.on_event(self._listen)

    def _listen(self, event: PairingEvent) -> None:
        if event.kind is EventKind.PARKED:
            self._parked[event.message_id] = event.backlog_queue

    async def send_all_of(self, stream: Stream) -> None:
        """One after the other, until it is enough."""
        factory, rng, number = self._pairing.primary, random.Random(stream.name), 0
        is_topic = stream.path in SUBSCRIPTIONS
        client = factory.create_topic_client(stream.path) if is_topic else factory.create_queue_client(stream.path)
        while not self._stopping.is_set():
            message, failure, began_s = message_of(stream, number), None, time.monotonic()
            try:
                await client.send(message)
            except ServiceBusError as error:
                failure = type(error).__name__
            ended_s, where = time.monotonic(), self._parked.pop(message.message_id, None)
            self._write(Send(stream.name, number, began_s, ended_s, failure, where))
            number += 1
            await asyncio.sleep(rng.uniform(0, 2 * PAUSE_S))

    def _write(self, send: Send) -> None:
        self._ledger.write(json.dumps(dataclasses.astuple(send)) + "\n")


def read(ledger: Path) -> list[Send]:
    """What a program has written down."""
    return [Send(*json.loads(line)) for line in ledger.read_text().splitlines()]


async def main(place: Place, name: str, ledger: TextIO) -> None:
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    async with paired(place, park_on_fragment_outage=name == SENDERS[0]) as pairing:
        sender = Sender(pairing, ledger, stopping)
        await asyncio.gather(*[sender.send_all_of(stream) for stream in streams_of(name)])


if __name__ == "__main__":
    with Path(sys.argv[3]).open("a", buffering=1) as file:
        uvloop.run(main(Place.read(Path(sys.argv[1])), sys.argv[2], file))
