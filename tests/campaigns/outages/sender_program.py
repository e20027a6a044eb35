"""Sender program: python -m tests.campaigns.outages.sender_program CONFIG NAME SEND_LOG, until SIGTERM.

Each of its streams has its own client, and sends one message, or one batch, after the other. The first of these
programs parks messages for a fragment that is down; the others fail over as a whole, and have a spool. On SIGTERM the
program ends when its spool is empty.

Owns: the send log, a file of JSON lines. One line is written before each send, one when the send has ended, and one for
each message that was parked or spooled: the log of a killed program shows which sends have no known outcome. After a
restart the program continues each stream after them.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import signal
import sys
import time
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

import uvloop

from tests.campaigns.outages.program_config import ProgramConfig, pair_namespaces
from tests.campaigns.outages.records import SendRecord
from tests.campaigns.outages.streams import PAST_TIME, SENDERS, STREAMS, make_message, streams_of
from tests.support.delivery_checker.pair_checker import stored_positions_of
from twinbus.client.errors import may_have_happened
from twinbus.client.pairing import EventKind
from twinbus.model.errors import ServiceBusError

if TYPE_CHECKING:
    from tests.campaigns.outages.streams import Stream
    from twinbus.client.pairing import Pairing, PairingEvent

RETRY_PAUSE_S: Final = 0.3
"""Pause between two attempts to pair."""
SPOOL_TIMEOUT_S: Final = 75.0
"""Time limit for the spool, whose longest pause is a minute."""
POLL_INTERVAL_S: Final = 0.1
KILLED_OUTCOME: Final = "killed"
log: Final = logging.getLogger("sender")


class SendLog:
    """Log of a program's sends, written at the time of each event."""

    def __init__(self, file: TextIO) -> None:
        """`file` is line-buffered, so that a kill loses no line."""
        self._file = file

    def write(self, *line: object) -> None:
        self._file.write(json.dumps(line) + "\n")

    def listen(self, event: PairingEvent) -> None:
        """Record that a message was parked or spooled."""
        stream, _, number = str(event.message_id).rpartition("/")
        self.write(event.kind.name, stream, int(number), event.backlog_queue)


def read_send_log(file: Path) -> list[SendRecord]:
    """Read the send log of a program, over all of its restarts."""
    sends_by_number: dict[tuple[str, int], SendRecord] = {}
    begun: dict[tuple[str, int], list[SendRecord]] = {}
    for line in file.read_text().splitlines():
        event, stream, number, *more = json.loads(line)
        if event == "BEGUN":
            count, at_s = more
            sends = [
                SendRecord(stream, number + position, at_s, at_s, KILLED_OUTCOME, None, may_have_happened=True)
                for position in range(count)
            ]
            begun[stream, number] = sends
            sends_by_number.update({(stream, send.number): send for send in sends})
        elif event == "ENDED":
            for send in begun.pop((stream, number)):
                ended = _with_outcome(sends_by_number[stream, send.number], send.number - number, more)
                sends_by_number[stream, send.number] = ended
        elif event == EventKind.PARKED.name:
            sends_by_number[stream, number] = replace(
                _as_stored(sends_by_number[stream, number]), backlog_queue=more[0]
            )
        elif event == EventKind.SPOOLED.name:
            sends_by_number[stream, number] = replace(_as_stored(sends_by_number[stream, number]), is_spooled=True)
    return list(sends_by_number.values())


def left_in_spool(file: Path) -> int:
    """Return the number of messages that a program left in its spool."""
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return sum(line[3] for line in lines if line[0] == "LEFT")


def _with_outcome(send: SendRecord, position: int, more: list[Any]) -> SendRecord:
    at_s, failure, may_have, stored = more
    if failure is None or position in stored:
        return replace(send, ended_s=at_s, failure=None, may_have_happened=False)
    return replace(send, ended_s=at_s, failure=failure, may_have_happened=may_have)


def _as_stored(send: SendRecord) -> SendRecord:
    """Return the send as successful if the program was killed after the message was parked or spooled."""
    return replace(send, failure=None, may_have_happened=False) if send.failure == KILLED_OUTCOME else send


class Sender:
    """All streams of one program."""

    def __init__(self, pairing: Pairing, send_log: SendLog, stopping: asyncio.Event) -> None:
        self._pairing = pairing
        self._send_log = send_log
        self._stopping = stopping
        pairing.on_event(send_log.listen, {EventKind.PARKED, EventKind.SPOOLED})

    async def send_all_of(self, stream: Stream, number: int) -> None:
        """Send one message or batch after the other, starting at `number`, until stopped."""
        factory, rng = self._pairing.primary, random.Random(f"{stream.name}/{number}")
        path = stream.path
        client = factory.create_topic_client(path) if stream.is_topic else factory.create_queue_client(path)
        while not self._stopping.is_set():
            messages = [make_message(stream, number + position) for position in range(rng.randint(1, stream.batch_max))]
            failure, may_have, stored = None, False, list[int]()
            self._send_log.write("BEGUN", stream.name, number, len(messages), time.monotonic())
            try:
                if stream.batch_max > 1:
                    await client.send_batch(messages)
                elif stream.is_scheduled:
                    await client.schedule(messages[0], PAST_TIME)
                else:
                    await client.send(messages[0])
            except ServiceBusError as error:
                failure, may_have, stored = type(error).__name__, may_have_happened(error), stored_positions_of(error)
            self._send_log.write("ENDED", stream.name, number, time.monotonic(), failure, may_have, stored)
            number += len(messages)
            await asyncio.sleep(rng.uniform(0, 2 * stream.pause_s))

    async def wait_for_spool(self) -> None:
        """Wait until the spool is empty; record the messages that are left after the time limit."""
        deadline_s = time.monotonic() + SPOOL_TIMEOUT_S
        while (status := self._pairing.spool_status) is not None and status.count:
            if time.monotonic() > deadline_s:
                log.error("%d messages are still in the spool", status.count)
                self._send_log.write("LEFT", "", 0, status.count)
                return
            await asyncio.sleep(POLL_INTERVAL_S)


async def main(config: ProgramConfig, name: str, file: Path) -> None:
    stopping, next_numbers = asyncio.Event(), _next_numbers(file)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    with file.open("a", buffering=1) as opened:
        send_log = SendLog(opened)
        while True:
            async with AsyncExitStack() as stack:
                try:
                    is_first = name == SENDERS[0]
                    pairing = await stack.enter_async_context(pair_namespaces(config, park_on_fragment_outage=is_first))
                except ServiceBusError as error:
                    log.warning("not paired yet: %s", error)
                    await asyncio.sleep(RETRY_PAUSE_S)
                    continue
                sender = Sender(pairing, send_log, stopping)
                streams = streams_of(name)
                await asyncio.gather(*[sender.send_all_of(stream, next_numbers[stream.name]) for stream in streams])
                await sender.wait_for_spool()
                return


def _next_numbers(file: Path) -> dict[str, int]:
    """Return the next number of each stream."""
    next_numbers = dict.fromkeys(STREAMS, 0)
    if file.exists():
        for send in read_send_log(file):
            next_numbers[send.stream] = max(next_numbers[send.stream], send.number + 1)
    return next_numbers


if __name__ == "__main__":
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s %(message)s", level=logging.WARNING)
    uvloop.run(main(ProgramConfig.read(Path(sys.argv[1])), sys.argv[2], Path(sys.argv[3])))
