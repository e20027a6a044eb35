"""A process that is killed while it spools leaves all that it was told is safe."""

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
LIVES = 5
LIFE_S = (0.4, 1.0)


def live(folder: Path, life: int, life_s: float) -> list[str]:
    """Spool until it is killed; what it was told, line by line."""
    root = Path(__file__).parents[4]
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", PROGRAM, str(folder), str(life)],
        env=os.environ | {"PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}"},
        stdout=subprocess.PIPE,
        text=True,
    )
    killing = threading.Timer(life_s, process.send_signal, [signal.SIGKILL])
    assert process.stdout is not None
    lines: list[str] = []
    with contextlib.closing(process.stdout) as output:
        for line in output:  # its life is counted from its first word: what is to be killed is the spooling
            if not lines:
                killing.start()
            lines.append(line)
    assert process.wait(20) == -signal.SIGKILL
    return [line.strip() for line in lines if line.endswith("\n")]


def test_what_a_killed_process_was_told_is_safe_is_found_again(tmp_path: Path) -> None:
    chance = random.Random(4)
    told: dict[str, set[str]] = {"+": set(), "-": set(), "=": set()}
    for life in range(LIVES):
        for line in live(tmp_path, life, chance.uniform(*LIFE_S)):
            told[line[0]].add(line[1:])
    acknowledged, taken, removed = told.values()
    found = [one.message_ids[0] for one in read_spool(tmp_path)]
    assert len(acknowledged) > 100 * LIVES
    assert len(taken) > 10 * LIVES
    assert len(found) == len(set(found)), "none is there twice"
    assert acknowledged - taken <= set(found), "none that was acknowledged is lost"
    assert not removed & set(found), "none that was removed comes back"
    assert not list((tmp_path / "damaged").iterdir())
