"""A process that is killed while it spools loses no message whose append was acknowledged."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

from tests.client.pairing.spool.records import read_spool

PROGRAM = """
import asyncio, sys
from pathlib import Path
from tests.client.pairing.spool.records import make_record
from twinbus.client.pairing.spool.spool import Spool

async def spool_on(spool, lane):
    number = 0
    while True:
        name = f"{sys.argv[2]}-{lane}-{number}"
        await spool.append(make_record(name, body=bytes(number % 3000)))
        sys.stdout.write("+" + name + "\\n")
        number += 1

async def take_out(spool):
    while True:
        for queue in spool.entity_queues:
            position = queue.take()
            if position is not None:
                one = await spool.read(position)
                sys.stdout.write("-" + one.message_ids[0] + "\\n")
                await spool.remove(position, one)
                sys.stdout.write("=" + one.message_ids[0] + "\\n")
        await asyncio.sleep(0)

async def main():
    spool = Spool(Path(sys.argv[1]))
    await spool.open()
    await asyncio.gather(*[spool_on(spool, lane) for lane in range(4)], take_out(spool))

asyncio.run(main())
"""
RUNS = 5
RUN_S = (0.4, 1.0)


def run_until_killed(folder: Path, run: int, run_s: float) -> list[str]:
    """Run a process that spools until it is killed, and return the lines that it printed."""
    root = Path(__file__).parents[4]
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", PROGRAM, str(folder), str(run)],
        env=os.environ | {"PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}"},
        stdout=subprocess.PIPE,
        text=True,
    )
    killing = threading.Timer(run_s, process.send_signal, [signal.SIGKILL])
    assert process.stdout is not None
    lines: list[str] = []
    with contextlib.closing(process.stdout) as output:
        for line in output:  # the timer starts at the first line, so that the kill hits the spooling
            if not lines:
                killing.start()
            lines.append(line)
    assert process.wait(20) == -signal.SIGKILL
    return [line.strip() for line in lines if line.endswith("\n")]


def test_messages_that_a_killed_process_had_spooled_are_found_again(tmp_path: Path) -> None:
    rng = random.Random(4)
    printed: dict[str, set[str]] = {"+": set(), "-": set(), "=": set()}
    for run in range(RUNS):
        for line in run_until_killed(tmp_path, run, rng.uniform(*RUN_S)):
            printed[line[0]].add(line[1:])
    acknowledged, taken, removed = printed.values()
    remaining = [record.message_ids[0] for record in read_spool(tmp_path)]
    assert len(acknowledged) > 100 * RUNS
    assert len(taken) > 10 * RUNS
    assert len(remaining) == len(set(remaining)), "no message is spooled twice"
    assert acknowledged - taken <= set(remaining), "no acknowledged message is lost"
    assert not removed & set(remaining), "no removed message comes back"
    assert not list((tmp_path / "damaged").iterdir())
