"""An outage from end to end: what an application on a pair of namespaces sees of it.

    python tools/demo.py [--seconds 6]

Serves a pair in a folder that is removed afterwards, sends from eight tasks, kills the primary with SIGKILL, goes on
sending, starts it again, waits until the syphon has brought everything back, and receives it all. Ends what it started.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.table import Table

from twinbus.client import BrokeredMessage, MessagingFactory, NamespaceManager
from twinbus.client.pairing import EventKind, SendAvailabilityPairedNamespaceOptions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from twinbus.client.pairing import Pairing, PairingEvent

SENDERS: Final = 8
RATE: Final = 50
"""Sends a second of each."""
PING_S: Final = 2.0
START_S: Final = 30.0
DRAIN_S: Final = 30.0


class Namespace:
    """A server in a process of its own, on the same ports in each of its lives."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self._folder = folder
        self._ports = dict.fromkeys(("amqp", "amqps", "http", "https"), 0)
        self._process: subprocess.Popen[bytes] | None = None
        self.ready: dict[str, Any] = {}

    def start(self) -> None:
        """Serve; back when it does."""
        ready_file = self._folder / f"{self.name}.json"
        ready_file.unlink(missing_ok=True)
        ports = [f"--{name}-port={port}" for name, port in self._ports.items()]
        command = [str(Path(sys.executable).parent / "twinbus"), "serve", self.name, "--log-level=error"]
        command += [f"--data={self._folder / self.name}", f"--ready-file={ready_file}", *ports]
        self._process = subprocess.Popen(command)  # noqa: S603  # our own
        deadline = time.monotonic() + START_S
        while not ready_file.exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{self.name} did not start")
            time.sleep(0.05)
        self.ready = json.loads(ready_file.read_text())
        self._ports = {name: self.ready[f"{name}_port"] for name in self._ports}

    def end(self, how: signal.Signals) -> None:
        """Stop serving, well or not."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(how)
            self._process.wait()


class Tally:
    """What the senders saw."""

    def __init__(self) -> None:
        self.sent: set[str] = set()
        self.failed: Counter[str] = Counter()
        self.longest_s = 0.0
        self.events: Counter[EventKind] = Counter()

    def hear(self, event: PairingEvent) -> None:
        """Count what happened."""
        self.events[event.kind] += event.count


@contextlib.asynccontextmanager
async def paired(primary: Namespace, secondary: Namespace) -> AsyncIterator[Pairing]:
    """An application on both."""
    admin, ca_file = secondary.ready["admin_connection_string"], secondary.ready["ca_file"]
    async with NamespaceManager.from_connection_string(admin, ca_file=ca_file) as manager:
        options = SendAvailabilityPairedNamespaceOptions(
            secondary_factory=MessagingFactory.from_connection_string(secondary.ready["connection_string"]),
            secondary_namespace_manager=manager,
            primary_namespace_name=primary.name,
            failover_interval=0,
            ping_primary_interval=PING_S,
            enable_syphon=True,
        )
        factory = MessagingFactory.from_connection_string(primary.ready["connection_string"])
        async with await factory.pair_namespace(options) as pairing:
            yield pairing


async def send(pairing: Pairing, number: int, tally: Tally, stop: asyncio.Event) -> None:
    """Send at a steady rate, one message after the other."""
    orders = pairing.primary.create_queue_client("orders")
    count = 0
    while not stop.is_set():
        message = BrokeredMessage(f"order {count} of sender {number}", message_id=f"{number}-{count}")
        started = time.monotonic()
        try:
            await orders.send(message)
        except Exception as error:  # noqa: BLE001  # it is what is counted
            tally.failed[type(error).__name__] += 1
        else:
            tally.sent.add(str(message.message_id))
        took_s = time.monotonic() - started
        tally.longest_s = max(tally.longest_s, took_s)
        count += 1
        await asyncio.sleep(max(0.0, 1 / RATE - took_s))


async def receive_all(pairing: Pairing) -> Counter[str]:
    """Everything that is in the queue, by message id."""
    orders = pairing.primary.create_queue_client("orders")
    found: Counter[str] = Counter()
    while batch := await orders.receive_batch(500, 1.0):
        found.update(str(message.message_id) for message in batch)
        await orders.receiver.complete_batch(batch)
    return found


async def drained(tally: Tally) -> bool:
    """Wait until what was parked is back."""
    deadline = time.monotonic() + DRAIN_S
    while tally.events[EventKind.MOVED] < tally.events[EventKind.PARKED]:
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.1)
    return True


async def show(folder: Path, seconds: float, console: Console) -> bool:
    """The outage, and its summary; whether nothing was lost."""
    primary, secondary = Namespace("contoso", folder), Namespace("contoso-backup", folder)
    try:
        console.print("[bold]1[/] a pair of namespaces: contoso, and contoso-backup")
        primary.start()
        secondary.start()
        admin, ca_file = primary.ready["admin_connection_string"], primary.ready["ca_file"]
        async with NamespaceManager.from_connection_string(admin, ca_file=ca_file) as manager:
            await manager.create_queue("orders")
        async with paired(primary, secondary) as pairing:
            return await outage(pairing, primary, seconds, console)
    finally:
        for namespace in (primary, secondary):
            namespace.end(signal.SIGTERM)


async def outage(pairing: Pairing, primary: Namespace, seconds: float, console: Console) -> bool:
    """Before, during and after."""
    tally, stop = Tally(), asyncio.Event()
    pairing.on_event(tally.hear)
    senders = [asyncio.ensure_future(send(pairing, number, tally, stop)) for number in range(SENDERS)]
    console.print(f"[bold]2[/] {SENDERS} senders, {SENDERS * RATE} messages a second")
    await asyncio.sleep(seconds)
    primary.end(signal.SIGKILL)
    console.print("[bold]3[/] contoso is killed; sends go on")
    await asyncio.sleep(seconds)
    console.print(f"   {tally.events[EventKind.PARKED]:,} messages are parked in contoso-backup")
    await asyncio.to_thread(primary.start)
    console.print("[bold]4[/] contoso is back; the syphon drains the backlog")
    await asyncio.sleep(seconds)
    stop.set()
    await asyncio.gather(*senders)
    is_drained = await drained(tally)
    console.print("[bold]5[/] all is received from contoso")
    received = await receive_all(pairing)
    return summary(tally, received, console) and is_drained


def summary(tally: Tally, received: Counter[str], console: Console) -> bool:
    """What came of it."""
    lost = tally.sent - received.keys()
    twice = sum(count - 1 for count in received.values())
    table = Table("", "", title="The outage", show_header=False)
    rows: list[tuple[str, object]] = [
        ("sends that succeeded", f"{len(tally.sent):,}"),
        ("sends that failed", f"{sum(tally.failed.values()):,}"),
        ("the longest send", f"{tally.longest_s * 1000:,.0f} ms"),
        ("parked in contoso-backup", f"{tally.events[EventKind.PARKED]:,}"),
        ("pings", f"{tally.events[EventKind.PINGED]:,}"),
        ("brought back by the syphon", f"{tally.events[EventKind.MOVED]:,}"),
        ("received from contoso", f"{len(received):,}"),
        ("received twice", f"{twice:,}"),
        ("lost", f"{len(lost):,}"),
    ]
    for name, value in rows:
        table.add_row(name, str(value))
    console.print(table)
    return not lost and not tally.failed


def main() -> int:
    """0 if no send failed and nothing was lost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=6.0, help="of each part: before, during and after")
    arguments = parser.parse_args()
    logging.getLogger("twinbus").setLevel(logging.CRITICAL)  # what is told is in the table
    with tempfile.TemporaryDirectory(prefix="twinbus-demo-") as folder:
        return 0 if asyncio.run(show(Path(folder), arguments.seconds, Console())) else 1


if __name__ == "__main__":
    sys.exit(main())
