"""A program that runs the syphon on Spark repeatedly, for bench/pipeline_syphon.py.

    python -m bench.pipeline_syphon_host MASTER PRIMARY_NAME

The program reads three connection strings, one per line: of the primary, of the secondary, and for management of the
secondary. It starts Spark and prints `ready`. For each further line of input, it drains the backlog queues and prints
the number of moved messages.
"""

from __future__ import annotations

import asyncio
import sys

from twinbus.pipeline.spark import session
from twinbus.pipeline.syphon import SETTINGS, Pair, SparkSyphon, Wanted


def main(master: str, primary_name: str) -> None:
    """Run the syphon for each line of input."""
    primary, secondary, management = [sys.stdin.readline().strip() for _ in range(3)]
    wanted = Wanted(pair=Pair.of(primary, secondary, management, name=primary_name), available_now=True)
    with session("bench of the syphon", master=master, settings=SETTINGS) as spark:
        print("ready", flush=True)
        for _ in sys.stdin:
            report = asyncio.run(SparkSyphon(spark, wanted).run())
            print(report.moved, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
